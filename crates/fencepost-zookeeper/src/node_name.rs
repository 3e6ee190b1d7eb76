//! Lock names as node names: verbatim wherever ZooKeeper can hold them, so that a peer's lock of the same name is the same node.
//!
//! Only these characters are written as `%` and the hexadecimal digits of their bytes:
//!
//! * `/`, which separates nodes, and what ZooKeeper forbids (U+E000–U+F8FF, U+FFF0–U+FFFF, everything above U+FFFF);
//! * the first character of `.`, `..` and `_fencepost`, which would be another node;
//! * a `%` that would otherwise be read as the beginning of one of these escapes, this one included.
//!
//! Every name has exactly one node, and every node name that ZooKeeper allows, except those three, is that of one name.

use std::fmt::Write;

use fencepost_core::LockName;

/// What is ours and no lock, below the chroot.
pub(crate) const RESERVED_NODE: &str = "_fencepost";

/// Returns the name of the node of this lock.
pub(crate) fn encode(name: &str) -> String {
    let mut node = String::with_capacity(name.len());
    for (at, char) in name.char_indices() {
        let is_first_of_reserved = at == 0 && is_reserved(name);
        if is_first_of_reserved || !is_allowed(char) || unescape(&name[at..], at == 0).is_some() {
            for byte in char.encode_utf8(&mut [0; 4]).bytes() {
                // It cannot fail: a string takes everything.
                let _ = write!(node, "%{byte:02X}");
            }
        } else {
            node.push(char);
        }
    }
    node
}

/// Returns the name whose node this is, or nothing if it is the node of no lock.
pub(crate) fn decode(node: &str) -> Option<LockName> {
    let mut name = String::with_capacity(node.len());
    let mut rest = node;
    while let Some(first) = rest.chars().next() {
        let (char, behind) =
            unescape(rest, name.is_empty()).unwrap_or_else(|| (first, &rest[first.len_utf8()..]));
        name.push(char);
        rest = behind;
    }
    let name = LockName::new(name).ok()?;
    (encode(name.as_str()) == node).then_some(name)
}

/// Whether ZooKeeper takes this character in the name of a node.
pub(crate) fn is_allowed(char: char) -> bool {
    // A server has characters above U+FFFF as two surrogates, which it forbids.
    !char.is_control() && !matches!(char, '/' | '\u{e000}'..='\u{f8ff}' | '\u{fff0}'..)
}

/// Whether a node of this name would be another one.
fn is_reserved(name: &str) -> bool {
    matches!(name, "." | ".." | RESERVED_NODE)
}

/// Splits off the escape with which a text begins, if it does: the character that it stands for, and what follows.
fn unescape(text: &str, is_start: bool) -> Option<(char, &str)> {
    let escaped = text.strip_prefix('%')?;
    // An escaped percent sign is one only before what would be an escape otherwise.
    let mut innermost = escaped;
    while let Some(behind) = innermost.strip_prefix("25") {
        innermost = behind;
    }
    let (char, behind) = percent_decoded(innermost)?;
    let stands_for_reserved = || is_start && is_reserved(&format!("{char}{behind}"));
    if is_allowed(char) && !stands_for_reserved() {
        return None;
    }
    Some(escaped.strip_prefix("25").map_or((char, behind), |behind| ('%', behind)))
}

/// Returns the character whose bytes are written here as `XX%XX…`, and what follows.
fn percent_decoded(text: &str) -> Option<(char, &str)> {
    let (mut bytes, mut rest) = (Vec::with_capacity(4), text);
    while bytes.len() < 4 {
        let (digits, behind) = rest.split_at_checked(2)?;
        let is_digit = |byte: u8| matches!(byte, b'0'..=b'9' | b'A'..=b'F');
        if !digits.bytes().all(is_digit) {
            return None;
        }
        bytes.push(u8::from_str_radix(digits, 16).ok()?);
        if let Ok(decoded) = std::str::from_utf8(&bytes) {
            return Some((decoded.chars().next()?, behind));
        }
        rest = behind.strip_prefix('%')?;
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
    fn the_node_of_no_lock_has_no_name() {
        for node in ["_fencepost", ".", "..", "", "a/b", "🦀"] {
            assert_eq!(decode(node), None, "{node}");
        }
    }

    /// All texts of up to four of these pieces, which are those of which escapes are made.
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

    /// Scenario 68: two names never have the same node, and a node tells its name.
    #[test]
    fn every_name_has_a_node_of_its_own() {
        let mut nodes: HashMap<String, String> = HashMap::new();
        for text in every_text() {
            let node = encode(&text);
            assert_eq!(decode(&node).as_ref().map(LockName::as_str), Some(text.as_str()), "{node}");
            assert!(node.chars().all(is_allowed) && !is_reserved(&node), "{node}");
            let other = nodes.insert(node, text.clone()).filter(|other| *other != text);
            assert_eq!(other, None, "{text} has the same node");
        }
    }

    /// Scenario 68: whatever node a peer may use, there is a name for it; its own, unless it reads as an escape.
    #[test]
    fn every_node_is_that_of_a_name() {
        for text in every_text().filter(|text| text.chars().all(is_allowed) && !is_reserved(text)) {
            let name = decode(&text).unwrap_or_else(|| panic!("{text} has no name"));
            assert_eq!(encode(name.as_str()), text);
        }
    }
}
