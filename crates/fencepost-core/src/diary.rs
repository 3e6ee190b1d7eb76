//! Entries that are due at some moment, and which of them is due next: what the state machines have in common.

use std::collections::{BTreeSet, HashMap};
use std::hash::Hash;

use crate::clock::Moment;

/// Something that is due at some moment.
pub(crate) trait Due {
    /// When it is due; [`Moment::NEVER`] if it just waits.
    fn due(&self) -> Moment;
}

/// A map that knows which entry is due next. An entry is changed through [`Diary::change`] alone, so that its moment and
/// its place cannot differ.
#[derive(Debug)]
pub(crate) struct Diary<K, V> {
    entries: HashMap<K, V>,
    by_moment: BTreeSet<(Moment, K)>,
}

impl<K, V> Default for Diary<K, V> {
    fn default() -> Self {
        Self { entries: HashMap::new(), by_moment: BTreeSet::new() }
    }
}

impl<K: Copy + Ord + Hash, V: Due> Diary<K, V> {
    pub(crate) fn insert(&mut self, key: K, entry: V) {
        self.remove(key);
        self.by_moment.insert((entry.due(), key));
        self.entries.insert(key, entry);
    }

    pub(crate) fn remove(&mut self, key: K) -> Option<V> {
        let entry = self.entries.remove(&key)?;
        self.by_moment.remove(&(entry.due(), key));
        Some(entry)
    }

    pub(crate) fn get(&self, key: K) -> Option<&V> {
        self.entries.get(&key)
    }

    pub(crate) fn change<T>(&mut self, key: K, act: impl FnOnce(&mut V) -> T) -> Option<T> {
        let entry = self.entries.get_mut(&key)?;
        let before = entry.due();
        let out = act(entry);
        let after = entry.due();
        if before != after {
            self.by_moment.remove(&(before, key));
            self.by_moment.insert((after, key));
        }
        Some(out)
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (K, &V)> {
        self.entries.iter().map(|(key, entry)| (*key, entry))
    }

    /// When the next entry is due.
    pub(crate) fn next(&self) -> Moment {
        self.by_moment.first().map_or(Moment::NEVER, |(at, _)| *at)
    }

    /// The first entry that is due by now.
    pub(crate) fn first_due(&self, now: Moment) -> Option<K> {
        self.by_moment.first().filter(|(at, _)| *at <= now).map(|(_, key)| *key)
    }

    /// All entries, the next one first.
    pub(crate) fn in_order(&self) -> impl Iterator<Item = (Moment, K)> {
        self.by_moment.iter().copied()
    }
}
