//! Every metric: its name, labels and description, and its handles, which are registered once.

use std::sync::OnceLock;
use std::time::Duration;

use ::metrics::{
    Counter, Gauge, Histogram, Label, Unit, counter, describe_counter, describe_gauge, describe_histogram,
    gauge, histogram,
};

use super::labels::{KINDS, Outcome};

const ACQUIRE_TOTAL: &str = "fencepost_lock_acquire_total";
const ACQUIRE_DURATION: &str = "fencepost_lock_acquire_duration_seconds";
const HOLD_DURATION: &str = "fencepost_lock_hold_duration_seconds";
const HELD: &str = "fencepost_locks_held";
const WAITERS: &str = "fencepost_lock_waiters";
const RENEW_TOTAL: &str = "fencepost_lock_renew_total";
const RENEW_MARGIN: &str = "fencepost_lock_renew_margin_seconds";
const LOST_TOTAL: &str = "fencepost_lock_lost_total";
const FORCED_TOTAL: &str = "fencepost_lock_forced_release_total";
const REQUEST_DURATION: &str = "fencepost_backend_request_duration_seconds";
const UP: &str = "fencepost_backend_up";

/// The `end` of a hold.
pub(super) const ENDS: [&str; 4] = ["released", "lost", "expired", "forced"];
/// The `outcome` of a renewal.
pub(super) const RENEWALS: [&str; 3] = ["renewed", "not_held", "failed"];
/// The `reason` of a loss.
pub(super) const REASONS: [&str; 6] = ["expired", "not_held", "broken", "max_hold", "closed", "abandoned"];
/// The `op` of a request.
pub(super) const REQUESTS: [&str; 3] = ["execute", "inspect", "list"];
/// The `outcome` of a request, the worst last.
pub(super) const OUTCOMES: [&str; 4] = ["ok", "error", "unreachable", "unknown"];

/// A histogram, registered with its first value: an empty one would fill an exporter's page with zeros.
pub(super) struct Times {
    name: &'static str,
    labels: Vec<Label>,
    handle: OnceLock<Histogram>,
}

impl Times {
    fn new(name: &'static str, labels: Vec<Label>) -> Self {
        Self { name, labels, handle: OnceLock::new() }
    }

    pub(super) fn record(&self, time: Duration) {
        self.handle.get_or_init(|| histogram!(self.name, self.labels.clone())).record(time);
    }
}

/// All handles of a client for one recorder.
pub(super) struct Handles {
    /// One for each group of names.
    pub(super) locks: Vec<LockHandles>,
    /// By request, then by outcome.
    pub(super) requests: [[Times; OUTCOMES.len()]; REQUESTS.len()],
    pub(super) up: Gauge,
}

/// The handles of one group of names.
pub(super) struct LockHandles {
    /// By kind, then by outcome.
    pub(super) acquires: [[Counter; Outcome::WORDS.len()]; KINDS.len()],
    pub(super) waited: [Times; Outcome::WORDS.len()],
    pub(super) holds: [Times; ENDS.len()],
    pub(super) held: Gauge,
    pub(super) waiters: Gauge,
    pub(super) renewals: [Counter; RENEWALS.len()],
    pub(super) margin: Times,
    pub(super) lost: [Counter; REASONS.len()],
    pub(super) forced: Counter,
}

impl Handles {
    /// Registers counters and gauges with the recorder of this thread, so that they are exported as zero before the first event.
    pub(super) fn register(backend: &'static str, names: impl Iterator<Item = Option<String>>) -> Self {
        describe();
        let backend = Label::new("backend", backend);
        let request = |op, answer| {
            let labels = vec![backend.clone(), Label::new("op", op), Label::new("outcome", answer)];
            Times::new(REQUEST_DURATION, labels)
        };
        let labels = |name: Option<String>| {
            let name = name.map(|name| Label::new("lock", name));
            [Some(backend.clone()), name].into_iter().flatten().collect::<Vec<_>>()
        };
        Self {
            locks: names.map(|name| LockHandles::register(&labels(name))).collect(),
            requests: REQUESTS.map(|op| OUTCOMES.map(|answer| request(op, answer))),
            up: gauge!(UP, vec![backend.clone()]),
        }
    }
}

impl LockHandles {
    fn register(common: &[Label]) -> Self {
        let alone = || common.to_vec();
        let and = |more: &[(&'static str, &'static str)]| {
            let more = more.iter().map(|(key, value)| Label::new(*key, *value));
            common.iter().cloned().chain(more).collect::<Vec<_>>()
        };
        let acquires = |kind, outcome| counter!(ACQUIRE_TOTAL, and(&[("kind", kind), ("outcome", outcome)]));
        Self {
            acquires: KINDS.map(|kind| Outcome::WORDS.map(|outcome| acquires(kind, outcome))),
            waited: Outcome::WORDS.map(|outcome| Times::new(ACQUIRE_DURATION, and(&[("outcome", outcome)]))),
            holds: ENDS.map(|end| Times::new(HOLD_DURATION, and(&[("end", end)]))),
            held: gauge!(HELD, alone()),
            waiters: gauge!(WAITERS, alone()),
            renewals: RENEWALS.map(|outcome| counter!(RENEW_TOTAL, and(&[("outcome", outcome)]))),
            margin: Times::new(RENEW_MARGIN, alone()),
            lost: REASONS.map(|reason| counter!(LOST_TOTAL, and(&[("reason", reason)]))),
            forced: counter!(FORCED_TOTAL, alone()),
        }
    }
}

fn describe() {
    describe_counter!(ACQUIRE_TOTAL, "Attempts to acquire a lock, by outcome.");
    describe_histogram!(
        ACQUIRE_DURATION,
        Unit::Seconds,
        "How long callers waited for the outcome of an acquire."
    );
    describe_histogram!(HOLD_DURATION, Unit::Seconds, "How long locks were held, by how the hold ended.");
    describe_gauge!(HELD, "Locks that are held now.");
    describe_gauge!(WAITERS, "Callers that are waiting for a lock.");
    describe_counter!(RENEW_TOTAL, "Renewals of leases, by outcome.");
    describe_histogram!(
        RENEW_MARGIN,
        Unit::Seconds,
        "What was left of the lease when its renewal completed: near zero, locks are about to be lost."
    );
    describe_counter!(LOST_TOTAL, "Locks that were lost while they were held, by reason.");
    describe_counter!(FORCED_TOTAL, "Holders that this program removed by breaking their locks.");
    describe_histogram!(REQUEST_DURATION, Unit::Seconds, "How long the backend took to reply.");
    describe_gauge!(UP, "1 if the latest request got a reply, 0 if not.");
}
