//! Tells where the rows of a lock are, for use with the server's own tools.

use fencepost_core::{Finding, LockName, shell_quote};

use crate::config::Config;
use crate::literal::Sql;

/// Returns the finding that names the rows of the lock.
pub(crate) fn rows_of(config: &Config, name: &LockName) -> Finding {
    let tables = config.tables();
    let mut literal = Sql::default();
    literal.name(name);
    let found = format!(
        "rows with name = {} in {}, {}, {} and {} of {}",
        literal.as_str(),
        tables.locks,
        tables.holders,
        tables.tickets,
        tables.cells,
        config.location()
    );
    let query = format!(
        "SELECT CONVERT(name USING utf8mb4), token, mode, FROM_UNIXTIME(until_ns / 1e9), CONVERT(label USING utf8mb4) \
         FROM {} WHERE name = {}",
        tables.holders,
        literal.as_str()
    );
    let (host, port) = (&config.server.host, config.server.port);
    let command = format!("mariadb -h {} -P {port} {}", shell_quote(host), shell_quote(&config.database));
    Finding::ok("lock's row", found)
        .with_advice(format!("to read its holders: {command} -e {}", shell_quote(&query)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::parse;

    #[test]
    fn a_name_is_a_literal_inside_a_shell_word() {
        let config = parse("mysql://u:hunter2@h/app").unwrap();
        let finding = rows_of(&config, &LockName::new("it's").unwrap());
        let advice = finding.advice.unwrap();
        assert!(
            finding.found.starts_with("rows with name = x'69742773' in `fencepost_locks`, "),
            "{}",
            finding.found
        );
        assert!(advice.contains(r"WHERE name = x'\''69742773'\'''"), "{advice}");
        assert!(!advice.contains("hunter2"), "{advice}");
    }
}
