//! The names of keys and channels, and their slots in a cluster.
//!
//! On one server all keys of a namespace share the prefix `NAMESPACE:`. In a cluster the prefix of a lock ends with a
//! hash tag, so that all its keys are in one slot: the tag that is part of the name (`{order42}/pay`), as usual in Redis, or
//! else the name itself. With a dialect the lock's key is that of the other library, and Fencepost's own keys are below
//! `NAMESPACE:peer:`.

use std::borrow::Cow;

use crate::dialect::Dialect;

/// The number of slots of a cluster.
pub(crate) const SLOTS: u16 = 16384;

/// The names of keys and channels.
#[derive(Clone, Debug)]
pub(crate) struct Layout {
    namespace: String,
    is_cluster: bool,
    /// The other library whose key format is used, if any.
    pub(crate) dialect: Option<Dialect>,
}

impl Layout {
    /// What follows the namespace in keys and channels. `a:l` is not a valid namespace: `a:l:c` is a lock of the namespace `a`.
    pub(crate) const KINDS: [&str; 10] = ["about", "c", "ch", "d", "l", "peer", "q", "t", "v", "w"];

    pub(crate) fn new(namespace: &str, is_cluster: bool, dialect: Option<Dialect>) -> Self {
        Self { namespace: namespace.into(), is_cluster, dialect }
    }

    /// Returns the prefix of the keys of this lock.
    pub(crate) fn prefix(&self, name: &str) -> String {
        if self.is_cluster {
            format!("{}:{{{}}}:", self.namespace, tag(name))
        } else if self.dialect.is_some() {
            format!("{}:peer:", self.namespace)
        } else {
            format!("{}:", self.namespace)
        }
    }

    /// Returns the part of the keys that stands for this lock: its name, or its key in the dialect.
    pub(crate) fn stem<'a>(&self, name: &'a str) -> Cow<'a, str> {
        match &self.dialect {
            None => name.into(),
            Some(dialect) => dialect.key(name).into(),
        }
    }

    /// Returns the name of the lock with this stem.
    pub(crate) fn name_of<'a>(&self, stem: &'a str) -> Option<&'a str> {
        self.dialect.as_ref().map_or(Some(stem), |dialect| dialect.name_in(stem))
    }

    /// Returns the key of the last token. (In a cluster every prefix has its own.)
    pub(crate) fn counter(&self) -> String {
        format!("{}:c", self.namespace)
    }

    /// Returns whether a key is in the namespace.
    pub(crate) fn is_in_namespace(&self, key: &str) -> bool {
        key.strip_prefix(self.namespace.as_str()).is_some_and(|rest| rest.starts_with(':'))
    }

    /// Returns the key with the format and the id of the namespace.
    pub(crate) fn about(&self) -> String {
        format!("{}:about", self.namespace)
    }

    /// Returns the prefix of all channels.
    pub(crate) fn channels(&self) -> String {
        format!("{}:ch:", self.namespace)
    }

    /// Returns a `SCAN` pattern for the keys of all locks whose name begins with this prefix.
    pub(crate) fn pattern(&self, prefix: &str) -> String {
        let kinds = match (self.is_cluster, &self.dialect) {
            (true, _) => "{*}:[lqv]",
            (false, None) => "[lqv]",
            (false, Some(_)) => "peer:[hq]",
        };
        format!("{}:{kinds}:{}*", escape_glob(&self.namespace), escape_glob(&self.stem(prefix)))
    }

    /// Returns the name of the lock that a key belongs to, if [`Layout::pattern`] matches the key.
    pub(crate) fn name_in<'a>(&self, key: &'a str) -> Option<&'a str> {
        let rest = key.strip_prefix(self.namespace.as_str())?.strip_prefix(':')?;
        let rest = if self.is_cluster { rest.strip_prefix('{')?.split_once("}:")?.1 } else { rest };
        let Some(dialect) = &self.dialect else {
            return ["l:", "q:", "v:"].iter().find_map(|kind| rest.strip_prefix(kind));
        };
        let rest = rest.strip_prefix("peer:")?;
        ["h:", "q:"].iter().find_map(|kind| dialect.name_in(rest.strip_prefix(kind)?))
    }
}

