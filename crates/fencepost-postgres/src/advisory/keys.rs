//! The 64-bit key of an advisory lock, derived from the lock's name as other programs derive it.

use fencepost_core::{Error, ErrorKind, LockName, Result};
use md5::{Digest, Md5};
use sha2::Sha256;

use crate::config::KeyRule;

/// The key of an advisory lock. The two forms never exclude each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Key {
    /// `pg_advisory_lock(bigint)`.
    Single(i64),
    /// `pg_advisory_lock(integer, integer)`.
    Pair(i32, i32),
}

impl Key {
    /// Returns the columns `classid`, `objid` and `objsubid` of `pg_locks`.
    pub(crate) fn columns(self) -> (u32, u32, i16) {
        match self {
            Self::Single(key) => {
                let halves = key.to_be_bytes();
                let half = |at: usize| {
                    u32::from_be_bytes([halves[at], halves[at + 1], halves[at + 2], halves[at + 3]])
                };
                (half(0), half(4), 1)
            }
            Self::Pair(first, second) => (first.cast_unsigned(), second.cast_unsigned(), 2),
        }
    }

    /// Returns the key with these columns.
    pub(crate) fn from_columns(class: u32, object: u32, sub: i16) -> Self {
        if sub == 2 {
            return Self::Pair(class.cast_signed(), object.cast_signed());
        }
        Self::Single((u64::from(class) << 32 | u64::from(object)).cast_signed())
    }
}

/// The key as arguments of the server's functions, and as a name of [`KeyRule::Raw`]: `42`, or `1,2`.
impl std::fmt::Display for Key {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Single(key) => write!(f, "{key}"),
            Self::Pair(first, second) => write!(f, "{first},{second}"),
        }
    }
}

/// How to obtain a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Derived {
    Key(Key),
    /// The server computes it with this expression of the name, `$1`.
    ByServer(&'static str),
}

/// Derives the key of a lock.
///
/// # Errors
/// [`ErrorKind::BadName`] if the name must be a number and is not.
pub(crate) fn derive(rule: KeyRule, namespace: &str, name: &LockName) -> Result<Derived> {
    let name = name.as_str();
    Ok(Derived::Key(match rule {
        // With the namespace, so that those of two teams do not exclude each other.
        KeyRule::Sha256 => Key::Single(first_eight(&Sha256::digest(format!("{namespace}:{name}"))).0),
        KeyRule::Raw => raw(name)?,
        KeyRule::Madelson => madelson(name),
        KeyRule::Crc32 => Key::Single(i64::from(crc32(name.as_bytes()))),
        KeyRule::Tooz => {
            let digest = Md5::digest(name);
            Key::Pair(i32::from(digest[0]), i32::from(digest[1]))
        }
        KeyRule::Hashtext => return Ok(Derived::ByServer("hashtext($1)::bigint")),
        KeyRule::Hashtextextended => return Ok(Derived::ByServer("hashtextextended($1, 0)")),
    }))
}

/// Returns the first eight bytes, as a big-endian and as a little-endian number.
fn first_eight(bytes: &[u8]) -> (i64, i64) {
    let mut first = [0; 8];
    first.iter_mut().zip(bytes).for_each(|(to, from)| *to = *from);
    (i64::from_be_bytes(first), i64::from_le_bytes(first))
}

fn raw(name: &str) -> Result<Key> {
    let key = match name.split_once(',') {
        Some((first, second)) => first.parse().ok().zip(second.parse().ok()).map(|(a, b)| Key::Pair(a, b)),
        None => name.parse().ok().map(Key::Single),
    };
    // Another spelling of the same number would be another name for the same lock.
    key.filter(|key| key.to_string() == name).ok_or_else(|| {
        Error::new(ErrorKind::BadName, format!("lock {name:?} is not a key of an advisory lock")).with_hint(
            "with key=raw a name is a 64-bit number, such as 42, or two 32-bit numbers, such as 1,2",
        )
    })
}

/// As `DistributedLock.Postgres` does: a short ASCII name is encoded, a number in hexadecimal digits is taken as it is, and
/// anything else is hashed.
fn madelson(name: &str) -> Key {
    if name.is_ascii() && name.len() <= 9 {
        let chars = name.bytes().fold(0_u64, |bits, char| bits << 7 | u64::from(char));
        let rest = 63 - 7 * name.len();
        let bits = chars << 1 << rest | ((1 << rest) - 1);
        let (first, second, _) = Key::Single(bits.cast_signed()).columns();
        return pair(first, second);
    }
    let is_hex = |text: &str| text.bytes().all(|byte| byte.is_ascii_hexdigit());
    if name.len() == 16
        && is_hex(name)
        && let Ok(key) = u64::from_str_radix(name, 16)
    {
        return Key::Single(key.cast_signed());
    }
    if let Some((first, second)) = name.split_once(',')
        && [first, second].iter().all(|half| half.len() == 8 && is_hex(half))
        && let (Ok(first), Ok(second)) = (u32::from_str_radix(first, 16), u32::from_str_radix(second, 16))
    {
        return pair(first, second);
    }
    Key::Single(first_eight(&sha1_smol::Sha1::from(name).digest().bytes()).1)
}

