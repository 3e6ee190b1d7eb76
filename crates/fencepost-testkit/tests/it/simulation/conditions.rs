//! How bad it is.

use std::time::Duration;

use super::TTL;

/// How much goes wrong: how many in a hundred sends, or in a hundred leases' times of a process.
#[derive(Clone, Copy, Debug)]
pub(super) struct Conditions {
    /// How long a request, an answer or a push takes at most when nothing goes wrong.
    pub(super) way: Duration,
    pub(super) lost: u64,
    pub(super) unreachable: u64,
    pub(super) late: u64,
    /// How late something late is at most. A storage remembers for a lease that an owner has left.
    pub(super) late_by: Duration,
    pub(super) cuts: u64,
    pub(super) stops: u64,
    pub(super) deaths: u64,
    /// Clients that are closed.
    pub(super) closes: u64,
    /// Locks that are broken.
    pub(super) breaks: u64,
}

impl Conditions {
    pub(super) const CALM: Self = Self {
        way: Duration::from_millis(200),
        lost: 0,
        unreachable: 0,
        late: 0,
        late_by: TTL,
        cuts: 0,
        stops: 0,
        deaths: 0,
        closes: 2,
        breaks: 5,
    };
    pub(super) const LOSSY: Self = Self { lost: 15, unreachable: 10, cuts: 10, ..Self::CALM };
    pub(super) const LATE: Self = Self { late: 25, ..Self::LOSSY };
    /// Some arrive when the storage has forgotten that their owner has left.
    pub(super) const TOO_LATE: Self = Self { late_by: Duration::from_secs(30), ..Self::LATE };
    pub(super) const DEADLY: Self = Self { stops: 10, deaths: 3, ..Self::TOO_LATE };
    /// Holders are cut off all the time, and waiters enter at once: clocks matter.
    pub(super) const CUT_OFF: Self = Self { way: Duration::from_millis(1), cuts: 60, ..Self::CALM };
}
