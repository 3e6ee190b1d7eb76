//! The locks whose rows were found locked by transactions that go on: flights do not wait for them again, and so delay no other
//! lock.

use std::collections::{BTreeSet, HashMap};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use fencepost_core::LockName;
use fencepost_core::clock::{Clock, Moment};

/// How long a row is checked before it is waited for.
const REMEMBERED: Duration = Duration::from_secs(5);

/// The locks, and when their rows were last found locked.
pub(crate) struct BlockedLocks {
    clock: Clock,
    found: Mutex<HashMap<LockName, Moment>>,
}

impl BlockedLocks {
    pub(crate) fn new(clock: Clock) -> Self {
        Self { clock, found: Mutex::default() }
    }

    /// Returns those of these locks that may be blocked.
    pub(crate) fn among(&self, names: &BTreeSet<LockName>) -> Vec<LockName> {
        let mut found = self.found();
        if found.is_empty() {
            return Vec::new();
        }
        let now = self.clock.now();
        found.retain(|_, at| now.since(*at) < REMEMBERED);
        names.iter().filter(|name| found.contains_key(*name)).cloned().collect()
    }

    pub(crate) fn insert(&self, name: LockName) {
        self.found().insert(name, self.clock.now());
    }

    pub(crate) fn remove(&self, name: &LockName) {
        self.found().remove(name);
    }

    fn found(&self) -> MutexGuard<'_, HashMap<LockName, Moment>> {
        self.found.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
