//! Clocks that do not run at the same speed.

use std::time::Duration;

use fencepost_core::clock::Moment;

use super::start;

/// A process's own clock, which runs a little faster or slower than the storage's.
#[derive(Clone, Copy, Default)]
pub(super) struct SkewedClock {
    /// How many parts of a thousand it is ahead or behind after the same time.
    pub(super) skew: i64,
}

impl SkewedClock {
    /// What this clock shows when it is `at` on the storage's.
    pub(super) fn shows(self, at: Moment) -> Moment {
        let passed = i64::try_from(at.since(start()).as_nanos()).expect("it is not long");
        start() + Duration::from_nanos((passed + passed / 1000 * self.skew).unsigned_abs())
    }

    /// When this clock shows `shown`, or just after.
    pub(super) fn when(self, shown: Moment) -> Moment {
        let passed = i64::try_from(shown.since(start()).as_nanos()).expect("it is not long");
        let at = start() + Duration::from_nanos((passed / (1000 + self.skew) * 1000).unsigned_abs());
        at + Duration::from_micros(10)
    }
}
