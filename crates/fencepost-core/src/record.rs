//! The state of one lock as data: its holders, its queue, its cell. The rules are in [`crate::lock_table`].

use std::collections::{BTreeMap, HashMap};
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use crate::backend::{Cell, HolderState, Keep, LockState, WaiterState};
use crate::clock::StorageTime;
use crate::grant::{Attempt, Award, Mode};
use crate::holders::Holders;
use crate::name::LockName;
use crate::token::{FencingToken, Owner};

/// The id of a client within a backend: the address of its pushes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ClientId(pub u64);

/// One holder of a lock.
#[derive(Clone, Debug)]
pub struct Holder {
    /// The owner of the grant.
    pub owner: Owner,
    /// The grant's token.
    pub token: FencingToken,
    /// The mode.
    pub mode: Mode,
    /// The length of the lease.
    pub ttl: Duration,
    /// When the lease ends.
    pub until: StorageTime,
    /// When it was granted, on the wall clock: for display only.
    pub since: Duration,
    /// The client to push to.
    pub client: ClientId,
    /// All names of the grant, if there are several.
    pub names: Option<Arc<[LockName]>>,
    /// The index of the want that was granted.
    pub chosen: usize,
    /// The label of the holder.
    pub label: Arc<str>,
    /// Keys and values that are shown with it.
    pub meta: Arc<[(String, String)]>,
}

impl Holder {
    /// Returns the award of its owner.
    pub fn award(&self) -> Award {
        Award { token: self.token, ttl: self.ttl, chosen: self.chosen, elapsed: Duration::ZERO }
    }
}

/// A queue position, the same in the queues of all its names.
#[derive(Clone, Debug)]
pub struct Ticket {
    /// The attempt.
    pub attempt: Arc<Attempt>,
    /// Its position: smaller is earlier, in all queues.
    pub seq: u64,
    /// When the ticket's lease ends.
    pub until: StorageTime,
    /// When it joined the queue, on the wall clock: for display only.
    pub since: Duration,
    /// The client to push to.
    pub client: ClientId,
}

/// A cell as it is stored.
#[derive(Clone, Debug)]
pub struct StoredCell {
    /// The value and the token of the grant that wrote it.
    pub cell: Cell,
    /// How long it is kept.
    pub keep: Keep,
    /// When it expires, for [`Keep::For`].
    pub until: StorageTime,
}

/// The record of one lock.
#[derive(Clone, Debug, Default)]
pub struct LockRecord {
    /// Its holders.
    pub holders: Holders,
    /// Its waiters, by position.
    pub queue: BTreeMap<u64, Owner>,
    /// The position from which waiters may be missing, if only the first were fetched.
    pub unknown_from: Option<u64>,
    /// Its cell.
    pub cell: Option<StoredCell>,
}

impl LockRecord {
    /// Returns whether the lock is not in use.
    pub fn is_empty(&self) -> bool {
        self.holders.is_empty() && self.positions(0..u64::MAX).next().is_none() && self.cell.is_none()
    }

    /// Returns whether another holder in this mode is compatible with the present ones.
    pub fn admits(&self, mode: Mode) -> bool {
        let room = match mode {
            Mode::Exclusive => self.holders.is_empty(),
            Mode::Shared => true,
            Mode::Semaphore { permits } => self.holders.len() < permits as usize,
        };
        room && self.holders.any().is_none_or(|holder| holder.mode.is_compatible_with(mode))
    }

    /// Iterates over the positions in this range; the last item is `None` if others may follow that were not fetched.
    pub fn positions(&self, positions: Range<u64>) -> impl Iterator<Item = Option<(u64, Owner)>> {
        let Range { start, end } = positions;
        let known_to = self.unknown_from.unwrap_or(u64::MAX);
        let known = self.queue.range(start..end.min(known_to).max(start));
        let unknown = (end > known_to).then_some(None);
        known.map(|(seq, owner)| Some((*seq, *owner))).chain(unknown)
    }

    /// Returns the state to show, without what has expired by `now`.
    pub fn state(
        &self,
        name: &LockName,
        tickets: &HashMap<Owner, Ticket>,
        now: StorageTime,
        wall: Duration,
    ) -> LockState {
        let live = |ticket: &&Ticket| ticket.until > now;
        let waiting = || self.queue.values().filter_map(|owner| tickets.get(owner)).filter(live);
        let holders = self.holders.iter().filter(|holder| holder.until > now);
        let mut holders: Vec<HolderState> = holders.map(|holder| holder.state(now, wall)).collect();
        holders.sort_by_key(|holder| holder.token);
        LockState {
            name: name.clone(),
            holders,
            waiters: waiting().take(LockState::MAX_WAITERS).map(|ticket| ticket.state(name, wall)).collect(),
            waiter_count: waiting().count(),
            cell: self.live_cell(now),
        }
    }

    /// Returns the cell, unless it has expired by `now`.
    pub fn live_cell(&self, now: StorageTime) -> Option<Cell> {
        let stored = self.cell.as_ref()?;
        let alive = match stored.keep {
            Keep::Always => true,
            Keep::For(_) => stored.until > now,
            Keep::WhileHeld => {
                self.holders.with_token(stored.cell.token).is_some_and(|holder| holder.until > now)
            }
        };
        alive.then(|| stored.cell.clone())
    }
}

impl Holder {
    fn state(&self, now: StorageTime, wall: Duration) -> HolderState {
        HolderState {
            token: Some(self.token),
            mode: self.mode,
            label: self.label.clone(),
            meta: self.meta.clone(),
            ttl: Some(self.ttl),
            expires_in: Some(self.until.since(now)),
            held_for: Some(wall.saturating_sub(self.since)),
        }
    }
}

impl Ticket {
    fn state(&self, name: &LockName, wall: Duration) -> WaiterState {
        let want = self.attempt.wants.iter().find(|want| want.name == *name);
        WaiterState {
            mode: want.map_or(Mode::Exclusive, |want| want.mode),
            label: self.attempt.label.clone(),
            waiting_for: Some(wall.saturating_sub(self.since)),
        }
    }
}
