//! Where a lock stands in the database, for people with SQLite's own tools.

use std::path::Path;

use fencepost_core::{Finding, LockName, shell_quote};

/// Which rows are about the lock.
pub(crate) fn rows_of(path: &Path, name: &LockName) -> Finding {
    let literal = format!("'{}'", name.as_str().replace('\'', "''"));
    let found = format!("rows with name = {literal} in holders, tickets and cells of {}", path.display());
    let question = shell_quote(&format!("SELECT * FROM holders WHERE name = {literal}"));
    let file = shell_quote(&path.display().to_string());
    Finding::ok("lock", found).with_advice(format!("to look: sqlite3 -readonly {file} {question}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_a_literal_inside_of_a_word() {
        let finding = rows_of(Path::new("/srv/locks.db"), &LockName::new("it's").unwrap());
        assert_eq!(finding.found, "rows with name = 'it''s' in holders, tickets and cells of /srv/locks.db");
        let question = r"'SELECT * FROM holders WHERE name = '\''it'\'''\''s'\'''";
        assert_eq!(finding.advice.unwrap(), format!("to look: sqlite3 -readonly /srv/locks.db {question}"));
    }
}
