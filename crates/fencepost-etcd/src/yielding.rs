//! With `layout=single`, Fencepost clients yield a lock after they have held it in succession for a while. They are woken
//! when the key is deleted, while foreign clients poll once per second: without this, those would never find it free.

use std::collections::HashMap;
use std::sync::Weak;
use std::time::Duration;

use fencepost_contenders::EntryMeta;
use fencepost_core::LockName;
use fencepost_core::clock::Moment;

use crate::config::Layout;
use crate::state::ClientState;

/// How long Fencepost clients hold a lock in succession before they yield it.
const MAX_STREAK: Duration = Duration::from_millis(333);
/// The maximum time for which they yield it: the poll interval of tooz.
const MAX_YIELD: Duration = Duration::from_secs(1);
/// A lock that was free for longer than this has no streak.
const MAX_GAP: Duration = Duration::from_millis(100);
/// How long the streak of a lock is remembered after its holder was last seen.
const STREAK_TIMEOUT: Duration = Duration::from_secs(600);

/// A time during which Fencepost clients hold a lock in succession.
#[derive(Clone, Copy, Debug)]
struct Streak {
    start: Moment,
    /// When one of them was last seen to hold it.
    last_seen: Moment,
    /// When the last of them released it.
    released: Option<Moment>,
}

/// The streaks of Fencepost clients, and the locks that this client yields.
#[derive(Debug, Default)]
pub(crate) struct Yields {
    streaks: HashMap<LockName, Streak>,
    yielded_until: HashMap<LockName, Moment>,
}

impl Yields {
    /// Records that a Fencepost client, or a foreign one, was seen to hold the lock.
    fn on_acquired(&mut self, name: &LockName, is_ours: bool, now: Moment) {
        if !is_ours {
            self.streaks.remove(name);
            return;
        }
        self.remove_old_streaks(now);
        let streak =
            self.streaks.entry(name.clone()).or_insert(Streak { start: now, last_seen: now, released: None });
        if streak.released.is_some_and(|released| now.since(released) > MAX_GAP) {
            streak.start = now;
        }
        streak.last_seen = now;
        streak.released = None;
    }

    fn remove_old_streaks(&mut self, now: Moment) {
        self.streaks.retain(|_, streak| match streak.released {
            Some(released) => now.since(released) <= MAX_GAP,
            None => now.since(streak.last_seen) <= STREAK_TIMEOUT,
        });
    }

    /// Records that the lock was released. Returns whether this client yields it from now on.
    fn on_released(&mut self, name: &LockName, now: Moment) -> bool {
        self.remove_old_streaks(now);
        let Some(streak) = self.streaks.get_mut(name) else { return false };
        let held_for = now.since(streak.start);
        streak.released = Some(now);
        if held_for < MAX_STREAK {
            return false;
        }
        self.streaks.remove(name);
        self.yielded_until.insert(name.clone(), now + held_for.min(MAX_YIELD));
        true
    }

    /// Returns whether this client yields the lock now.
    pub(crate) fn is_yielding(&self, name: &LockName, now: Moment) -> bool {
        self.yielded_until.get(name).is_some_and(|until| *until > now)
    }

    /// Removes the yields that have ended. Returns their locks, and when the next one ends.
    fn remove_ended(&mut self, now: Moment) -> (Vec<LockName>, Option<Moment>) {
        let ended = self.yielded_until.extract_if(|_, until| *until <= now).map(|(name, _)| name).collect();
        (ended, self.yielded_until.values().min().copied())
    }
}

impl ClientState {
    /// Records the holder of a lock whose key has this value.
    pub(crate) fn observe_holder(&self, name: &LockName, value: &[u8]) {
        if self.cluster.keys.layout == Layout::Single {
            let is_ours = EntryMeta::from_bytes(value).is_some();
            self.state().yields.on_acquired(name, is_ours, self.clock.now());
        }
    }

    /// Records that this client has acquired a lock.
    pub(crate) fn observe_grant(&self, name: &LockName) {
        if self.cluster.keys.layout == Layout::Single {
            self.state().yields.on_acquired(name, true, self.clock.now());
        }
    }

    /// Records that a lock was released.
    pub(crate) fn observe_release(&self, name: &LockName) {
        if self.cluster.keys.layout == Layout::Single
            && self.state().yields.on_released(name, self.clock.now())
        {
            self.yield_started.notify_one();
        }
    }

    /// Wakes the first local waiter of each lock whose yield has ended. Returns when the next one ends.
    fn end_yields(&self) -> Option<Moment> {
        let mut state = self.state();
        let (ended, next) = state.yields.remove_ended(self.clock.now());
        for name in ended {
            if let Some(first) = state.own_entries.local_waiters(&name).next() {
                self.wake(first.owner);
            }
        }
        next
    }
}

/// Wakes local waiters when a yield ends, until the client is dropped.
pub(crate) async fn end_yields(client: Weak<ClientState>) {
    loop {
        let Some(strong) = client.upgrade() else { return };
        let (next, clock, yield_started) =
            (strong.end_yields(), strong.clock.clone(), strong.yield_started.clone());
        drop(strong);
        match next {
            Some(end) => tokio::select! {
                slept = clock.sleep_until(end) => {
                    if slept.is_err() {
                        return;
                    }
                }
                // A new yield may end sooner.
                () = yield_started.notified() => {}
            },
            None => yield_started.notified().await,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: Moment = Moment::from_nanos(1_000_000_000_000);

    fn after(millis: u64) -> Moment {
        NOW + Duration::from_millis(millis)
    }

    #[test]
    fn a_lock_is_yielded_for_as_long_as_it_was_held_in_succession() {
        let (mut yields, name) = (Yields::default(), LockName::new("a").unwrap());
        for round in 0..3 {
            yields.on_acquired(&name, true, after(round * 150));
            assert_eq!(yields.on_released(&name, after(round * 150 + 149)), round == 2);
        }
        assert!(yields.is_yielding(&name, after(449 + 448)) && !yields.is_yielding(&name, after(449 + 450)));
        assert_eq!(yields.remove_ended(after(500)), (vec![], Some(after(449 + 449))));
        assert_eq!(yields.remove_ended(after(900)), (vec![name.clone()], None));
        yields.on_acquired(&name, true, after(2_000));
        assert!(yields.on_released(&name, after(62_000)));
        assert!(!yields.is_yielding(&name, after(63_000)), "a yield is limited");
    }

    #[test]
    fn a_lock_that_is_free_or_held_by_foreign_clients_in_between_is_not_yielded() {
        let (mut yields, name) = (Yields::default(), LockName::new("a").unwrap());
        for round in 0..5 {
            yields.on_acquired(&name, true, after(round * 400));
            assert!(!yields.on_released(&name, after(round * 400 + 150)));
        }
        for round in 10..15 {
            yields.on_acquired(&name, true, after(round * 400));
            assert!(!yields.on_released(&name, after(round * 400 + 200)));
            yields.on_acquired(&name, false, after(round * 400 + 210));
            assert!(!yields.on_released(&name, after(round * 400 + 399)));
        }
    }
}
