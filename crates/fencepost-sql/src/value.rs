//! The value of a column, without a driver.

use std::borrow::Cow;

/// A value to write.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Value<'a> {
    /// No value.
    Null,
    /// A number.
    Integer(i64),
    /// A text.
    Text(Cow<'a, str>),
    /// Bytes.
    Bytes(Cow<'a, [u8]>),
}

impl From<i64> for Value<'_> {
    fn from(number: i64) -> Self {
        Self::Integer(number)
    }
}

impl<'a> From<&'a str> for Value<'a> {
    fn from(text: &'a str) -> Self {
        Self::Text(text.into())
    }
}

impl From<String> for Value<'_> {
    fn from(text: String) -> Self {
        Self::Text(text.into())
    }
}

impl From<Option<String>> for Value<'_> {
    fn from(text: Option<String>) -> Self {
        text.map_or(Self::Null, Self::from)
    }
}
