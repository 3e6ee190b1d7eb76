//! The state of one client that its flights and its listener share.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use fencepost_core::backend::{Op, Wakeup};
use fencepost_core::clock::{Clock, Moment};
use fencepost_core::push::Pusher;
use fencepost_core::{LockName, Owner, StorageId};

use crate::lease::pool::Pool;

/// For how long operations on a name are kept apart from those on other names after a transaction of another program was
/// found to have locked its row.
const APART: Duration = Duration::from_secs(5);
/// A sweep follows this many flights.
const FLIGHTS_PER_SWEEP: usize = 16;
/// How many names one sweep reads at most.
const MAX_SWEPT: usize = 512;

/// The state of one client.
pub(crate) struct ClientState {
    pub(crate) namespace: String,
    /// The URL without secrets.
    pub(crate) location: String,
    pub(crate) pool: Arc<Pool>,
    /// The random id of this client; negative if a pooler shares its connections, so that it cannot listen.
    pub(crate) id: i64,
    pub(crate) storage_id: StorageId,
    pub(crate) clock: Clock,
    pub(crate) pusher: Pusher,
    blocked: Mutex<HashMap<LockName, Blocked>>,
    sweep: Mutex<Sweep>,
    pub(crate) is_listener_started: Mutex<bool>,
}

/// A name whose row another transaction has locked for long.
struct Blocked {
    until: Moment,
    /// Whether it took longer than a flight can take.
    is_confirmed: bool,
    waiters: HashSet<Owner>,
}

/// What the next sweep begins with.
#[derive(Default)]
struct Sweep {
    flights: usize,
    /// How many acquires there were since the last sweep: each may have left an unused row.
    acquires: usize,
    after: String,
}

impl ClientState {
    pub(crate) fn new(pool: Pool, is_pooled: bool, storage_id: StorageId, pusher: Pusher) -> Self {
        let id = (rand::random::<u64>() >> 1).max(1).cast_signed();
        Self {
            namespace: pool.link.config().namespace.clone(),
            location: pool.link.location().to_owned(),
            pool: Arc::new(pool),
            id: if is_pooled { -id } else { id },
            storage_id,
            clock: Clock::system(),
            pusher,
            blocked: Mutex::default(),
            sweep: Mutex::default(),
            is_listener_started: Mutex::default(),
        }
    }

    /// Returns whether the server can push to this client.
    pub(crate) fn can_listen(&self) -> bool {
        self.id > 0
    }

    /// Returns whether another transaction has recently locked the row of a lock of this operation for long.
    pub(crate) fn is_suspect(&self, op: &Op) -> bool {
        let mut blocked = locked(&self.blocked);
        if blocked.is_empty() {
            return false;
        }
        let now = self.clock.now();
        blocked.retain(|_, name| name.until > now);
        op.names().any(|name| blocked.contains_key(name))
    }

    /// Returns whether that transaction is one of another program.
    pub(crate) fn is_confirmed(&self, op: &Op) -> bool {
        let blocked = locked(&self.blocked);
        op.names().any(|name| blocked.get(name).is_some_and(|blocked| blocked.is_confirmed))
    }

    /// Records that another transaction has locked the row of a lock of this operation for long.
    pub(crate) fn suspect(&self, op: &Op, is_confirmed: bool) {
        let until = self.clock.now() + APART;
        let mut blocked = locked(&self.blocked);
        for name in op.names() {
            let entry = blocked.entry(name.clone()).or_insert_with(|| Blocked {
                until,
                is_confirmed,
                waiters: HashSet::new(),
            });
            entry.until = until;
            entry.is_confirmed |= is_confirmed;
            entry.waiters.extend(op.owner());
        }
    }

    /// Records that the rows of the locks of this operation could be locked.
    pub(crate) fn trust(&self, op: &Op) {
        let mut blocked = locked(&self.blocked);
        if !blocked.is_empty() {
            op.names().for_each(|name| drop(blocked.remove(name)));
        }
    }

    /// Wakes the waiters of a lock that a transaction of another program held.
    pub(crate) fn unblock(&self, name: &str) {
        let Ok(name) = LockName::new(name) else { return };
        let freed = locked(&self.blocked).remove(&name);
        for owner in freed.into_iter().flat_map(|blocked| blocked.waiters) {
            self.pusher.push(Wakeup::Check { owner });
        }
    }

    /// Counts a flight. Returns how many names to sweep, and after which, if it is time.
    pub(crate) fn sweep_after(&self, ops: &[Op]) -> Option<(i32, String)> {
        let mut sweep = locked(&self.sweep);
        sweep.flights += 1;
        sweep.acquires += ops.iter().filter(|op| matches!(op, Op::Acquire { .. } | Op::Leave(_))).count();
        if sweep.flights < FLIGHTS_PER_SWEEP && sweep.acquires < MAX_SWEPT / 2 {
            return None;
        }
        let limit = (2 * sweep.acquires + FLIGHTS_PER_SWEEP).min(MAX_SWEPT);
        (sweep.flights, sweep.acquires) = (0, 0);
        Some((i32::try_from(limit).unwrap_or(i32::MAX), sweep.after.clone()))
    }

    pub(crate) fn set_sweep_after(&self, after: String) {
        locked(&self.sweep).after = after;
    }
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
