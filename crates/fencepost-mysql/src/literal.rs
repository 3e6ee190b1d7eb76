//! Text of SQL statements. Names and texts are written as hexadecimal literals, which no byte in them can end.

use std::fmt::Write;

use fencepost_core::{LockName, Owner};
use fencepost_sql::Value;

/// The first of the numbers that stand for tokens that are not minted yet: this one for the first to be minted, the next for
/// the one after it.
pub(crate) const UNMINTED: u64 = 1 << 62;

/// The text of statements that are sent together.
#[derive(Debug, Default)]
pub(crate) struct Sql(String);

impl Sql {
    pub(crate) fn text(&mut self, text: &str) -> &mut Self {
        self.0.push_str(text);
        self
    }

    pub(crate) fn number(&mut self, number: impl std::fmt::Display) -> &mut Self {
        let _ = write!(self.0, "{number}");
        self
    }

    pub(crate) fn bytes(&mut self, bytes: &[u8]) -> &mut Self {
        const DIGITS: &[u8; 16] = b"0123456789abcdef";
        self.0.reserve(2 * bytes.len() + 3);
        self.0.push_str("x'");
        for byte in bytes {
            self.0.push(char::from(DIGITS[usize::from(byte >> 4)]));
            self.0.push(char::from(DIGITS[usize::from(byte & 15)]));
        }
        self.0.push('\'');
        self
    }

    pub(crate) fn name(&mut self, name: &LockName) -> &mut Self {
        self.bytes(name.as_str().as_bytes())
    }

    /// Writes the server's name of a named lock.
    pub(crate) fn lock(&mut self, key: &str) -> &mut Self {
        self.text("_utf8mb4 ").bytes(key.as_bytes())
    }

    pub(crate) fn owner(&mut self, owner: Owner) -> &mut Self {
        self.bytes(&owner.to_bytes())
    }

    /// Writes a token or a position, minted or not.
    pub(crate) fn minted(&mut self, number: u64) -> &mut Self {
        match number.checked_sub(UNMINTED) {
            Some(offset) => self.text("LAST_INSERT_ID()+").number(offset),
            None => self.number(number),
        }
    }

    pub(crate) fn value(&mut self, value: &Value<'_>) -> &mut Self {
        match value {
            Value::Null => self.text("NULL"),
            Value::Integer(number) => self.number(number),
            Value::Text(text) => self.bytes(text.as_bytes()),
            Value::Bytes(bytes) => self.bytes(bytes),
        }
    }

    /// Writes items with commas between them.
    pub(crate) fn list<T>(
        &mut self,
        items: impl IntoIterator<Item = T>,
        write: impl FnMut(&mut Self, T),
    ) -> &mut Self {
        self.separated(", ", items, write)
    }

    pub(crate) fn separated<T>(
        &mut self,
        separator: &str,
        items: impl IntoIterator<Item = T>,
        mut write: impl FnMut(&mut Self, T),
    ) -> &mut Self {
        for (at, item) in items.into_iter().enumerate() {
            if at > 0 {
                self.text(separator);
            }
            write(self, item);
        }
        self
    }

    /// Writes ` IN (…)` with these names.
    pub(crate) fn among<'n>(&mut self, names: impl IntoIterator<Item = &'n LockName>) -> &mut Self {
        self.text(" IN (")
            .list(names, |sql, name| {
                sql.name(name);
            })
            .text(")")
    }

    pub(crate) fn as_str(&self) -> &str {
        &self.0
    }

    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }

    pub(crate) fn into_string(self) -> String {
        self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_byte_ends_a_literal() {
        let mut sql = Sql::default();
        sql.bytes(b"'; DROP\\").text(" ").bytes(&[]).text(" ").value(&Value::Null);
        assert_eq!(sql.as_str(), "x'273b2044524f505c' x'' NULL");
    }

    #[test]
    fn a_token_that_is_not_minted_is_relative_to_the_first() {
        let mut sql = Sql::default();
        sql.list([7, UNMINTED, UNMINTED + 3], |sql, number| {
            sql.minted(number);
        });
        assert_eq!(sql.as_str(), "7, LAST_INSERT_ID()+0, LAST_INSERT_ID()+3");
    }
}
