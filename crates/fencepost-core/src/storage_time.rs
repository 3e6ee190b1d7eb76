//! The storage's clock, which alone judges leases. It is a type of its own so that no moment of a client's clock is
//! compared with it by mistake.

use std::ops::Add;
use std::time::Duration;

use crate::clock::{Clock, Moment};

/// A point in time on the clock of a storage.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct StorageTime(Moment);

impl StorageTime {
    /// Later than everything.
    pub const NEVER: Self = Self(Moment::NEVER);

    /// Reads the time of a storage whose clock is this one: a storage on this machine.
    pub fn read(clock: &Clock) -> Self {
        Self(clock.now())
    }

    /// Returns the time this many nanoseconds after the storage's clock began.
    pub const fn from_nanos(nanos: u64) -> Self {
        Self(Moment::from_nanos(nanos))
    }

    /// Returns the nanoseconds since the storage's clock began.
    pub const fn as_nanos(self) -> u64 {
        self.0.as_nanos()
    }

    /// Returns the time since `earlier`, or zero.
    pub fn since(self, earlier: Self) -> Duration {
        self.0.since(earlier.0)
    }
}

impl Add<Duration> for StorageTime {
    type Output = Self;

    fn add(self, rhs: Duration) -> Self {
        Self(self.0 + rhs)
    }
}
