//! The name of a lock, validated when it is created.

use std::borrow::Borrow;
use std::fmt;
use std::sync::Arc;

use crate::error::{Error, ErrorKind, Result};

/// The name of a lock: 1 to 512 bytes of UTF-8 without control characters.
///
/// All other characters are allowed and taken literally: names with `/`, `..`, `{}`, `%`, quotes, upper or lower case never
/// collide and never refer to other keys of a backend. Nothing is truncated or folded.
///
/// ```
/// use fencepost_core::LockName;
///
/// assert_eq!(LockName::new("invoice/42")?.as_str(), "invoice/42");
/// assert!(LockName::new("").is_err());
/// assert!(LockName::new("line\nbreak").is_err());
/// # Ok::<(), fencepost_core::Error>(())
/// ```
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LockName(Arc<str>);

impl LockName {
    /// The longest name, in bytes.
    pub const MAX_BYTES: usize = 512;

    /// Validates a name.
    ///
    /// # Errors
    /// [`ErrorKind::BadName`] if it is empty, longer than [`LockName::MAX_BYTES`] or has a control character.
    pub fn new(name: impl AsRef<str>) -> Result<Self> {
        let name = name.as_ref();
        let refuse = |why: String| Err(Error::new(ErrorKind::BadName, why));
        if name.is_empty() {
            return refuse("a lock's name must not be empty".into());
        }
        if name.len() > Self::MAX_BYTES {
            return refuse(format!(
                "a lock's name may have {} bytes, this one has {}",
                Self::MAX_BYTES,
                name.len()
            ));
        }
        if let Some((at, bad)) = name.char_indices().find(|(_, c)| c.is_control()) {
            return refuse(format!(
                "a lock's name must not contain control characters: U+{:04X} at byte {at}",
                u32::from(bad)
            ));
        }
        Ok(Self(name.into()))
    }

    /// Returns the name as it was given.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for LockName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for LockName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.0, f)
    }
}

impl AsRef<str> for LockName {
    fn as_ref(&self) -> &str {
        &self.0
    }
}

impl Borrow<str> for LockName {
    fn borrow(&self) -> &str {
        &self.0
    }
}

impl TryFrom<&str> for LockName {
    type Error = Error;

    fn try_from(name: &str) -> Result<Self> {
        Self::new(name)
    }
}

impl std::str::FromStr for LockName {
    type Err = Error;

    fn from_str(name: &str) -> Result<Self> {
        Self::new(name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hostile_names_are_names() {
        for name in ["a", "..", "/", "{}", "%s", "'; DROP TABLE holders; --", "*", "Ä", "🔒", " "] {
            assert_eq!(LockName::new(name).unwrap().as_str(), name);
        }
        assert!(LockName::new("x".repeat(512)).is_ok());
    }

    #[test]
    fn malformed_names_are_refused_with_the_reason() {
        let refusal = |name: &str| LockName::new(name).unwrap_err().to_string();
        assert!(refusal("").contains("empty"));
        assert!(refusal(&"x".repeat(513)).contains("513"));
        assert!(refusal("a\0b").contains("U+0000 at byte 1"));
        assert!(refusal("a\u{85}").contains("U+0085"));
        assert_eq!(LockName::new("\n").unwrap_err().kind(), ErrorKind::BadName);
    }
}
