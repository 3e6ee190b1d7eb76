//! Logging, metrics and deadlines of the client's calls; no other module of this crate has them.
//!
//! Events are reported to two small objects: an [`AcquireObserver`] exists while a caller waits for a lock, a [`HoldObserver`] while a lock
//! is held. Requests pass through wrappers of the [`Backend`]. With the features `tracing` and `metrics` off, the objects do
//! nothing.

mod call_timeout;
#[cfg(not(all(feature = "tracing", feature = "metrics")))]
mod disabled;
#[cfg(feature = "metrics")]
mod handles;
#[cfg_attr(
    not(all(feature = "tracing", feature = "metrics")),
    allow(dead_code, reason = "each has its readers")
)]
mod labels;
#[cfg(feature = "metrics")]
mod measured;
#[cfg(feature = "metrics")]
mod metrics;
#[cfg(feature = "metrics")]
mod patterns;
#[cfg(feature = "tracing")]
mod trace;

use std::sync::Arc;
use std::time::Duration;

#[cfg(not(feature = "metrics"))]
use disabled as metrics;
#[cfg(not(feature = "tracing"))]
use disabled as trace;
use labels::Outcome;
pub(crate) use trace::Origin;

use crate::backend::{Backend, BackendInfo};
use crate::clock::{Clock, Moment};
use crate::error::{Error, Result};
use crate::grant::{Attempt, Grant, LostReason};
use crate::guard::Guard;
use crate::options::Options;
use crate::timers::Timers;
use crate::token::FencingToken;

/// Whether durations are recorded.
const TIMED: bool = cfg!(any(feature = "tracing", feature = "metrics"));

/// The layers of one client; its callers and its thread have a copy each.
pub(crate) struct Layers {
    backend: &'static str,
    clock: Clock,
    call_timeout: Duration,
    meters: Arc<metrics::Meters>,
}

impl Layers {
    pub(crate) fn new(info: &BackendInfo, options: &Options) -> Self {
        Self {
            backend: info.scheme,
            clock: options.clock.clone(),
            call_timeout: options.call_timeout,
            meters: Arc::new(metrics::Meters::new(info.scheme, options)),
        }
    }

    /// Wraps the backend.
    pub(crate) fn wrap(&self, backend: Arc<dyn Backend>, timers: Arc<Timers>) -> Arc<dyn Backend> {
        let bounded = call_timeout::CallTimeout::new(backend, self.clock.clone(), timers, self.call_timeout);
        metrics::measured(Arc::new(bounded), &self.clock, &self.meters)
    }

    /// Starts an acquire. Must be called on the caller's thread.
    pub(crate) fn acquiring(&self, attempt: &Attempt) -> AcquireObserver {
        AcquireObserver {
            stopwatch: Stopwatch::start(&self.clock),
            trace: trace::AcquireObserver::new(self.backend, attempt),
            meter: self.meters.acquiring(attempt),
            outcome: Outcome::Cancelled,
            token: None,
        }
    }

    /// Starts a hold of a caller with this origin.
    pub(crate) fn holding(&self, grant: &Grant, origin: Origin) -> HoldObserver {
        HoldObserver {
            stopwatch: Stopwatch::start(&self.clock),
            trace: origin.holding(self.backend, grant),
            meter: self.meters.holding(grant),
        }
    }
}

/// A caller that waits for a lock. If it is dropped before [`AcquireObserver::ended`], the acquire was cancelled.
pub(crate) struct AcquireObserver {
    stopwatch: Stopwatch,
    trace: trace::AcquireObserver,
    meter: metrics::AcquireObserver,
    outcome: Outcome,
    token: Option<FencingToken>,
}

impl AcquireObserver {
    /// Records the outcome.
    pub(crate) fn ended(mut self, outcome: &Result<Option<Guard>>) {
        self.outcome = Outcome::of(outcome);
        self.token = outcome.as_ref().ok().and_then(Option::as_ref).map(Guard::token);
    }
}

impl Drop for AcquireObserver {
    fn drop(&mut self) {
        let waited = self.stopwatch.elapsed();
        self.trace.ended(self.outcome, self.token, waited);
        self.meter.ended(self.outcome, self.token, waited);
    }
}

/// The outcome of a renewal.
#[cfg_attr(
    not(all(feature = "tracing", feature = "metrics")),
    allow(dead_code, reason = "each has its readers")
)]
#[derive(Clone, Copy, Debug)]
pub(crate) enum Renewal<'a> {
    /// It succeeded when this much of the lease was left.
    Done { margin: Duration },
    /// The backend reports that the lock is not held.
    NotHeld,
    /// It failed.
    Failed(&'a Error),
    /// There is no reply yet, and it is sent again.
    Unanswered,
}

/// A lock that is held.
pub(crate) struct HoldObserver {
    stopwatch: Stopwatch,
    trace: trace::HoldObserver,
    meter: metrics::HoldObserver,
}

impl HoldObserver {
    /// Records a renewal.
    pub(crate) fn renewal(&self, renewal: Renewal<'_>) {
        self.trace.renewal(renewal);
        self.meter.renewal(renewal);
    }

    /// Records the end of the hold. Must be called once.
    pub(crate) fn ended(&self, reason: LostReason) {
        let held = self.stopwatch.elapsed();
        self.trace.ended(reason, held);
        self.meter.ended(reason, held);
    }
}

/// Measures a duration, if durations are recorded.
struct Stopwatch {
    clock: Clock,
    since: Moment,
}

impl Stopwatch {
    fn start(clock: &Clock) -> Self {
        if TIMED {
            Self { clock: clock.clone(), since: clock.now() }
        } else {
            Self { clock: Clock::system(), since: Moment::NEVER }
        }
    }

    fn elapsed(&self) -> Duration {
        if TIMED { self.clock.now().since(self.since) } else { Duration::ZERO }
    }
}
