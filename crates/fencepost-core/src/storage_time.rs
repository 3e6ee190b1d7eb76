//! The backend's clock, the only one that decides whether a lease has expired. A separate type, so that it is not compared with
//! a client's clock by mistake.

use std::ops::Add;
use std::time::Duration;

use crate::clock::{Clock, Moment};

/// A point in time on the clock of a backend.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct StorageTime(Moment);

impl StorageTime {
    /// Later than every other time.
    pub const NEVER: Self = Self(Moment::NEVER);

    /// Reads the time of a backend on this host, which uses this clock.
    pub fn read(clock: &Clock) -> Self {
        Self(clock.now())
    }

    /// Returns the time this many nanoseconds after the start of the backend's clock.
    pub const fn from_nanos(nanos: u64) -> Self {
        Self(Moment::from_nanos(nanos))
    }

    /// Returns the nanoseconds since the start of the backend's clock.
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
