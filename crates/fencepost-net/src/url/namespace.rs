//! Validates the namespace with which all keys of a client begin.

use fencepost_core::Result;

use super::bad;

/// The longest namespace: keys begin with it, and patterns of access rights must be able to contain it.
const MAX_NAMESPACE_BYTES: usize = 64;

/// Returns the namespace if its keys cannot be mistaken for those of another one: no part of it after a `separator` is one of
/// the `kinds` of keys that each namespace has.
///
/// # Errors
/// If it is malformed, or contains such a part.
pub fn checked_namespace(namespace: &str, separator: char, kinds: &[&str]) -> Result<String> {
    let is_allowed = |char: char| char.is_ascii_alphanumeric() || "-_.:/".contains(char);
    if namespace.is_empty() || namespace.len() > MAX_NAMESPACE_BYTES || !namespace.chars().all(is_allowed) {
        return Err(bad(format!(
            "a namespace has 1 to {MAX_NAMESPACE_BYTES} letters, digits or any of - _ . : /"
        )));
    }
    if namespace.split(separator).skip(1).any(|part| kinds.contains(&part)) {
        let separator = if separator == ':' { "colon" } else { "slash" };
        let hint = format!("none of its parts after a {separator} may be one of {}", kinds.join(", "));
        return Err(bad("the keys of the namespace would be those of another one").with_hint(hint));
    }
    Ok(namespace.to_owned())
}

#[cfg(test)]
mod tests {
    use fencepost_core::ErrorKind;

    use super::*;

    #[test]
    fn a_namespace_is_not_inside_another_one() {
        let check = |namespace: &str| checked_namespace(namespace, '/', &["lock", "cell"]);
        for valid in ["a", "lock", "team/a", "a/locks", "a:lock", "A-1_2.3"] {
            assert_eq!(check(valid).unwrap(), valid);
        }
        for invalid in ["", "a b", "ä", "{a}", "a/lock", "a/cell/b", &"a".repeat(65)] {
            assert_eq!(check(invalid).unwrap_err().kind(), ErrorKind::BadConfig, "{invalid}");
        }
    }
}