/// Returns the hash tag of a lock: the one in its name, or the name itself.
fn tag(name: &str) -> Cow<'_, str> {
    let own = name.split_once('{').and_then(|(_, rest)| rest.split_once('}')).map(|(tag, _)| tag);
    match own {
        Some(tag) if !tag.is_empty() => tag.into(),
        _ if name.contains(['}', '%']) => name.replace('%', "%25").replace('}', "%7D").into(),
        _ => name.into(),
    }
}

/// Escapes a text for use in a pattern.
fn escape_glob(text: &str) -> String {
    let mut pattern = String::with_capacity(text.len());
    for char in text.chars() {
        if "*?[]^\\".contains(char) {
            pattern.push('\\');
        }
        pattern.push(char);
    }
    pattern
}

/// Returns the slot of a key.
pub(crate) fn slot(key: &str) -> u16 {
    let tagged = key.split_once('{').and_then(|(_, rest)| rest.split_once('}')).map(|(tag, _)| tag);
    crc16(tagged.filter(|tag| !tag.is_empty()).unwrap_or(key).as_bytes()) % SLOTS
}

/// CRC-16/XMODEM, as specified by Redis Cluster.
fn crc16(bytes: &[u8]) -> u16 {
    bytes.iter().fold(0, |crc: u16, byte| {
        (0..8).fold(crc ^ (u16::from(*byte) << 8), |crc, _| {
            let shifted = crc << 1;
            if crc & 0x8000 == 0 { shifted } else { shifted ^ 0x1021 }
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slots_are_those_of_redis() {
        // From `CLUSTER KEYSLOT` of a real server.
        for (key, expected) in
            [("foo", 12182), ("123456789", 12739), ("{user1000}.following", 3443), ("foo{}{bar}", 8363)]
        {
            assert_eq!(slot(key), expected, "{key}");
        }
    }

    #[test]
    fn all_keys_of_a_lock_are_in_one_slot() {
        let layout = Layout::new("fp", true, None);
        for name in ["a", "{}", "}", "a}b", "{a", "%7D", "{tag}/a", "a{tag}b", "{{x}}"] {
            let prefix = layout.prefix(name);
            let slots = ["l:", "q:", "t:0", "c", "d"].map(|kind| slot(&format!("{prefix}{kind}{name}")));
            assert!(slots.iter().all(|each| *each == slots[0]), "{name}: {slots:?}");
            assert_eq!(layout.name_in(&format!("{prefix}l:{name}")), Some(name));
        }
        assert_eq!(layout.prefix("{tag}/a"), layout.prefix("{tag}/b"));
        assert_ne!(layout.prefix("a}"), layout.prefix("a%7D"));
    }

    #[test]
    fn a_pattern_matches_only_names_with_the_prefix() {
        let layout = Layout::new("fp", false, None);
        assert_eq!(layout.pattern("a*[b]"), "fp:[lqv]:a\\*\\[b\\]*");
        assert_eq!(layout.name_in("fp:l:x:l:y"), Some("x:l:y"));
        assert_eq!(layout.name_in("fp:t:x"), None);
        assert_eq!(layout.name_in("other:l:x"), None);
    }

    #[test]
    fn locks_in_a_dialect_are_listed_by_the_keys_in_the_namespace() {
        let layout = Layout::new("fp", false, Some(Dialect::PythonRedisLock));
        assert_eq!(layout.pattern("a*"), "fp:peer:[hq]:lock:a\\**");
        assert_eq!(layout.name_in("fp:peer:q:lock:a:b"), Some("a:b"));
        assert_eq!(layout.name_in("fp:peer:t:lock:a"), None);
        assert_eq!(layout.name_in("fp:l:lock:a"), None);
        assert!(layout.is_in_namespace("fp:c"));
        assert!(!layout.is_in_namespace("fpc") && !layout.is_in_namespace("lock:a"));
    }
}
