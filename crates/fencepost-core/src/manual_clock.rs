//! A clock that tests can move: [`ManualClock`], and the timers on it.

use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use crate::clock::Moment;

/// A clock that only a test advances.
///
/// [`ManualClock::advance`] stops at every timer on the way until its owner is idle again, so that an advance of ten heartbeats
/// causes ten renewals, independent of the load of the host.
///
/// ```
/// use std::time::Duration;
/// use fencepost_core::clock::{Clock, ManualClock};
///
/// let manual = ManualClock::new();
/// let clock = Clock::from(manual.clone());
/// let before = clock.now();
/// manual.advance(Duration::from_secs(3600));
/// assert_eq!(clock.now().since(before), Duration::from_secs(3600));
/// ```
#[derive(Clone, Debug)]
pub struct ManualClock(Arc<ManualShared>);

#[derive(Debug)]
struct ManualShared {
    state: Mutex<ManualState>,
    changed: Condvar,
}

#[derive(Debug)]
struct ManualState {
    now: Moment,
    next_id: u64,
    timers: Vec<Slot>,
}

#[derive(Debug)]
struct Slot {
    id: u64,
    armed: Moment,
    /// Whether its owner is idle but for this timer. Arming it is not enough: its owner may have more to do before it waits.
    resting: bool,
    waker: Option<Waker>,
}

impl Slot {
    fn wake(&mut self) {
        self.resting = false;
        if let Some(waker) = self.waker.take() {
            waker.wake();
        }
    }
}

impl Default for ManualClock {
    fn default() -> Self {
        Self::new()
    }
}

impl ManualClock {
    /// Returns a clock at one hour after its start.
    pub fn new() -> Self {
        let state =
            ManualState { now: Moment::START + Duration::from_secs(3600), next_id: 0, timers: Vec::new() };
        Self(Arc::new(ManualShared { state: Mutex::new(state), changed: Condvar::new() }))
    }

    /// Advances the time, timer by timer, and returns when the owners of all fired timers are idle.
    ///
    /// Must be called from a test's thread, never from inside a client.
    pub fn advance(&self, by: Duration) {
        let mut state = self.state();
        let target = state.now + by;
        loop {
            while state.timers.iter().any(|slot| !slot.resting) {
                state = self.0.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
            }
            let due =
                state.timers.iter_mut().filter(|slot| slot.armed <= target).min_by_key(|slot| slot.armed);
            let Some(slot) = due else { break };
            let at = slot.armed;
            slot.wake();
            state.now = state.now.max(at);
        }
        state.now = target;
    }

    /// Advances the time in one step, as a host that was paused sees it.
    pub fn jump(&self, by: Duration) {
        let mut state = self.state();
        state.now = state.now + by;
        let now = state.now;
        state.timers.iter_mut().filter(|slot| slot.armed <= now).for_each(Slot::wake);
    }

    pub(crate) fn now(&self) -> Moment {
        self.state().now
    }

    fn state(&self) -> MutexGuard<'_, ManualState> {
        self.0.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[derive(Debug)]
pub(crate) struct ManualTimer {
    clock: ManualClock,
    id: u64,
}

impl ManualTimer {
    pub(crate) fn new(clock: &ManualClock) -> Self {
        let mut state = clock.state();
        let id = state.next_id;
        state.next_id += 1;
        state.timers.push(Slot { id, armed: Moment::NEVER, resting: false, waker: None });
        drop(state);
        Self { clock: clock.clone(), id }
    }

    fn with_slot<T>(&self, act: impl FnOnce(&mut Slot, Moment) -> T) -> Option<T> {
        let mut state = self.clock.state();
        let now = state.now;
        let out = state.timers.iter_mut().find(|slot| slot.id == self.id).map(|slot| act(slot, now));
        drop(state);
        self.clock.0.changed.notify_all();
        out
    }

    pub(crate) fn arm(&mut self, at: Moment) {
        self.with_slot(|slot, _| {
            slot.armed = at;
            slot.resting = false;
        });
    }

    pub(crate) fn poll(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        self.with_slot(|slot, now| {
            slot.resting = slot.armed > now;
            if !slot.resting {
                return Poll::Ready(());
            }
            slot.waker = Some(cx.waker().clone());
            Poll::Pending
        })
        .unwrap_or(Poll::Ready(()))
    }
}

impl Drop for ManualTimer {
    fn drop(&mut self) {
        self.clock.state().timers.retain(|slot| slot.id != self.id);
        self.clock.0.changed.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::Clock;

    #[test]
    fn manual_clock_stops_at_every_timer() {
        let manual = ManualClock::new();
        let clock = Clock::from(manual.clone());
        let start = clock.now();
        let seen = Arc::new(Mutex::new(Vec::new()));
        let ticker = std::thread::spawn({
            let (clock, seen) = (clock.clone(), seen.clone());
            let mut timer = clock.timer().unwrap();
            move || {
                tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(async {
                    for round in 1..=3 {
                        timer.arm(start + Duration::from_secs(10) * round);
                        timer.fired().await;
                        seen.lock().unwrap().push(clock.now().since(start).as_secs());
                    }
                });
            }
        });
        manual.advance(Duration::from_secs(35));
        ticker.join().unwrap();
        assert_eq!(*seen.lock().unwrap(), [10, 20, 30]);
        assert_eq!(clock.now().since(start), Duration::from_secs(35));
    }
    #[test]
    fn advance_returns_when_what_it_caused_is_done() {
        let manual = ManualClock::new();
        let start = manual.now();
        let done = Arc::new(Mutex::new(0));
        let mut timer = Clock::from(manual.clone()).timer().unwrap();
        let worker = std::thread::spawn({
            let done = done.clone();
            move || {
                tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(async {
                    for round in 1..=100 {
                        timer.arm(start + Duration::from_secs(round));
                        (0..100).for_each(|_| std::thread::yield_now());
                        *done.lock().unwrap() = round - 1;
                        timer.fired().await;
                    }
                });
            }
        });
        for round in 1..100 {
            manual.advance(Duration::from_secs(1));
            assert_eq!(*done.lock().unwrap(), round);
        }
        manual.advance(Duration::from_secs(1));
        worker.join().unwrap();
    }
}
