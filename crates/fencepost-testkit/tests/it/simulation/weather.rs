//! How bad it is.

use std::time::Duration;

/// How much goes wrong: how many in a hundred sends, or in a hundred leases' times of a process.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Weather {
    /// How long a request, an answer or a push takes at most when nothing goes wrong.
    pub(super) way: Duration,
    pub(super) lost: u64,
    pub(super) unreachable: u64,
    pub(super) late: u64,
    pub(super) cuts: u64,
    pub(super) stops: u64,
    pub(super) deaths: u64,
}

impl Weather {
    pub(crate) const CALM: Self = Self {
        way: Duration::from_millis(200),
        lost: 0,
        unreachable: 0,
        late: 0,
        cuts: 0,
        stops: 0,
        deaths: 0,
    };
    pub(crate) const LOSSY: Self = Self { lost: 15, unreachable: 10, cuts: 10, ..Self::CALM };
    pub(crate) const LATE: Self = Self { late: 25, ..Self::LOSSY };
    pub(crate) const DEADLY: Self = Self { stops: 10, deaths: 3, ..Self::LATE };
    /// Holders are cut off all the time, and whoever waits enters at once: clocks matter.
    pub(crate) const CUT_OFF: Self = Self { way: Duration::from_millis(1), cuts: 60, ..Self::CALM };
}
