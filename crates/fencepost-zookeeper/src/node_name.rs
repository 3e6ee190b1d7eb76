//! Encodes lock names as node names: verbatim wherever ZooKeeper allows it, so that a lock of the same name in another
//! library is the same node.
//!
//! Only these characters are written as `%` and the hexadecimal digits of their bytes:
//!
//! * `/`, which separates nodes, and the characters that ZooKeeper forbids (U+E000–U+F8FF, U+FFF0–U+FFFF, everything
//!   above U+FFFF);
//! * the first character of `.`, `..` and `_fencepost`, which are other nodes;
//! * a `%` that would otherwise be read as the beginning of such an escape, this one included.
//!
//! Every name has exactly one node, and every node name that ZooKeeper allows, except those three, belongs to one name.

use std::fmt::Write;

use fencepost_core::LockName;

/// The node below the chroot that is not a lock but contains Fencepost's own nodes.
pub(crate) const RESERVED_NODE: &str = "_fencepost";

/// Returns the node name of this lock.
pub(crate) fn encode(name: &str) -> String {
    let mut node = String::with_capacity(name.len());
    for (at, char) in name.char_indices() {
        let is_first_of_reserved = at == 0 && is_reserved(name);
        if is_first_of_reserved || !is_allowed(char) || unescape(&name[at..], at == 0).is_some() {
            for byte in char.encode_utf8(&mut [0; 4]).bytes() {
                // Writing to a string cannot fail.
                let _ = write!(node, "%{byte:02X}");
            }
        } else {
            node.push(char);
        }
    }
    node
}

/// Returns the lock name of this node, or `None` if the node is not a lock.
pub(crate) fn decode(node: &str) -> Option<LockName> {
    let mut name = String::with_capacity(node.len());
    let mut rest = node;
    while let Some(first) = rest.chars().next() {
        let (char, tail) =
            unescape(rest, name.is_empty()).unwrap_or_else(|| (first, &rest[first.len_utf8()..]));
        name.push(char);
        rest = tail;
    }
    let name = LockName::new(name).ok()?;
    (encode(name.as_str()) == node).then_some(name)
}

/// Returns whether ZooKeeper allows this character in node names.
pub(crate) fn is_allowed(char: char) -> bool {
    // Servers represent characters above U+FFFF as two surrogates, which they forbid.
    !char.is_control() && !matches!(char, '/' | '\u{e000}'..='\u{f8ff}' | '\u{fff0}'..)
}

/// Returns whether this node name is taken by another node.
fn is_reserved(name: &str) -> bool {
    matches!(name, "." | ".." | RESERVED_NODE)
}

/// Splits a text that begins with an escape into the escaped character and the rest.
fn unescape(text: &str, is_start: bool) -> Option<(char, &str)> {
    let escaped = text.strip_prefix('%')?;
    // A percent sign is escaped only before what would otherwise be an escape.
    let mut innermost = escaped;
    while let Some(tail) = innermost.strip_prefix("25") {
        innermost = tail;
    }
    let (char, tail) = percent_decoded(innermost)?;
    let is_reserved_name = || is_start && is_reserved(&format!("{char}{tail}"));
    if is_allowed(char) && !is_reserved_name() {
        return None;
    }
    Some(escaped.strip_prefix("25").map_or((char, tail), |tail| ('%', tail)))
}

