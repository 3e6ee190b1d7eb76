//! With `layout=single`, clients of ours leave a lock alone after they had it one after the other for a while. They are woken
//! when the key is deleted, while other libraries look once in a second: those would never find it free.

use std::collections::HashMap;
use std::sync::Weak;
use std::time::Duration;

use fencepost_contenders::EntryMeta;
use fencepost_core::LockName;
use fencepost_core::clock::Moment;

use crate::client_state::ClientState;
use crate::config::Layout;

/// For how long clients of ours have a lock one after the other.
const RUN: Duration = Duration::from_millis(333);
/// For how long they leave it alone at most: the pause of a tooz client between two looks.
const LONGEST_REST: Duration = Duration::from_secs(1);
/// A lock that was free for longer has had no holder in a row.
const GAP: Duration = Duration::from_millis(100);
/// After so long nothing is known any more about a lock whose holder was seen.
const FORGOTTEN: Duration = Duration::from_secs(600);

/// Since when clients of ours have had a lock, one after the other.
#[derive(Clone, Copy, Debug)]
struct Run {
    began: Moment,
    /// When one of them was last seen to have it.
    seen: Moment,
    /// When the last of them gave it back.
    freed: Option<Moment>,
}

/// The locks that clients of ours have had for a while, and those that they leave alone.
#[derive(Debug, Default)]
pub(crate) struct Rests {
    runs: HashMap<LockName, Run>,
    until: HashMap<LockName, Moment>,
}

impl Rests {
    /// Records that a client of ours, or another program, was seen to have the lock.
    fn taken(&mut self, name: &LockName, is_ours: bool, now: Moment) {
        if !is_ours {
            self.runs.remove(name);
            return;
        }
        self.forget(now);
        let run = self.runs.entry(name.clone()).or_insert(Run { began: now, seen: now, freed: None });
        if run.freed.is_some_and(|freed| now.since(freed) > GAP) {
            run.began = now;
        }
        run.seen = now;
        run.freed = None;
    }

    fn forget(&mut self, now: Moment) {
        self.runs.retain(|_, run| match run.freed {
            Some(freed) => now.since(freed) <= GAP,
            None => now.since(run.seen) <= FORGOTTEN,
        });
    }

    /// Records that the lock was given back. Returns whether it is to be left alone from now on.
    fn given_back(&mut self, name: &LockName, now: Moment) -> bool {
        self.forget(now);
        let Some(run) = self.runs.get_mut(name) else { return false };
        let had = now.since(run.began);
        run.freed = Some(now);
        if had < RUN {
            return false;
        }
        self.runs.remove(name);
        self.until.insert(name.clone(), now + had.min(LONGEST_REST));
        true
    }

    /// Returns whether this lock is left alone now.
    pub(crate) fn rests(&self, name: &LockName, now: Moment) -> bool {
        self.until.get(name).is_some_and(|until| *until > now)
    }

    /// Removes the rests that are over. Returns their locks, and when the next one ends.
    fn over(&mut self, now: Moment) -> (Vec<LockName>, Option<Moment>) {
        let over = self.until.extract_if(|_, until| *until <= now).map(|(name, _)| name).collect();
        (over, self.until.values().min().copied())
    }
}

impl ClientState {
    /// Records who was seen to have a lock whose key has this value.
    pub(crate) fn saw_holder(&self, name: &LockName, value: &[u8]) {
        if self.store.keys.layout == Layout::Single {
            let is_ours = EntryMeta::from_bytes(value).is_some();
            self.state().rests.taken(name, is_ours, self.clock.now());
        }
    }

    /// Records that this client has acquired a lock.
    pub(crate) fn took(&self, name: &LockName) {
        if self.store.keys.layout == Layout::Single {
            self.state().rests.taken(name, true, self.clock.now());
        }
    }

    /// Records that a lock was given back.
    pub(crate) fn saw_release(&self, name: &LockName) {
        if self.store.keys.layout == Layout::Single && self.state().rests.given_back(name, self.clock.now()) {
            self.resting.notify_one();
        }
    }

    /// Wakes the waiters whose rest has ended. Returns when the next one ends.
    fn end_rests(&self) -> Option<Moment> {
        let mut state = self.state();
        let (over, next) = state.rests.over(self.clock.now());
        for name in over {
            if let Some(first) = state.places.local_waiters(&name).next() {
                self.wake(first.owner);
            }
        }
        next
    }
}

/// Wakes the waiters whose rest has ended, for as long as there is a client.
pub(crate) async fn end_rests(client: Weak<ClientState>) {
    loop {
        let Some(strong) = client.upgrade() else { return };
        let (next, clock, resting) = (strong.end_rests(), strong.clock.clone(), strong.resting.clone());
        drop(strong);
        match next {
            Some(at) => tokio::select! {
                slept = clock.sleep_until(at) => {
                    if slept.is_err() {
                        return;
                    }
                }
                // Another may end sooner.
                () = resting.notified() => {}
            },
            None => resting.notified().await,
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
    fn a_lock_rests_for_as_long_as_ours_had_it_in_a_row() {
        let (mut rests, name) = (Rests::default(), LockName::new("a").unwrap());
        for turn in 0..3 {
            rests.taken(&name, true, after(turn * 150));
            assert_eq!(rests.given_back(&name, after(turn * 150 + 149)), turn == 2);
        }
        assert!(rests.rests(&name, after(449 + 448)) && !rests.rests(&name, after(449 + 450)));
        assert_eq!(rests.over(after(500)), (vec![], Some(after(449 + 449))));
        assert_eq!(rests.over(after(900)), (vec![name.clone()], None));
        rests.taken(&name, true, after(2_000));
        assert!(rests.given_back(&name, after(62_000)));
        assert!(!rests.rests(&name, after(63_000)), "a rest has an end");
    }

    #[test]
    fn a_lock_that_is_free_or_held_by_others_in_between_does_not_rest() {
        let (mut rests, name) = (Rests::default(), LockName::new("a").unwrap());
        for turn in 0..5 {
            rests.taken(&name, true, after(turn * 400));
            assert!(!rests.given_back(&name, after(turn * 400 + 150)));
        }
        for turn in 10..15 {
            rests.taken(&name, true, after(turn * 400));
            assert!(!rests.given_back(&name, after(turn * 400 + 200)));
            rests.taken(&name, false, after(turn * 400 + 210));
            assert!(!rests.given_back(&name, after(turn * 400 + 399)));
        }
    }
}
