//! The names of the tables.

use crate::config::Config;
use crate::lease::storage::FORMAT;

/// The kinds of tables, in the order in which they are created.
pub(crate) const KINDS: [&str; 8] =
    ["locks", "holders", "tickets", "cells", "tombstones", "notices", "tokens", "storage"];

/// The tables of a namespace, quoted.
#[derive(Clone, Debug)]
pub(crate) struct Tables {
    pub(crate) locks: String,
    pub(crate) holders: String,
    pub(crate) tickets: String,
    pub(crate) cells: String,
    pub(crate) tombstones: String,
    pub(crate) notices: String,
    pub(crate) tokens: String,
    pub(crate) storage: String,
}

impl Tables {
    /// Returns the tables of a checked namespace, which has no character that must be quoted.
    pub(crate) fn of(namespace: &str) -> Self {
        let [locks, holders, tickets, cells, tombstones, notices, tokens, storage] =
            KINDS.map(|kind| format!("`{namespace}_{kind}`"));
        Self { locks, holders, tickets, cells, tombstones, notices, tokens, storage }
    }

    /// Returns all tables, in the order in which they are created.
    pub(crate) fn all(&self) -> [&str; 8] {
        let Self { locks, holders, tickets, cells, tombstones, notices, tokens, storage } = self;
        [locks, holders, tickets, cells, tombstones, notices, tokens, storage]
    }
}

/// Returns the statements that create the tables of a namespace.
pub(crate) fn schema_of(namespace: &str) -> String {
    let tables = Tables::of(namespace);
    let text = include_str!("schema.sql").to_owned();
    KINDS
        .iter()
        .zip(tables.all())
        .fold(text, |text, (kind, table)| text.replace(&format!("{{{kind}}}"), table))
}

/// Returns the statements that create the tables of a namespace and mark them as complete.
pub(crate) fn schema_with_row(namespace: &str) -> String {
    let storage = Tables::of(namespace).storage;
    let schema = schema_of(namespace);
    format!(
        "{schema}\nINSERT IGNORE INTO {storage} (id, format, storage_id) VALUES (1, {FORMAT}, UNHEX(REPLACE(UUID(), '-', '')));\n"
    )
}

/// Returns the statements that create the tables, one by one, without comments.
pub(crate) fn creating(namespace: &str) -> Vec<String> {
    let schema = schema_of(namespace);
    let code = |line: &str| line.split("--").next().unwrap_or("").trim_end().to_owned();
    let code = schema.lines().map(code).filter(|line| !line.is_empty()).collect::<Vec<_>>().join("\n");
    code.split(';').map(str::trim).filter(|statement| !statement.is_empty()).map(str::to_owned).collect()
}

impl Config {
    pub(crate) fn tables(&self) -> Tables {
        Tables::of(&self.namespace)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_statement_creates_each_table() {
        let statements = creating("team_a");
        assert_eq!(statements.len(), KINDS.len());
        for (statement, kind) in statements.iter().zip(KINDS) {
            let begin = format!("CREATE TABLE IF NOT EXISTS `team_a_{kind}` (");
            assert!(statement.starts_with(&begin), "{statement}");
            assert!(!statement.contains(['{', ';']) && !statement.contains("--"), "{statement}");
        }
    }
}