/// Returns the character whose bytes are written here as `XX%XX…`, and the rest.
fn percent_decoded(text: &str) -> Option<(char, &str)> {
    let (mut bytes, mut rest) = (Vec::with_capacity(4), text);
    while bytes.len() < 4 {
        let (digits, tail) = rest.split_at_checked(2)?;
        let is_digit = |byte: u8| matches!(byte, b'0'..=b'9' | b'A'..=b'F');
        if !digits.bytes().all(is_digit) {
            return None;
        }
        bytes.push(u8::from_str_radix(digits, 16).ok()?);
        if let Ok(decoded) = std::str::from_utf8(&bytes) {
            return Some((decoded.chars().next()?, tail));
        }
        rest = tail.strip_prefix('%')?;
    }
    None
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use super::*;

    fn name(text: &str) -> LockName {
        LockName::new(text).unwrap()
    }

    #[test]
    fn names_become_nodes_and_back() {
        for (text, node) in [
            ("invoice", "invoice"),
            ("müller", "müller"),
            ("a b{}*'", "a b{}*'"),
            ("Ä漢字", "Ä漢字"),
            ("100%", "100%"),
            ("a%b", "a%b"),
            ("a%20b", "a%20b"),
            ("a%C3%BC", "a%C3%BC"),
            ("a%25b", "a%25b"),
            ("%2f", "%2f"),
            ("invoice/42", "invoice%2F42"),
            ("%/", "%%2F"),
            ("%2/", "%2%2F"),
            ("%2F", "%252F"),
            ("%252F", "%25252F"),
            ("🦀", "%F0%9F%A6%80"),
            ("%F0%9F%A6%80", "%25F0%9F%A6%80"),
            ("%F0%9F%A6🦀", "%F0%9F%A6%F0%9F%A6%80"),
            ("\u{f8ff}\u{fffd}", "%EF%A3%BF%EF%BF%BD"),
            (".", "%2E"),
            ("..", "%2E."),
            ("...", "..."),
            ("%2E", "%252E"),
            ("%2E.", "%252E."),
            ("%252E", "%25252E"),
            ("%2Ea", "%2Ea"),
            ("a%2E", "a%2E"),
            ("zookeeper", "zookeeper"),
            ("_fencepost", "%5Ffencepost"),
            ("%5Ffencepost", "%255Ffencepost"),
            ("_fencepost/x", "_fencepost%2Fx"),
            ("_FENCEPOST", "_FENCEPOST"),
        ] {
            assert_eq!(encode(text), node);
            assert_eq!(decode(node), Some(name(text)));
        }
    }

    #[test]
    fn nodes_that_are_not_locks_have_no_name() {
        for node in ["_fencepost", ".", "..", "", "a/b", "🦀"] {
            assert_eq!(decode(node), None, "{node}");
        }
    }

    /// All texts of up to four of these pieces, of which escapes consist.
    fn every_text() -> impl Iterator<Item = String> {
        let pieces =
            ["%", "2", "5", "F", "E", ".", "/", "_fencepost", "%5Ffencepost", "ü", "🦀", "%F0%9F%A6%80"];
        (1..=4).flat_map(move |count| {
            (0..pieces.len().pow(count)).map(move |number| {
                let digits = (0..count).scan(number, |rest, _| {
                    let digit = *rest % pieces.len();
                    *rest /= pieces.len();
                    Some(pieces[digit])
                });
                digits.collect()
            })
        })
    }

    /// Scenario 68: two names never have the same node, and a node can be decoded to its name.
    #[test]
    fn every_name_has_its_own_node() {
        let mut nodes: HashMap<String, String> = HashMap::new();
        for text in every_text() {
            let node = encode(&text);
            assert_eq!(decode(&node).as_ref().map(LockName::as_str), Some(text.as_str()), "{node}");
            assert!(node.chars().all(is_allowed) && !is_reserved(&node), "{node}");
            let other = nodes.insert(node, text.clone()).filter(|other| *other != text);
            assert_eq!(other, None, "{text} has the same node");
        }
    }

    /// Scenario 68: every node that another library may use has a name; the same, unless it reads as an escape.
    #[test]
    fn every_allowed_node_has_a_name() {
        for text in every_text().filter(|text| text.chars().all(is_allowed) && !is_reserved(text)) {
            let name = decode(&text).unwrap_or_else(|| panic!("{text} has no name"));
            assert_eq!(encode(name.as_str()), text);
        }
    }
}
