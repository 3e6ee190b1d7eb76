//! The name of a lock for `GET_LOCK`, derived from Fencepost's name as other programs derive it.
//!
//! The server's names have at most 64 characters on MySQL and 192 bytes on MariaDB, belong to all databases of the server, and MySQL
//! does not distinguish case.

use std::fmt::Write;

use fencepost_core::{Error, ErrorKind, LockName, Result};
use sha2::{Digest, Sha256, Sha512};

use crate::config::{Config, KeyRule};

/// The longest name, in characters and in bytes.
const MAX_CHARS: usize = 64;
const MAX_BYTES: usize = 192;

/// Derives the server's name of a lock.
///
/// # Errors
/// [`ErrorKind::BadName`] if the name itself is to be the server's and is too long for it.
pub(crate) fn derive(rule: KeyRule, config: &Config, name: &LockName) -> Result<String> {
    let name = name.as_str();
    match rule {
        // 240 bits: no two names have the same. Some servers do not distinguish case in the names of databases.
        KeyRule::Sha256 => {
            let text = format!("{}/{}:{name}", config.database.to_lowercase(), config.namespace);
            Ok(format!("fp_{}", hex(&Sha256::digest(text)[..30])))
        }
        KeyRule::Sha256Hex => Ok(hex(&Sha256::digest(name))),
        KeyRule::Madelson => Ok(madelson(name)),
        KeyRule::Raw if name.chars().count() <= MAX_CHARS && name.len() <= MAX_BYTES => Ok(name.to_owned()),
        KeyRule::Raw => {
            let text = format!("lock {name:?} is too long for a named lock of the server");
            let hint = format!(
                "with key=raw a name has at most {MAX_CHARS} characters; key=sha256 has no such limit"
            );
            Err(Error::new(ErrorKind::BadName, text).with_hint(hint))
        }
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}

/// As `DistributedLock.MySql` does: a name that is lower case and short enough is kept; of any other, 32 characters are followed by 32
/// characters of its hash.
fn madelson(name: &str) -> String {
    let lower = name.to_lowercase();
    if lower == name && name.chars().count() <= MAX_CHARS {
        return lower;
    }
    let digest = Sha512::digest(name);
    // Five bits a character, the lowest first.
    let bit = |at: usize| digest[at / 8] >> (at % 8) & 1;
    let digit = |at: usize| (0..5).fold(0, |value, offset| value | bit(5 * at + offset) << offset);
    let hash =
        (0..MAX_CHARS / 2).map(|at| char::from(b"abcdefghijklmnopqrstuvwxyz234567"[usize::from(digit(at))]));
    lower.chars().take(MAX_CHARS / 2).chain(hash).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::parse;

    fn key(rule: KeyRule, name: &str) -> Result<String> {
        derive(rule, &parse("mysql://h/app?mode=named").unwrap(), &LockName::new(name).unwrap())
    }

    #[test]
    fn keys_of_peers() {
        assert_eq!(key(KeyRule::Madelson, "MyLock").unwrap(), "mylock6isuyjwnkexb4ujf4m7j37hstmoxe3vx");
        assert_eq!(key(KeyRule::Madelson, "my lock").unwrap(), "my lock");
        assert_eq!(key(KeyRule::Madelson, &"A".repeat(200)).unwrap().len(), 64);
        assert_eq!(key(KeyRule::Raw, "Ärger/1").unwrap(), "Ärger/1");
        // printf mylock | sha256sum
        let hashed = "441b504f1f54f453e0be145fbc334aa2745fe231add3c914aa0ce2de64befca2";
        assert_eq!(key(KeyRule::Sha256Hex, "mylock").unwrap(), hashed);
    }

    #[test]
    fn a_key_of_its_own_depends_on_database_and_namespace() {
        let of = |url: &str, name: &str| {
            derive(KeyRule::Sha256, &parse(url).unwrap(), &LockName::new(name).unwrap()).unwrap()
        };
        let keys = [
            of("mysql://h/app?mode=named", "a"),
            of("mysql://h/app?mode=named", "A"),
            of("mysql://h/other?mode=named", "a"),
            of("mysql://h/app?mode=named&namespace=team", "a"),
            of("mysql://h/app?mode=named", &"a".repeat(512)),
        ];
        // printf app/fencepost:a | sha256sum
        assert!(keys[0].starts_with("fp_45c9e30248155fb72b6c30a381a82f2b"), "{}", keys[0]);
        assert_eq!(of("mysql://h/App?mode=named", "a"), keys[0], "it may be the same database");
        for (at, key) in keys.iter().enumerate() {
            assert!(key.len() == 63 && *key == key.to_lowercase(), "{key}");
            assert!(!keys[at + 1..].contains(key), "{key}");
        }
    }

    #[test]
    fn a_raw_name_that_is_too_long_is_refused() {
        for name in ["x".repeat(65), "\u{6F22}".repeat(65), "\u{1F512}".repeat(49)] {
            let error = key(KeyRule::Raw, &name).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::BadName);
            assert!(error.hint().is_some());
        }
        assert!(key(KeyRule::Raw, &"\u{6F22}".repeat(64)).is_ok());
    }
}
