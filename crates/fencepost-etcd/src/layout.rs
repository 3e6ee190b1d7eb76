//! The names of all keys. Every attempt has its own key below the name of the lock; all other keys are elsewhere.

use fencepost_contenders::EntryMeta;
use fencepost_core::{LockName, Mode, Owner, Want};

use crate::config::Layout;
use crate::proto::KeyValue;

/// The names of the keys in one namespace and layout.
#[derive(Clone, Debug)]
pub(crate) struct Keys {
    namespace: String,
    pub(crate) layout: Layout,
}

/// A range of keys: `start` is included, `end` is not.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct KeyRange {
    pub(crate) start: Vec<u8>,
    pub(crate) end: Vec<u8>,
}

/// The lock and the mode that the key of an entry names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct EntryKey {
    pub(crate) name: LockName,
    pub(crate) mode: Mode,
}

impl Keys {
    pub(crate) fn new(namespace: &str, layout: Layout) -> Self {
        Self { namespace: namespace.to_owned(), layout }
    }

    /// Returns whether a lock of this name would overlap with the keys of the namespace, in layouts whose locks are not
    /// below it.
    pub(crate) fn is_reserved(&self, name: &LockName) -> bool {
        let (name, namespace) = (name.as_str(), self.namespace.as_str());
        let is_within = |inner: &str, outer: &str| {
            inner.strip_prefix(outer).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
        };
        match self.layout {
            Layout::Own => false,
            // All keys below the name of a lock are in its queue.
            Layout::Raw => is_within(name, namespace) || is_within(namespace, name),
            Layout::Single => is_within(name, namespace),
        }
    }

    /// Returns the key with the stored format and the storage id.
    pub(crate) fn about(&self) -> Vec<u8> {
        format!("{}/about", self.namespace).into_bytes()
    }

    /// Returns the key of the persistent cell of a lock.
    pub(crate) fn cell(&self, name: &LockName) -> Vec<u8> {
        format!("{}/cell/{}", self.namespace, encoded(name)).into_bytes()
    }

    /// Returns the range of the persistent cells of all locks whose names start with this.
    pub(crate) fn cells(&self, prefix: &str) -> KeyRange {
        KeyRange::prefix(format!("{}/cell/{}", self.namespace, escaped(prefix)))
    }

    /// Returns the key of the tombstone of an owner: while it exists, an acquire of this owner on this lease does nothing.
    pub(crate) fn tombstone(&self, owner: Owner, lease_id: i64) -> Vec<u8> {
        format!("{}/left/{}/{lease_id:x}", self.namespace, owner.to_hex()).into_bytes()
    }

    fn queue_prefix(&self, name: &LockName) -> String {
        match self.layout {
            Layout::Own => format!("{}/lock/{}/", self.namespace, encoded(name)),
            Layout::Raw => format!("{name}/"),
            Layout::Single => name.to_string(),
        }
    }

    /// Returns the range of all entries of a lock.
    pub(crate) fn queue(&self, name: &LockName) -> KeyRange {
        match self.layout {
            Layout::Own | Layout::Raw => KeyRange::prefix(self.queue_prefix(name)),
            Layout::Single => KeyRange::single(name.as_str()),
        }
    }

    /// Returns the range of the entries of all locks whose names start with this.
    pub(crate) fn queues(&self, prefix: &str) -> KeyRange {
        if self.layout != Layout::Own {
            return KeyRange::prefix(prefix);
        }
        KeyRange::prefix(format!("{}/lock/{}", self.namespace, escaped(prefix)))
    }

    /// Returns the key of an entry with this suffix.
    pub(crate) fn entry(&self, want: &Want, suffix: &str) -> Vec<u8> {
        let prefix = self.queue_prefix(&want.name);
        let key = match self.layout {
            Layout::Own => format!("{prefix}{}/{suffix}", want.mode.to_word()),
            Layout::Raw => prefix + suffix,
            Layout::Single => prefix,
        };
        key.into_bytes()
    }

