//! The frequency and severity of faults.

use std::time::Duration;

use super::TTL;

/// Frequencies of faults: in percent of the sends, or of the lease times of a process.
#[derive(Clone, Copy, Debug)]
pub(super) struct Conditions {
    /// The longest time that a request, a reply or a push takes without a fault.
    pub(super) travel_time: Duration,
    pub(super) lost: u64,
    pub(super) unreachable: u64,
    pub(super) late: u64,
    /// The longest delay of a late message. A tombstone is kept for one lease.
    pub(super) late_by: Duration,
    pub(super) cuts: u64,
    pub(super) pauses: u64,
    pub(super) deaths: u64,
    /// Clients that are closed.
    pub(super) closes: u64,
    /// Locks that are broken.
    pub(super) breaks: u64,
}

impl Conditions {
    pub(super) const CALM: Self = Self {
        travel_time: Duration::from_millis(200),
        lost: 0,
        unreachable: 0,
        late: 0,
        late_by: TTL,
        cuts: 0,
        pauses: 0,
        deaths: 0,
        closes: 2,
        breaks: 5,
    };
    pub(super) const LOSSY: Self = Self { lost: 15, unreachable: 10, cuts: 10, ..Self::CALM };
    pub(super) const LATE: Self = Self { late: 25, ..Self::LOSSY };
    /// Some arrive when the tombstone of their owner has expired.
    pub(super) const TOO_LATE: Self = Self { late_by: Duration::from_secs(30), ..Self::LATE };
    pub(super) const DEADLY: Self = Self { pauses: 10, deaths: 3, ..Self::TOO_LATE };
    /// Holders are cut off all the time, and waiters are granted at once: clock drift matters.
    pub(super) const CUT_OFF: Self = Self { travel_time: Duration::from_millis(1), cuts: 60, ..Self::CALM };
}
