//! The rights that an account needs, as statements that an administrator can paste.

use std::fmt::Write;

use crate::config::Config;
use crate::lease::layout::KINDS;

/// Returns the statements for the account of the URL, or for one to be named.
pub(crate) fn rights_on(config: &Config) -> String {
    let user = config.account.user.as_deref().unwrap_or("ACCOUNT");
    let account = format!("{}@'%'", quoted(user));
    let database = config.database.replace('`', "``");
    let option = match config.namespace.as_str() {
        Config::DEFAULT_NAMESPACE => String::new(),
        namespace => format!(" --namespace {namespace}"),
    };
    let mut text = format!(
        "-- Rights for locks in {}\n\
         --\n\
         -- Replace PASSWORD, and % by the hosts of the clients. An account that exists keeps its password.\n\
         -- An account with these rights can acquire and break every lock of the namespace.\n\
         CREATE USER IF NOT EXISTS {account} IDENTIFIED BY 'PASSWORD';\n\n\
         -- The tables have to exist: `fencepost schema mysql{option}` prints the statements that create them.\n",
        config.location()
    );
    let tables = config.tables().all().map(str::to_owned);
    for (kind, table) in KINDS.iter().zip(&tables) {
        let _ = writeln!(text, "GRANT {} ON `{database}`.{table} TO {account};", needed(kind));
    }
    text.push_str("\n-- Or let the first client create the tables, and grant these rights instead:\n");
    for (kind, table) in KINDS.iter().zip(&tables) {
        let more = if *kind == "storage" { "CREATE, INSERT" } else { "CREATE" };
        let _ = writeln!(text, "-- GRANT {more}, {} ON `{database}`.{table} TO {account};", needed(kind));
    }
    let _ = write!(
        text,
        "\n-- Only for `fencepost doctor`, which otherwise does not see the transactions of other accounts. It shows their\n\
         -- statements, too:\n\
         -- GRANT PROCESS ON *.* TO {account};\n"
    );
    text
}

/// Returns the rights that clients use on a table of this kind.
pub(crate) fn needed(kind: &str) -> &'static str {
    match kind {
        "locks" | "holders" | "tickets" => "SELECT, INSERT, UPDATE, DELETE",
        "storage" => "SELECT",
        _ => "SELECT, INSERT, DELETE",
    }
}

pub(crate) fn quoted(text: &str) -> String {
    format!("'{}'", text.replace('\\', "\\\\").replace('\'', "''"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::parse;

    #[test]
    fn every_table_is_granted_and_no_password_is_shown() {
        let text = rights_on(&parse("mysql://it's:hunter2@h/app?namespace=x").unwrap());
        for line in [
            "GRANT SELECT, INSERT, UPDATE, DELETE ON `app`.`x_locks` TO 'it''s'@'%';",
            "GRANT SELECT ON `app`.`x_storage` TO 'it''s'@'%';",
            "-- GRANT CREATE, INSERT, SELECT ON `app`.`x_storage` TO 'it''s'@'%';",
            "-- The tables have to exist: `fencepost schema mysql --namespace x` prints the statements that create them.",
        ] {
            assert!(text.lines().any(|found| found == line), "{text}");
        }
        assert_eq!(text.matches("\nGRANT ").count(), 8, "{text}");
        assert!(!text.contains("hunter2"), "{text}");
    }
}
