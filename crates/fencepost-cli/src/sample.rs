//! Locks for unit tests: a holder and a waiter with plausible values, changed where a test needs others.

use std::time::Duration;

use fencepost::{FencingToken, HolderState, LockName, LockState, Mode, WaiterState};

/// Returns a holder since 2m10s, with 21 of 30 seconds left.
pub(crate) fn holder(label: &str, token: u64, mode: Mode) -> HolderState {
    let mut holder = HolderState::new(mode, label);
    holder.token = Some(FencingToken::new(token));
    holder.ttl = Some(Duration::from_secs(30));
    holder.expires_in = Some(Duration::from_secs(21));
    holder.held_for = Some(Duration::from_secs(130));
    holder
}

/// Returns a waiter that has waited for this many seconds.
pub(crate) fn waiter(label: &str, mode: Mode, seconds: u64) -> WaiterState {
    let mut waiter = WaiterState::new(mode, label);
    waiter.waiting_for = Some(Duration::from_secs(seconds));
    waiter
}

/// Returns a lock with these holders.
pub(crate) fn lock(name: &str, holders: impl IntoIterator<Item = HolderState>) -> LockState {
    let mut state = LockState::new(LockName::new(name).unwrap());
    state.holders = holders.into_iter().collect();
    state
}
