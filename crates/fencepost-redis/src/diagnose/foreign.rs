//! Identifies the library that wrote a key, by its format.

use redis::Value;

use crate::decode::text;

/// The part of a key's value that identifies the library.
pub(super) enum Content<'a> {
    String(&'a [u8]),
    /// Names of fields.
    Hash(&'a Value),
    /// Members.
    SortedSet(&'a Value),
}

/// A key of an unknown format.
pub(super) const UNKNOWN: &str = "not a lock of a known library";

/// Returns the library that writes such values, and the URL option that shares the lock with it.
pub(super) fn identify(content: &Content<'_>) -> &'static str {
    match content {
        Content::String(bytes) => of_string(bytes),
        Content::Hash(fields) if texts(fields).any(is_redisson) => {
            "a lock of Redisson, which Fencepost cannot share yet"
        }
        Content::SortedSet(members) if texts(members).any(|member| member == "__write__") => {
            "a lock of Symfony, which Fencepost cannot share"
        }
        Content::Hash(_) | Content::SortedSet(_) => UNKNOWN,
    }
}

fn of_string(bytes: &[u8]) -> &'static str {
    let all = |is: fn(&u8) -> bool| bytes.iter().all(is);
    let is_base64 = |byte: &u8| byte.is_ascii_alphanumeric() || b"+/=".contains(byte);
    match bytes.len() {
        _ if bytes.starts_with(b"ADDED:") => "a lock of ShedLock (dialect=shedlock)",
        32 if all(u8::is_ascii_hexdigit) => "a lock of redis-py, tooz or node-redlock (dialect=redis-py)",
        36 if is_uuid(bytes) => "a lock of pottery or redis-semaphore (layout=raw)",
        24 if bytes.ends_with(b"==") && bytes.iter().all(is_base64) => "a lock of redsync (dialect=redsync)",
        24 if bytes.iter().all(is_base64) => "a lock of python-redis-lock (dialect=python-redis-lock)",
        20 if !bytes.is_ascii() => "a lock of rslock (dialect=rslock)",
        _ => "a string, perhaps a lock (layout=raw)",
    }
}

fn texts(value: &Value) -> impl Iterator<Item = &str> {
    let items = match value {
        Value::Array(items) | Value::Set(items) => items.as_slice(),
        _ => &[],
    };
    items.iter().filter_map(|item| text(Some(item)))
}

/// `<uuid>:<thread>`.
fn is_redisson(field: &str) -> bool {
    field.rsplit_once(':').is_some_and(|(id, thread)| is_uuid(id.as_bytes()) && thread.parse::<u64>().is_ok())
}

fn is_uuid(text: &[u8]) -> bool {
    text.len() == 36 && text.iter().all(|byte| *byte == b'-' || byte.is_ascii_hexdigit())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_format_is_identified() {
        let binary: Vec<u8> = (0..20).map(|byte| byte * 13).collect();
        let strings: [(&[u8], &str); 7] = [
            (b"0123456789abcdef0123456789abcdef", "redis-py"),
            (b"8743c9c0-0795-4907-87fd-6c719a6b4586", "pottery"),
            (b"AAAAAAAAAAAAAAAAAAAAAA==", "redsync"),
            (b"AAAAAAAAAAAAAAAAAAAAAAAA", "python-redis-lock"),
            (&binary, "rslock"),
            (b"ADDED:2026-01-01T00:00:00Z@host:x", "ShedLock"),
            (b"hello", "layout=raw"),
        ];
        for (value, library) in strings {
            assert!(identify(&Content::String(value)).contains(library), "{library}");
        }
        let list = |item: &str| Value::Array(vec![Value::BulkString(item.into())]);
        let redisson = list("8743c9c0-0795-4907-87fd-6c719a6b4586:1");
        assert!(identify(&Content::Hash(&redisson)).contains("Redisson"));
        assert!(identify(&Content::SortedSet(&list("__write__"))).contains("Symfony"));
        assert!(identify(&Content::Hash(&list("a"))).starts_with("not a lock"));
    }
}
