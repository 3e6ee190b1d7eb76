//! Tells where the rows of a lock are, for use with SQLite's own tools.

use std::path::Path;

use fencepost_core::{Finding, LockName, shell_quote};

/// Returns the finding that names the rows of the lock.
pub(crate) fn rows_of(path: &Path, name: &LockName) -> Finding {
    let literal = format!("'{}'", name.as_str().replace('\'', "''"));
    let found = format!("rows with name = {literal} in holders, tickets and cells of {}", path.display());
    let query = shell_quote(&format!("SELECT * FROM holders WHERE name = {literal}"));
    let file = shell_quote(&path.display().to_string());
    Finding::ok("lock", found).with_advice(format!("to read them: sqlite3 -readonly {file} {query}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_a_literal_inside_a_shell_word() {
        let finding = rows_of(Path::new("/srv/locks.db"), &LockName::new("it's").unwrap());
        assert_eq!(finding.found, "rows with name = 'it''s' in holders, tickets and cells of /srv/locks.db");
        let query = r"'SELECT * FROM holders WHERE name = '\''it'\'''\''s'\'''";
        assert_eq!(finding.advice.unwrap(), format!("to read them: sqlite3 -readonly /srv/locks.db {query}"));
    }
}