    /// Returns the range of entries of which any keeps an attempt that does not wait from acquiring. `None` for a
    /// semaphore, where their number decides.
    pub(crate) fn blocking(&self, want: &Want) -> Option<KeyRange> {
        match want.mode {
            Mode::Shared => Some(KeyRange::prefix(self.queue_prefix(&want.name) + "x/")),
            Mode::Semaphore { .. } => None,
            _ => Some(self.queue(&want.name)),
        }
    }

    /// Returns the range of entries of which the older ones decide whether an attempt holds.
    pub(crate) fn ahead(&self, want: &Want) -> KeyRange {
        self.blocking(want).unwrap_or_else(|| self.queue(&want.name))
    }

    /// Returns the ranges of entries that use the lock in an incompatible way: as a semaphore of another size, or as none.
    pub(crate) fn incompatible(&self, want: &Want) -> Vec<KeyRange> {
        if self.layout != Layout::Own {
            return Vec::new();
        }
        let prefix = self.queue_prefix(&want.name);
        match want.mode {
            Mode::Semaphore { .. } => {
                let all = KeyRange::prefix(prefix.clone());
                let same = KeyRange::prefix(format!("{prefix}{}/", want.mode.to_word()));
                vec![
                    KeyRange { start: all.start, end: same.start },
                    KeyRange { start: same.end, end: all.end },
                ]
            }
            _ => vec![KeyRange::prefix(prefix + "n")],
        }
    }

    /// Parses the key of an entry. In the layouts `raw` and `single` every key is an exclusive entry.
    pub(crate) fn parse_entry(&self, key: &[u8]) -> Option<EntryKey> {
        let key = std::str::from_utf8(key).ok()?;
        let foreign = match self.layout {
            Layout::Own => None,
            Layout::Raw => Some(key.rsplit_once('/')?.0),
            Layout::Single => Some(key),
        };
        if let Some(name) = foreign {
            return Some(EntryKey { name: LockName::new(name).ok()?, mode: Mode::Exclusive });
        }
        let rest = key.strip_prefix(&self.namespace)?.strip_prefix("/lock/")?;
        let mut parts = rest.split('/');
        let name = LockName::new(decoded(parts.next()?)?).ok()?;
        Some(EntryKey { name, mode: parts.next().and_then(Mode::from_word).unwrap_or(Mode::Exclusive) })
    }

    /// Returns the mode of the entry with this key.
    pub(crate) fn mode_of(&self, key: &KeyValue) -> Mode {
        self.parse_entry(&key.key).map_or(Mode::Exclusive, |entry| entry.mode)
    }

    /// Returns the lock that the key of a persistent cell belongs to.
    pub(crate) fn parse_cell(&self, key: &[u8]) -> Option<LockName> {
        let rest = std::str::from_utf8(key).ok()?.strip_prefix(&self.namespace)?.strip_prefix("/cell/")?;
        LockName::new(decoded(rest)?).ok()
    }
}

impl KeyRange {
    /// Returns the range of this key only.
    fn single(key: &str) -> Self {
        Self { start: key.into(), end: [key.as_bytes(), &[0]].concat() }
    }

    /// Returns the range of all keys that start with this.
    fn prefix(prefix: impl Into<Vec<u8>>) -> Self {
        let start = prefix.into();
        let mut end = start.clone();
        while let Some(last) = end.pop() {
            if last < u8::MAX {
                end.push(last + 1);
                return Self { start, end };
            }
        }
        // An end of "\0" means all keys from the start on.
        Self { start: if start.is_empty() { vec![0] } else { start }, end: vec![0] }
    }
}

/// Returns whether the value of a key names this owner. Suffixes are reused, so the name of a key does not tell whose it is.
pub(crate) fn is_owned_by(key: &KeyValue, owner: Owner) -> bool {
    EntryMeta::from_bytes(&key.value).is_some_and(|entry_meta| entry_meta.owner == owner)
}

