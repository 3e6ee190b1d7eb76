//! Ids: the random [`Owner`] of an attempt, the [`FencingToken`] of a grant, the [`StorageId`] within which tokens are ordered.

use std::fmt;

/// The random id of one attempt to acquire a lock.
///
/// A resend of the same request repeats it and is harmless; a new attempt after an outcome has a new one. Knowing it permits
/// releasing the lock, so `Debug` shows only its first digits.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Owner(u128);

impl Owner {
    /// Returns a new random owner.
    pub fn random() -> Self {
        Self(rand::random())
    }

    /// Returns the stored form.
    pub fn to_bytes(self) -> [u8; 16] {
        self.0.to_be_bytes()
    }

    /// Reads the stored form.
    pub fn from_bytes(bytes: [u8; 16]) -> Self {
        Self(u128::from_be_bytes(bytes))
    }

    /// Returns the owner as 32 hexadecimal digits, for backends that store text.
    pub fn to_hex(self) -> String {
        // The formatter takes four times as long for a number of this size.
        const DIGITS: [u8; 16] = *b"0123456789abcdef";
        let digits = self.to_bytes().into_iter().flat_map(|byte| [byte >> 4, byte & 15]);
        digits.map(|digit| char::from(DIGITS[usize::from(digit)])).collect()
    }

    /// Reads 32 hexadecimal digits.
    pub fn from_hex(text: &str) -> Option<Self> {
        number(text).map(Self)
    }
}

/// Returns the number with these 32 hexadecimal digits.
fn number(text: &str) -> Option<u128> {
    let is_hex = text.len() == 32 && text.bytes().all(|byte| byte.is_ascii_hexdigit());
    is_hex.then(|| u128::from_str_radix(text, 16).ok()).flatten()
}

impl fmt::Debug for Owner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Owner({:04x}…)", self.0 >> 112)
    }
}

/// A number that is larger for every later grant of the same lock.
///
/// Send it along with every effect on the protected resource, and let the resource reject a token that is smaller than one it
/// has seen: then even a holder that was stopped for an hour does no harm. Tokens are ordered within one [`StorageId`]; they
/// are public, and prove order, not identity.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct FencingToken(u64);

impl FencingToken {
    /// Returns the token with this value.
    pub const fn new(value: u64) -> Self {
        Self(value)
    }

    /// Returns the value to send along.
    pub const fn get(self) -> u64 {
        self.0
    }
}

impl From<u64> for FencingToken {
    fn from(value: u64) -> Self {
        Self(value)
    }
}

/// Reads the decimal digits that `Display` writes, for instance those of `FENCEPOST_TOKEN`.
impl std::str::FromStr for FencingToken {
    type Err = std::num::ParseIntError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        text.parse().map(Self)
    }
}

impl From<FencingToken> for u64 {
    fn from(token: FencingToken) -> Self {
        token.0
    }
}

impl fmt::Display for FencingToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl fmt::Debug for FencingToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "FencingToken({})", self.0)
    }
}

/// The random id of the stored locks, created together with their schema: tokens with different ids are not ordered. A database
/// that was deleted and created again has a new one.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct StorageId(u128);

impl StorageId {
    /// Returns a new random id.
    pub fn random() -> Self {
        Self(rand::random())
    }

    /// Returns the stored form.
    pub fn to_bytes(self) -> [u8; 16] {
        self.0.to_be_bytes()
    }

    /// Reads the stored form.
    pub fn from_bytes(bytes: [u8; 16]) -> Self {
        Self(u128::from_be_bytes(bytes))
    }

    /// Reads 32 hexadecimal digits.
    pub fn from_hex(text: &str) -> Option<Self> {
        number(text).map(Self)
    }
}

impl fmt::Display for StorageId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", self.0)
    }
}

impl fmt::Debug for StorageId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "StorageId({self})")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn debug_of_an_owner_does_not_reveal_it() {
        let owner = Owner::from_bytes([0xab; 16]);
        assert_eq!(format!("{owner:?}"), "Owner(abab…)");
        assert_eq!(Owner::from_bytes(owner.to_bytes()), owner);
        assert_eq!(Owner::from_hex(&owner.to_hex()), Some(owner));
        assert_eq!(Owner::from_hex("+bababababababababababababababab"), None);
    }
}
