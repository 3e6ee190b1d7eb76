//! The difference between two snapshots: a pure function.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::backend::{Cell, HolderState, LockState};
use crate::name::LockName;

/// The locks of a snapshot, by name.
pub(crate) type LocksByName = BTreeMap<LockName, LockState>;

/// A change of a lock between two polls. Renewals are not reported.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum Change {
    /// The lock has a holder that was not seen before.
    Held {
        /// The lock.
        name: LockName,
        /// The holder.
        holder: HolderState,
    },
    /// A holder that was seen before no longer holds the lock.
    Ended {
        /// The lock.
        name: LockName,
        /// The holder as it was last seen.
        holder: HolderState,
        /// How much of its lease was left, at least, when it was no longer seen. If this is more than zero, the lease did not
        /// expire: the lock was released or broken, or the backend has lost it. Zero says nothing. A lease that never ends has
        /// [`HolderState::NO_EXPIRY`] left.
        lease_left: Duration,
    },
    /// The number of waiters has changed.
    Waiters {
        /// The lock.
        name: LockName,
        /// The number of waiters now.
        count: usize,
    },
    /// The lock's cell was written or removed.
    Cell {
        /// The lock.
        name: LockName,
        /// The cell now.
        cell: Option<Cell>,
    },
}

/// Returns the changes from `old` to `new`, lock by lock: ended holders, new holders, the queue, the cell. `elapsed` is the time
/// from before the old poll to after the new one.
pub(crate) fn differences(old: &LocksByName, new: &LocksByName, elapsed: Duration) -> Vec<Change> {
    let gone = old.keys().filter(|name| !new.contains_key(*name));
    let mut names: Vec<&LockName> = new.keys().chain(gone).collect();
    names.sort();
    names.into_iter().flat_map(|name| of_one(name, old.get(name), new.get(name), elapsed)).collect()
}

fn of_one(
    name: &LockName,
    old: Option<&LockState>,
    new: Option<&LockState>,
    elapsed: Duration,
) -> Vec<Change> {
    let holders = |state: Option<&LockState>| state.map(|state| state.holders.clone()).unwrap_or_default();
    let waiters = |state: Option<&LockState>| state.map_or(0, |state| state.waiter_count);
    let cell = |state: Option<&LockState>| state.and_then(|state| state.cell.clone());
    let (before, now) = (holders(old), holders(new));
    let is_among =
        |others: &[HolderState], holder: &HolderState| others.iter().any(|other| other.is_same(holder));

    let ended = before.iter().filter(|holder| !is_among(&now, holder)).map(|holder| Change::Ended {
        name: name.clone(),
        holder: holder.clone(),
        lease_left: holder.expires_in_after(elapsed),
    });
    let held = now.iter().filter(|holder| !is_among(&before, holder));
    let held = held.map(|holder| Change::Held { name: name.clone(), holder: holder.clone() });
    let queue =
        (waiters(old) != waiters(new)).then(|| Change::Waiters { name: name.clone(), count: waiters(new) });
    let cell = (cell(old) != cell(new)).then(|| Change::Cell { name: name.clone(), cell: cell(new) });
    ended.chain(held).chain(queue).chain(cell).collect()
}

#[cfg(test)]
mod tests;
