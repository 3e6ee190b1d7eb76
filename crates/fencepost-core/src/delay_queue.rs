//! A map whose entries have due times, with access to the next one.

use std::collections::{BTreeSet, HashMap};
use std::hash::Hash;

use crate::clock::Moment;

/// A value with a due time.
pub(crate) trait Due {
    /// Returns when it is due; [`Moment::NEVER`] if it is not.
    fn due(&self) -> Moment;
}

/// A map with its entries ordered by due time. Entries are changed only through [`DelayQueue::change`], which keeps the order
/// up to date.
#[derive(Debug)]
pub(crate) struct DelayQueue<K, V> {
    entries: HashMap<K, V>,
    /// The entries that have a due time.
    by_moment: BTreeSet<(Moment, K)>,
}

impl<K, V> Default for DelayQueue<K, V> {
    fn default() -> Self {
        Self { entries: HashMap::new(), by_moment: BTreeSet::new() }
    }
}

impl<K: Copy + Ord + Hash, V: Due> DelayQueue<K, V> {
    pub(crate) fn insert(&mut self, key: K, entry: V) {
        self.remove(key);
        self.moved(key, Moment::NEVER, entry.due());
        self.entries.insert(key, entry);
    }

    pub(crate) fn remove(&mut self, key: K) -> Option<V> {
        let entry = self.entries.remove(&key)?;
        self.moved(key, entry.due(), Moment::NEVER);
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
        self.moved(key, before, after);
        Some(out)
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (K, &V)> {
        self.entries.iter().map(|(key, entry)| (*key, entry))
    }

    /// Returns when the next entry is due.
    pub(crate) fn next_due(&self) -> Moment {
        self.by_moment.first().map_or(Moment::NEVER, |(at, _)| *at)
    }

    /// Returns all entries that have a due time, the next one first.
    pub(crate) fn in_order(&self) -> impl Iterator<Item = (Moment, K)> {
        self.by_moment.iter().copied()
    }

    fn moved(&mut self, key: K, from: Moment, to: Moment) {
        if from == to {
            return;
        }
        if from != Moment::NEVER {
            self.by_moment.remove(&(from, key));
        }
        if to != Moment::NEVER {
            self.by_moment.insert((to, key));
        }
    }
}