fn pair(first: u32, second: u32) -> Key {
    Key::Pair(first.cast_signed(), second.cast_signed())
}

/// The checksum of Ethernet, zip and PHP's `crc32`.
fn crc32(bytes: &[u8]) -> u32 {
    let shift = |crc: u32| if crc & 1 == 1 { crc >> 1 ^ 0xEDB8_8320 } else { crc >> 1 };
    let step = |crc: u32, byte: &u8| (0..8).fold(crc ^ u32::from(*byte), |crc, _| shift(crc));
    !bytes.iter().fold(u32::MAX, step)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(rule: KeyRule, name: &str) -> Key {
        match derive(rule, "fencepost", &LockName::new(name).unwrap()).unwrap() {
            Derived::Key(key) => key,
            Derived::ByServer(sql) => panic!("{sql}"),
        }
    }

    #[test]
    fn keys_of_madelson() {
        assert_eq!(madelson(""), Key::Pair(2_147_483_647, -1));
        for (name, expected) in [
            ("a", Key::Pair(-1_023_410_177, -1)),
            ("lock", Key::Pair(-641_786_185, -1)),
            ("MyLock", Key::Pair(-1_679_399_172, 2_061_500_415)),
            ("123456789", Key::Pair(1_657_379_654, -1_382_303_630)),
            ("MyLockName", Key::Single(4_062_898_426_641_073_528)),
            ("UserAccount123", Key::Single(8_634_498_927_489_891_668)),
            (&"\u{6F22}".repeat(18), Key::Single(-5_707_277_204_051_710_361)),
            ("000000000000002a", Key::Single(42)),
            ("ffffffffffffffff", Key::Single(-1)),
            ("00000001,ffffffff", Key::Pair(1, -1)),
        ] {
            assert_eq!(key(KeyRule::Madelson, name), expected, "{name}");
        }
        assert_ne!(key(KeyRule::Madelson, "+00000000000002a"), Key::Single(42));
    }

    #[test]
    fn keys_of_other_peers() {
        assert_eq!(key(KeyRule::Crc32, "mylock"), Key::Single(1_470_200_715));
        assert_eq!(key(KeyRule::Crc32, "invoice"), Key::Single(2_422_544_196));
        assert_eq!(key(KeyRule::Tooz, "mylock"), Key::Pair(200, 223));
        assert_eq!(key(KeyRule::Tooz, "invoice"), Key::Pair(229, 249));
    }

    #[test]
    fn a_key_of_its_own_depends_on_the_namespace() {
        let in_namespace =
            |namespace: &str| derive(KeyRule::Sha256, namespace, &LockName::new("invoice").unwrap()).unwrap();
        // printf fencepost:invoice | sha256sum
        assert_eq!(in_namespace("fencepost"), Derived::Key(Key::Single(-4_114_992_871_102_624_261)));
        assert_ne!(in_namespace("fencepost"), in_namespace("team_a"));
    }

    #[test]
    fn a_raw_key_is_written_in_one_way() {
        for (name, expected) in [
            ("42", Key::Single(42)),
            ("-9223372036854775808", Key::Single(i64::MIN)),
            ("1,2", Key::Pair(1, 2)),
            ("-1,2147483647", Key::Pair(-1, i32::MAX)),
        ] {
            assert_eq!(key(KeyRule::Raw, name), expected);
            assert_eq!(expected.to_string(), name);
            let (class, object, sub) = expected.columns();
            assert_eq!(Key::from_columns(class, object, sub), expected);
        }
        for invalid in ["a", "042", "+1", "1, 2", "1,2,3", "1,", "9223372036854775808", "2147483648,1", "-0"]
        {
            let error = derive(KeyRule::Raw, "", &LockName::new(invalid).unwrap()).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::BadName, "{invalid}");
            assert!(error.hint().is_some());
        }
    }

    #[test]
    fn columns_of_pg_locks() {
        assert_eq!(Key::Single(1 << 32 | 2).columns(), (1, 2, 1));
        assert_eq!(Key::Single(-1).columns(), (u32::MAX, u32::MAX, 1));
        assert_eq!(Key::Pair(-1, 7).columns(), (u32::MAX, 7, 2));
    }
}
