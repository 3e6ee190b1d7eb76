//! Clocks that do not run at the same speed.

use std::time::Duration;

use fencepost_core::clock::Moment;

use super::start;

/// The clock of a process, which runs a little faster or slower than that of the backend.
#[derive(Clone, Copy, Default)]
pub(super) struct SkewedClock {
    /// The drift, in thousandths.
    pub(super) skew: i64,
}

impl SkewedClock {
    /// Returns what this clock shows when that of the backend shows `at`.
    pub(super) fn shows(self, at: Moment) -> Moment {
        let passed = i64::try_from(at.since(start()).as_nanos()).expect("it is not long");
        start() + Duration::from_nanos((passed + passed / 1000 * self.skew).unsigned_abs())
    }

    /// Returns when this clock shows `shown`, or just after.
    pub(super) fn when(self, shown: Moment) -> Moment {
        let passed = i64::try_from(shown.since(start()).as_nanos()).expect("it is not long");
        let at = start() + Duration::from_nanos((passed / (1000 + self.skew) * 1000).unsigned_abs());
        at + Duration::from_micros(10)
    }
}