/// Escapes the two characters with a meaning in keys, so that the queue of no lock contains that of another.
fn encoded(name: &LockName) -> String {
    escaped(name.as_str())
}

fn escaped(text: &str) -> String {
    text.replace('%', "%25").replace('/', "%2F")
}

fn decoded(text: &str) -> Option<String> {
    let mut parts = text.split('%');
    let mut name = parts.next()?.to_owned();
    for part in parts {
        let (code, rest) = part.split_at_checked(2)?;
        name.push(match code {
            "25" => '%',
            "2F" => '/',
            _ => return None,
        });
        name.push_str(rest);
    }
    Some(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn want(name: &str, mode: Mode) -> Want {
        Want { name: LockName::new(name).unwrap(), mode }
    }

    fn contains(range: &KeyRange, key: &[u8]) -> bool {
        range.start.as_slice() <= key && key < range.end.as_slice()
    }

    /// Scenario 40, and names that look like parts of a key.
    #[test]
    fn no_queue_contains_another() {
        let keys = Keys::new("fencepost", Layout::Own);
        let names = ["a", "a/b", "a%2Fb", "a/x/0", "about", "%", "/", "\u{10ffff}", "a0", "a%25"];
        for name in names {
            let mine = want(name, Mode::Exclusive);
            let key = keys.entry(&mine, "1f-0");
            assert_eq!(keys.parse_entry(&key), Some(EntryKey { name: mine.name.clone(), mode: mine.mode }));
            for other in names {
                let queue = keys.queue(&want(other, Mode::Exclusive).name);
                assert_eq!(contains(&queue, &key), name == other, "{name:?} in {other:?}");
            }
            assert_eq!(keys.parse_cell(&keys.cell(&mine.name)), Some(mine.name));
        }
    }

    #[test]
    fn incompatible_modes_are_found_by_range() {
        let keys = Keys::new("n", Layout::Own);
        let modes = [
            Mode::Exclusive,
            Mode::Shared,
            Mode::Semaphore { permits: 1 },
            Mode::Semaphore { permits: 2 },
            Mode::Semaphore { permits: 10 },
            Mode::Semaphore { permits: 11 },
        ];
        for mine in modes {
            for other in modes {
                let key = keys.entry(&want("a", other), "1f-0");
                let ranges = keys.incompatible(&want("a", mine));
                let found = ranges.iter().any(|range| contains(range, &key));
                assert_eq!(found, !mine.agrees_with(other), "{mine} and {other}");
            }
        }
    }

    #[test]
    fn raw_keys_have_the_form_of_the_official_recipe() {
        let keys = Keys::new("n", Layout::Raw);
        let mine = want("jobs/a", Mode::Exclusive);
        let key = keys.entry(&mine, "1f-0");
        assert_eq!(key, b"jobs/a/1f-0");
        assert_eq!(
            keys.parse_entry(b"jobs/a/694d7c1f"),
            Some(EntryKey { name: mine.name.clone(), mode: mine.mode })
        );
        assert!(contains(&keys.queue(&mine.name), &key));
        let deep = Keys::new("team/a", Layout::Raw);
        for (name, is_reserved) in
            [("team", true), ("team/a", true), ("team/a/x", true), ("tea", false), ("team/b", false)]
        {
            assert_eq!(deep.is_reserved(&LockName::new(name).unwrap()), is_reserved, "{name}");
        }
    }

    #[test]
    fn with_layout_single_the_queue_is_one_key() {
        let keys = Keys::new("n", Layout::Single);
        let mine = want("jobs/a", Mode::Exclusive);
        assert_eq!(keys.entry(&mine, "1f-0"), b"jobs/a");
        assert!(contains(&keys.queue(&mine.name), b"jobs/a"));
        assert!(!contains(&keys.queue(&mine.name), b"jobs/ab"));
        assert!(keys.is_reserved(&LockName::new("n/about").unwrap()) && !keys.is_reserved(&mine.name));
    }
}
