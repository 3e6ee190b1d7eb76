//! Identifiers from the URL: checked once, and quoted wherever they are part of a statement.

use fencepost_core::Result;
use fencepost_net::bad;

/// The longest identifier: a server truncates longer ones.
const MAX_BYTES: usize = 63;

/// Returns the identifier in quotes.
pub(crate) fn quoted(identifier: &str) -> String {
    format!("\"{}\"", identifier.replace('"', "\"\""))
}

/// Returns the table in quotes: `TABLE`, or `SCHEMA.TABLE`.
pub(crate) fn quoted_table(table: &str) -> String {
    match table.split_once('.') {
        Some((schema, table)) => format!("{}.{}", quoted(schema), quoted(table)),
        None => quoted(table),
    }
}

/// Returns the text as a string constant of SQL.
pub(crate) fn literal(text: &str) -> String {
    format!("'{}'", text.replace('\'', "''"))
}

/// Checks the name of the schema that contains Fencepost's tables and functions.
pub(super) fn checked_namespace(value: &str) -> Result<String> {
    let is_allowed = |char: char| char.is_ascii_alphanumeric() || "_-".contains(char);
    if value.is_empty() || value.len() > MAX_BYTES || !value.chars().all(is_allowed) {
        let message = format!("a namespace in PostgreSQL has 1 to {MAX_BYTES} letters, digits or any of _ -");
        return Err(bad(message).with_hint("it is the name of a schema: ?namespace=NAME"));
    }
    let lower = value.to_ascii_lowercase();
    if lower.starts_with("pg_") || ["information_schema", "public"].contains(&lower.as_str()) {
        return Err(bad("the namespace is a schema that the server itself or other programs use")
            .with_hint("Fencepost has a schema of its own, which it can create: ?namespace=NAME"));
    }
    Ok(value.to_owned())
}

/// Checks the name of a table, or of a column, that exists already.
pub(super) fn checked_identifier(key: &str, value: &str) -> Result<String> {
    let is_valid =
        |part: &str| !part.is_empty() && part.len() <= MAX_BYTES && !part.contains(char::is_control);
    let parts = if key == "table" { 2 } else { 1 };
    if value.splitn(parts, '.').all(is_valid) {
        return Ok(value.to_owned());
    }
    Err(bad(format!("option {key:?} in the PostgreSQL URL is not an identifier"))
        .with_hint(format!("a name has 1 to {MAX_BYTES} bytes; a table may be SCHEMA.TABLE")))
}

#[cfg(test)]
mod tests {
    use fencepost_core::ErrorKind;

    use super::*;

    #[test]
    fn quotes_within_an_identifier_are_doubled() {
        assert_eq!(quoted("a"), "\"a\"");
        assert_eq!(quoted("a\"; DROP"), "\"a\"\"; DROP\"");
        assert_eq!(quoted_table("a.b.c"), "\"a\".\"b.c\"");
        assert_eq!(quoted_table("Locks"), "\"Locks\"");
    }

    #[test]
    fn a_namespace_is_a_schema_of_its_own() {
        for valid in ["a", "fencepost", "Team_A-1", &"a".repeat(63)] {
            assert_eq!(checked_namespace(valid).unwrap(), valid);
        }
        for invalid in ["", "a b", "a.b", "a\"b", "ä", "pg_temp", "PG_a", "information_schema", "public"] {
            assert_eq!(checked_namespace(invalid).unwrap_err().kind(), ErrorKind::BadConfig, "{invalid}");
        }
        assert!(checked_namespace(&"a".repeat(64)).is_err());
    }

    #[test]
    fn a_table_may_have_a_schema_and_a_column_not() {
        for valid in ["locks", "app.locks", "Größe", "a b"] {
            assert_eq!(checked_identifier("table", valid).unwrap(), valid);
        }
        for invalid in ["", ".", "a.", ".a", "a\0", &"a".repeat(64)] {
            assert!(checked_identifier("table", invalid).is_err(), "{invalid}");
        }
        assert_eq!(checked_identifier("name", "a.b").unwrap(), "a.b");
    }
}
