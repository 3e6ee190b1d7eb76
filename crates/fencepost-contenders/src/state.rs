//! A line as people see it.

use std::time::Duration;

use fencepost_core::{Cell, FencingToken, HolderState, LockName, LockState, Mode, WaiterState};

use crate::entry_meta::EntryMeta;
use crate::holding;

/// One entry of a line, as it was read.
#[derive(Clone, Debug)]
pub struct Contender {
    /// What it would hold with.
    pub token: FencingToken,
    /// How it wants the lock.
    pub mode: Mode,
    /// What it says about itself; nothing if it is not one of ours.
    pub entry_meta: Option<EntryMeta>,
    /// What to call it if it says nothing: its key or node.
    pub called: String,
    /// How much of its lease is left, if that is known.
    pub expires_in: Option<Duration>,
    /// How it stands with the others of its names.
    pub elsewhere: Elsewhere,
}

/// How a contender for several names stands in the lines of the others.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Elsewhere {
    /// As far as they are concerned it may hold, or there are none.
    #[default]
    Nothing,
    /// It wants all of them and waits for another.
    Waits,
    /// It wants any one of them and has another: it is about to leave this line.
    Holds,
}

impl Elsewhere {
    /// How somebody with this entry_meta stands, if `holds` says for each of its names whether it is among the first there.
    pub fn of(entry_meta: &EntryMeta, here: &LockName, holds: impl Fn(&LockName) -> bool) -> Self {
        if entry_meta.any {
            let first = entry_meta.names.iter().find(|name| holds(name));
            return if first.is_some_and(|first| first != here) { Self::Holds } else { Self::Nothing };
        }
        if entry_meta.names.iter().all(holds) { Self::Nothing } else { Self::Waits }
    }
}

impl Contender {
    fn label(&self) -> std::sync::Arc<str> {
        self.entry_meta
            .as_ref()
            .map_or_else(|| self.called.as_str().into(), |entry_meta| entry_meta.label.clone())
    }

    fn since(&self) -> Option<Duration> {
        let entry_meta = self.entry_meta.as_ref()?;
        Some(entry_meta.held_since.unwrap_or(entry_meta.since))
    }

    fn holder(&self, now: Duration) -> HolderState {
        let mut holder = HolderState::new(self.mode, self.label());
        holder.token = Some(self.token);
        holder.meta =
            self.entry_meta.as_ref().map_or_else(|| [].into(), |entry_meta| entry_meta.meta.clone());
        holder.ttl = self.entry_meta.as_ref().map(|entry_meta| entry_meta.ttl);
        holder.expires_in = self.expires_in;
        holder.held_for = self.since().map(|since| now.saturating_sub(since));
        holder
    }

    fn waiter(&self, now: Duration) -> WaiterState {
        let mut waiter = WaiterState::new(self.mode, self.label());
        waiter.waiting_for = self.entry_meta.as_ref().map(|entry_meta| now.saturating_sub(entry_meta.since));
        waiter
    }
}

/// The lock whose entries these are, in order; `now` is the wall clock. A cell that stays while it is held is one of a
/// holder's entry_meta.
pub fn state(name: &LockName, line: &[Contender], kept: Option<Cell>, now: Duration) -> LockState {
    let first = holding(line.iter().map(|contender| contender.mode));
    let holds = |at: usize, contender: &Contender| at < first && contender.elsewhere == Elsewhere::Nothing;
    let part = |wanted: bool| {
        let line = line.iter().enumerate().filter(|(_, contender)| contender.elsewhere != Elsewhere::Holds);
        line.filter(move |(at, contender)| holds(*at, contender) == wanted).map(|(_, contender)| contender)
    };
    let held_cell = part(true).find_map(|holder| {
        let bytes = holder.entry_meta.as_ref()?.cell.clone()?;
        Some(Cell { token: holder.token, bytes })
    });
    let mut state = LockState::new(name.clone());
    state.holders = part(true).map(|holder| holder.holder(now)).collect();
    state.waiters = part(false).take(LockState::MAX_WAITERS).map(|waiter| waiter.waiter(now)).collect();
    state.waiter_count = part(false).count();
    state.cell = held_cell.or(kept);
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
            called: format!("key {token}"),
            expires_in: Some(Duration::from_secs(1)),
            elsewhere: Elsewhere::Nothing,
        }
    }

    #[test]
    fn holders_come_first_and_the_rest_waits() {
        let name = LockName::new("a").unwrap();
        let line = [contender(1, Mode::Shared), contender(2, Mode::Shared), contender(3, Mode::Exclusive)];
        let state = state(&name, &line, None, Duration::ZERO);
        assert_eq!(
            state.holders.iter().map(|holder| holder.token.unwrap().get()).collect::<Vec<_>>(),
            [1, 2]
        );
        assert_eq!((state.waiter_count, &*state.waiters[0].label), (1, "key 3"));
    }

    #[test]
    fn whoever_waits_or_holds_elsewhere_does_not_hold() {
        let name = LockName::new("a").unwrap();
        for (elsewhere, waiters) in [(Elsewhere::Waits, 2), (Elsewhere::Holds, 1)] {
            let both = Contender { elsewhere, ..contender(1, Mode::Exclusive) };
            let state = state(&name, &[both, contender(2, Mode::Exclusive)], None, Duration::ZERO);
            assert_eq!((state.holders.len(), state.waiter_count), (0, waiters));
        }
    }
}
