//! A queue as listings show it.

use std::time::Duration;

use fencepost_core::{Cell, FencingToken, HolderState, LockName, LockState, Mode, WaiterState};

use crate::entry_meta::EntryMeta;
use crate::holder_count;

/// One entry of a queue, as it was read.
#[derive(Clone, Debug)]
pub struct Contender {
    /// The fencing token of its grant, current or future.
    pub token: FencingToken,
    /// The mode in which it holds or waits for the lock.
    pub mode: Mode,
    /// The data stored in the entry; `None` for a foreign client.
    pub entry_meta: Option<EntryMeta>,
    /// The name of its key or node, shown as the label of a foreign client.
    pub entry_name: String,
    /// The remaining time of its lease, if known.
    pub expires_in: Option<Duration>,
    /// Its state in the queues of its other names.
    pub multi: MultiState,
}

/// The state of a contender for several names in the queues of the other names.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum MultiState {
    /// The other queues do not keep it from holding this lock, or it has no other names.
    #[default]
    Ready,
    /// It needs all of its names and waits for another one.
    WaitsForAnother,
    /// It needs one of its names and holds another one: it is about to leave this queue.
    HoldsAnother,
}

impl MultiState {
    /// Returns the state of the entry with this data in the queue of `here`. `holds` tells for each of its names whether the
    /// entry is among the holders of that queue.
    pub fn of(entry_meta: &EntryMeta, here: &LockName, holds: impl Fn(&LockName) -> bool) -> Self {
        if entry_meta.any {
            let first = entry_meta.names.iter().find(|name| holds(name));
            return if first.is_some_and(|first| first != here) { Self::HoldsAnother } else { Self::Ready };
        }
        if entry_meta.names.iter().all(holds) { Self::Ready } else { Self::WaitsForAnother }
    }
}

impl Contender {
    fn label(&self) -> std::sync::Arc<str> {
        self.entry_meta
            .as_ref()
            .map_or_else(|| self.entry_name.as_str().into(), |entry_meta| entry_meta.label.clone())
    }

    fn holding_since(&self) -> Option<Duration> {
        let entry_meta = self.entry_meta.as_ref()?;
        Some(entry_meta.granted_at.unwrap_or(entry_meta.enqueued_at))
    }

    fn holder(&self, now: Duration) -> HolderState {
        let mut holder = HolderState::new(self.mode, self.label());
        holder.token = Some(self.token);
        holder.meta =
            self.entry_meta.as_ref().map_or_else(|| [].into(), |entry_meta| entry_meta.meta.clone());
        holder.ttl = self.entry_meta.as_ref().map(|entry_meta| entry_meta.ttl);
        holder.expires_in = self.expires_in;
        holder.held_for = self.holding_since().map(|since| now.saturating_sub(since));
        holder
    }

    fn waiter(&self, now: Duration) -> WaiterState {
        let mut waiter = WaiterState::new(self.mode, self.label());
        waiter.waiting_for =
            self.entry_meta.as_ref().map(|entry_meta| now.saturating_sub(entry_meta.enqueued_at));
        waiter
    }
}

/// Returns the state of the lock with this queue; `now` is wall-clock time. A cell in the data of a holder takes precedence
/// over the persistent one.
pub fn lock_state(
    name: &LockName,
    queue: &[Contender],
    persistent: Option<Cell>,
    now: Duration,
) -> LockState {
    let holder_count = holder_count(queue.iter().map(|contender| contender.mode));
    let holds = |at: usize, contender: &Contender| at < holder_count && contender.multi == MultiState::Ready;
    let contenders = |holding: bool| {
        let staying =
            queue.iter().enumerate().filter(|(_, contender)| contender.multi != MultiState::HoldsAnother);
        staying
            .filter(move |(at, contender)| holds(*at, contender) == holding)
            .map(|(_, contender)| contender)
    };
    let held_cell = contenders(true).find_map(|holder| {
        let bytes = holder.entry_meta.as_ref()?.cell.clone()?;
        Some(Cell { token: holder.token, bytes })
    });
    let mut state = LockState::new(name.clone());
    state.holders = contenders(true).map(|holder| holder.holder(now)).collect();
    state.waiters = contenders(false).take(LockState::MAX_WAITERS).map(|waiter| waiter.waiter(now)).collect();
    state.waiter_count = contenders(false).count();
    state.cell = held_cell.or(persistent);
    state
}

#[cfg(test)]
mod tests {
    use super::*;

    fn contender(token: u64, mode: Mode) -> Contender {
        Contender {
            token: FencingToken::new(token),
            mode,
            entry_meta: None,
            entry_name: format!("key {token}"),
            expires_in: Some(Duration::from_secs(1)),
            multi: MultiState::Ready,
        }
    }

    #[test]
    fn entries_behind_the_holders_wait() {
        let name = LockName::new("a").unwrap();
        let queue = [contender(1, Mode::Shared), contender(2, Mode::Shared), contender(3, Mode::Exclusive)];
        let state = lock_state(&name, &queue, None, Duration::ZERO);
        assert_eq!(
            state.holders.iter().map(|holder| holder.token.unwrap().get()).collect::<Vec<_>>(),
            [1, 2]
        );
        assert_eq!((state.waiter_count, &*state.waiters[0].label), (1, "key 3"));
    }

    #[test]
    fn a_contender_that_waits_or_holds_elsewhere_is_no_holder() {
        let name = LockName::new("a").unwrap();
        for (multi, waiters) in [(MultiState::WaitsForAnother, 2), (MultiState::HoldsAnother, 1)] {
            let both = Contender { multi, ..contender(1, Mode::Exclusive) };
            let state = lock_state(&name, &[both, contender(2, Mode::Exclusive)], None, Duration::ZERO);
            assert_eq!((state.holders.len(), state.waiter_count), (0, waiters));
        }
    }
}
