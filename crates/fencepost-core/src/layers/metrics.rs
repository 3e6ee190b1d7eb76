//! Counters, gauges and histograms for the `metrics` facade. Names and labels are in `handles.rs`.
//!
//! Handles are registered once per recorder: an event costs one comparison of the recorder, and no allocation.

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use super::Renewal;
use super::handles::{ENDS, Handles, LockHandles, REASONS, RENEWALS};
use super::labels::{self, Outcome};
pub(super) use super::measured::measured;
use super::patterns::Patterns;
use crate::grant::{Attempt, Grant, LostReason};
use crate::name::LockName;
use crate::options::Options;
use crate::token::FencingToken;

/// The metrics of one client.
pub(super) struct Meters {
    backend: &'static str,
    patterns: Patterns,
    first: OnceLock<Box<Registered>>,
}

/// A recorder, and the handles registered with it: usually first the no-op recorder, because the program has not installed its
/// own yet, and then that one.
struct Registered {
    recorder: usize,
    handles: Arc<Handles>,
    next: OnceLock<Box<Registered>>,
}

impl Meters {
    pub(super) fn new(backend: &'static str, options: &Options) -> Self {
        Self { backend, patterns: Patterns::new(&options.metrics_names), first: OnceLock::new() }
    }

    /// Returns the handles for this thread's recorder.
    pub(super) fn handles(&self) -> &Arc<Handles> {
        let recorder = ::metrics::with_recorder(|recorder| std::ptr::from_ref(recorder).addr());
        let mut place = &self.first;
        loop {
            let known = place.get_or_init(|| {
                let handles = Arc::new(Handles::register(self.backend, self.patterns.labels()));
                Box::new(Registered { recorder, handles, next: OnceLock::new() })
            });
            if known.recorder == recorder {
                return &known.handles;
            }
            place = &known.next;
        }
    }

    pub(super) fn group(&self, name: &LockName) -> usize {
        self.patterns.group(name.as_str())
    }

    pub(super) fn acquiring(&self, attempt: &Attempt) -> AcquireObserver {
        let want = attempt.wants.first();
        let group = want.map_or(0, |want| self.group(&want.name));
        let kind = want.map_or(0, |want| labels::kind(want.mode));
        let acquiring = AcquireObserver { handles: self.handles().clone(), group, kind };
        acquiring.lock().waiters.increment(1);
        acquiring
    }

    pub(super) fn holding(&self, grant: &Grant) -> HoldObserver {
        let group = grant.held().first().map_or(0, |want| self.group(&want.name));
        let holding = HoldObserver { handles: self.handles().clone(), group };
        holding.lock().held.increment(1);
        holding
    }
}

/// A waiting caller. It keeps its handles, so that a gauge is decremented at the recorder where it was incremented.
pub(super) struct AcquireObserver {
    handles: Arc<Handles>,
    group: usize,
    kind: usize,
}

impl AcquireObserver {
    fn lock(&self) -> &LockHandles {
        &self.handles.locks[self.group]
    }

    pub(super) fn ended(&self, outcome: Outcome, _token: Option<FencingToken>, waited: Duration) {
        let lock = self.lock();
        lock.waiters.decrement(1);
        lock.acquires[self.kind][outcome as usize].increment(1);
        lock.waited[outcome as usize].record(waited);
    }
}

/// A lock that is held.
pub(super) struct HoldObserver {
    handles: Arc<Handles>,
    group: usize,
}

impl HoldObserver {
    fn lock(&self) -> &LockHandles {
        &self.handles.locks[self.group]
    }

    pub(super) fn renewal(&self, renewal: Renewal<'_>) {
        let lock = self.lock();
        let outcome = match renewal {
            Renewal::Done { .. } => "renewed",
            Renewal::NotHeld => "not_held",
            Renewal::Failed(_) | Renewal::Unanswered => "failed",
        };
        lock.renewals[index_of(&RENEWALS, outcome)].increment(1);
        match renewal {
            Renewal::Done { margin } => lock.margin.record(margin),
            // A request that hangs has no end at which it would be counted.
            Renewal::Unanswered => self.handles.up.set(0),
            Renewal::NotHeld | Renewal::Failed(_) => {}
        }
    }

    pub(super) fn ended(&self, reason: LostReason, held: Duration) {
        let lock = self.lock();
        let end = match reason {
            LostReason::Released => "released",
            LostReason::Expired => "expired",
            LostReason::Broken => "forced",
            LostReason::NotHeld | LostReason::MaxHold | LostReason::Closed | LostReason::Abandoned => "lost",
        };
        lock.held.decrement(1);
        lock.holds[index_of(&ENDS, end)].record(held);
        if reason != LostReason::Released {
            lock.lost[index_of(&REASONS, labels::reason(reason))].increment(1);
        }
    }
}

/// Returns the index of a label value in its list, which contains it.
fn index_of(values: &[&str], value: &str) -> usize {
    values.iter().position(|other| *other == value).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_reason_of_a_loss_has_its_own_counter() {
        use LostReason::{Abandoned, Broken, Closed, Expired, MaxHold, NotHeld};

        let losses = [Expired, NotHeld, Broken, MaxHold, Closed, Abandoned];
        assert_eq!(losses.map(labels::reason), REASONS);
    }
}
