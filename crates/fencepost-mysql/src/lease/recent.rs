//! Locks that were found in some state a short while ago.

use std::collections::{BTreeSet, HashMap};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use fencepost_core::LockName;
use fencepost_core::clock::{Clock, Moment};

/// How many locks are remembered before those of long ago are dropped.
const MAX_LOCKS: usize = 4096;

/// The locks, and when they were last found in that state.
pub(crate) struct RecentLocks {
    clock: Clock,
    /// How long a lock is remembered.
    kept: Duration,
    found: Mutex<HashMap<LockName, Moment>>,
}

impl RecentLocks {
    pub(crate) fn new(clock: Clock, kept: Duration) -> Self {
        Self { clock, kept, found: Mutex::default() }
    }

    /// Returns those of these locks that are remembered.
    pub(crate) fn among(&self, names: &BTreeSet<LockName>) -> Vec<LockName> {
        let found = self.found();
        if found.is_empty() {
            return Vec::new();
        }
        let now = self.clock.now();
        let is_recent = |name: &&LockName| found.get(*name).is_some_and(|at| now.since(*at) < self.kept);
        names.iter().filter(is_recent).cloned().collect()
    }

    /// Returns whether this lock is remembered.
    pub(crate) fn contains(&self, name: &LockName) -> bool {
        self.found().get(name).is_some_and(|at| self.clock.now().since(*at) < self.kept)
    }

    /// Remembers a lock in that state, or forgets it.
    pub(crate) fn set(&self, name: &LockName, is_found: bool) {
        if is_found {
            self.insert(name.clone());
        } else {
            self.remove(name);
        }
    }

    pub(crate) fn insert(&self, name: LockName) {
        let now = self.clock.now();
        let mut found = self.found();
        if found.len() >= MAX_LOCKS {
            found.retain(|_, at| now.since(*at) < self.kept);
            if found.len() >= MAX_LOCKS {
                found.clear();
            }
        }
        found.insert(name, now);
    }

    pub(crate) fn remove(&self, name: &LockName) {
        self.found().remove(name);
    }

    fn found(&self) -> MutexGuard<'_, HashMap<LockName, Moment>> {
        self.found.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
