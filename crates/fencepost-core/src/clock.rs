//! The only place that reads time.
//!
//! Leases are measured on a clock that advances while the host is suspended (`CLOCK_BOOTTIME` on Linux), never on the wall
//! clock. Tests can use a clock that they advance themselves: [`ManualClock`].

use std::ops::{Add, Sub};
use std::time::Duration;

pub use crate::manual_clock::ManualClock;
use crate::manual_clock::ManualTimer;
pub use crate::storage_time::StorageTime;

/// A point in time on a [`Clock`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Moment(u64);

impl Moment {
    /// The start of the host, or of a manual clock.
    pub const START: Self = Self(0);
    /// Later than every other moment.
    pub const NEVER: Self = Self(u64::MAX);

    /// Returns the moment this many nanoseconds after [`Moment::START`].
    pub const fn from_nanos(nanos: u64) -> Self {
        Self(nanos)
    }

    /// Returns the nanoseconds since [`Moment::START`].
    pub const fn as_nanos(self) -> u64 {
        self.0
    }

    /// Returns the time since `earlier`, or zero.
    pub fn since(self, earlier: Self) -> Duration {
        Duration::from_nanos(self.0.saturating_sub(earlier.0))
    }
}

impl Add<Duration> for Moment {
    type Output = Self;

    fn add(self, rhs: Duration) -> Self {
        Self(self.0.saturating_add(u64::try_from(rhs.as_nanos()).unwrap_or(u64::MAX)))
    }
}

impl Sub<Duration> for Moment {
    type Output = Self;

    fn sub(self, rhs: Duration) -> Self {
        Self(self.0.saturating_sub(u64::try_from(rhs.as_nanos()).unwrap_or(u64::MAX)))
    }
}

/// Returns the drift allowed between two clocks over one ttl: 1 % of it and 2 ms.
pub fn drift(ttl: Duration) -> Duration {
    ttl / 100 + Duration::from_millis(2)
}

/// Returns when a lease ends for its holder, if its request was sent at `sent`.
pub fn valid_until(sent: Moment, ttl: Duration) -> Moment {
    sent + ttl.saturating_sub(drift(ttl))
}

/// Returns the longest outage of a backend that does not lose a lease of this length, if requests fail during it: a renewal is
/// sent a third of the ttl after the last one that succeeded, and a failed one is retried after a twelfth. If requests are lost
/// without an error, the renewal is repeated after a sixth, and the bound is half the ttl.
pub fn survivable_outage(ttl: Duration) -> Duration {
    (ttl * 2 / 3).saturating_sub(ttl / 12 + drift(ttl))
}

/// Returns the wall clock, as time since 1970. For display and for the first token of new data, never for leases.
#[allow(clippy::disallowed_methods, reason = "this is the place")]
pub fn wall_time() -> Duration {
    std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default()
}

/// The clock of a client.
#[derive(Clone, Debug, Default)]
pub struct Clock(Option<ManualClock>);

impl Clock {
    /// Returns the host's clock, which advances while it is suspended.
    pub fn system() -> Self {
        Self(None)
    }

    /// Returns the current time.
    pub fn now(&self) -> Moment {
        match &self.0 {
            None => system::now(),
            Some(manual) => manual.now(),
        }
    }

    /// Returns whether it advances by itself.
    pub(crate) fn is_real(&self) -> bool {
        self.0.is_none()
    }

    /// Creates a timer. For the system's clock it must be created inside a tokio runtime with I/O.
    ///
    /// # Errors
    /// If the operating system has no timer left.
    pub fn timer(&self) -> std::io::Result<Timer> {
        Ok(Timer(match &self.0 {
            None => TimerKind::System(system::Timer::new()?),
            Some(manual) => TimerKind::Manual(ManualTimer::new(manual)),
        }))
    }

    /// Waits until `at`, with a separate timer.
    ///
    /// # Errors
    /// If the operating system has no timer left.
    pub async fn sleep_until(&self, at: Moment) -> std::io::Result<()> {
        let mut timer = self.timer()?;
        timer.arm(at);
        timer.fired().await;
        Ok(())
    }
}

impl From<ManualClock> for Clock {
    fn from(manual: ManualClock) -> Self {
        Self(Some(manual))
    }
}

/// One timer of a [`Clock`]: armed for a moment, it fires once.
#[derive(Debug)]
pub struct Timer(TimerKind);

#[derive(Debug)]
enum TimerKind {
    System(system::Timer),
    Manual(ManualTimer),
}

impl Timer {
    /// Sets when to fire next; [`Moment::NEVER`] disarms it.
    pub fn arm(&mut self, at: Moment) {
        match &mut self.0 {
            TimerKind::System(timer) => timer.arm(at),
            TimerKind::Manual(timer) => timer.arm(at),
        }
    }

    /// Waits until the moment it was armed for. It may fire early after it was armed again.
    ///
    /// # Cancel safety
    /// Dropping the future loses nothing.
    pub async fn fired(&mut self) {
        match &mut self.0 {
            TimerKind::System(timer) => timer.fired().await,
            TimerKind::Manual(timer) => std::future::poll_fn(|cx| timer.poll(cx)).await,
        }
    }
}

#[cfg(target_os = "linux")]
mod system {
    //! `CLOCK_BOOTTIME`, and a timer on it: tokio's timers do not advance while the host is suspended.

    use std::os::fd::OwnedFd;

    use rustix::time::{
        ClockId, Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, clock_gettime,
        timerfd_create, timerfd_settime,
    };
    use tokio::io::Interest;
    use tokio::io::unix::AsyncFd;

    use super::Moment;

    const NANOS: u64 = 1_000_000_000;

    pub(super) fn now() -> Moment {
        let now = clock_gettime(ClockId::Boottime);
        Moment::from_nanos(
            u64::try_from(now.tv_sec).unwrap_or(0) * NANOS + u64::try_from(now.tv_nsec).unwrap_or(0),
        )
    }

    #[derive(Debug)]
    pub(super) struct Timer {
        fd: AsyncFd<OwnedFd>,
        armed: Moment,
    }

    impl Timer {
        pub(super) fn new() -> std::io::Result<Self> {
            let fd =
                timerfd_create(TimerfdClockId::Boottime, TimerfdFlags::NONBLOCK | TimerfdFlags::CLOEXEC)?;
            // SAFETY: the `OwnedFd` is moved in, stays open and is the same until the `AsyncFd` is dropped.
            #[allow(
                unsafe_code,
                reason = "the one place: tokio has no safe way to watch a timer's descriptor"
            )]
            let fd = unsafe { AsyncFd::register_with_interest(fd, Interest::READABLE) }?;
            Ok(Self { fd, armed: Moment::NEVER })
        }

        pub(super) fn arm(&mut self, at: Moment) {
            // A timer that fires too early is rearmed by its owner; leaving it saves a system call per flight.
            if at >= self.armed {
                return;
            }
            self.set(at);
        }

        fn set(&mut self, at: Moment) {
            // A value of zero would disarm the timer.
            let nanos = at.as_nanos().max(1);
            let value = Timespec {
                tv_sec: i64::try_from(nanos / NANOS).unwrap_or(i64::MAX),
                tv_nsec: i64::try_from(nanos % NANOS).unwrap_or(0),
            };
            let spec = Itimerspec { it_interval: Timespec { tv_sec: 0, tv_nsec: 0 }, it_value: value };
            if timerfd_settime(&self.fd, TimerfdTimerFlags::ABSTIME, &spec).is_ok() {
                self.armed = at;
            }
        }

        pub(super) async fn fired(&mut self) {
            loop {
                let Ok(mut ready) = self.fd.readable().await else {
                    return std::future::pending().await;
                };
                let mut count = [0u8; 8];
                let read = ready.try_io(|fd| Ok(rustix::io::read(fd, &mut count)?));
                if let Ok(Ok(_)) = read {
                    self.armed = Moment::NEVER;
                    return;
                }
            }
        }
    }
}

#[cfg(not(target_os = "linux"))]
mod system {
    //! `CLOCK_MONOTONIC` (which advances during sleep on macOS) and tokio's timer, rearmed at least once a second.

    use std::time::Duration;

    use rustix::time::{ClockId, clock_gettime};

    use super::Moment;

    const NANOS: u64 = 1_000_000_000;

    pub(super) fn now() -> Moment {
        let now = clock_gettime(ClockId::Monotonic);
        Moment::from_nanos(
            u64::try_from(now.tv_sec).unwrap_or(0) * NANOS + u64::try_from(now.tv_nsec).unwrap_or(0),
        )
    }

    #[derive(Debug)]
    pub(super) struct Timer(Moment);

    impl Timer {
        #[allow(clippy::unnecessary_wraps, reason = "it can fail on Linux")]
        pub(super) fn new() -> std::io::Result<Self> {
            Ok(Self(Moment::NEVER))
        }

        pub(super) fn arm(&mut self, at: Moment) {
            self.0 = at;
        }

        #[allow(clippy::disallowed_methods, reason = "this is the place")]
        pub(super) async fn fired(&mut self) {
            while now() < self.0 {
                tokio::time::sleep(self.0.since(now()).min(Duration::from_secs(1))).await;
            }
            self.0 = Moment::NEVER;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn validity_is_shorter_than_the_lease_by_the_drift() {
        let sent = Moment::START + Duration::from_secs(5);
        assert_eq!(valid_until(sent, Duration::from_secs(30)), sent + Duration::from_millis(30_000 - 302));
        assert_eq!(valid_until(sent, Duration::from_millis(1)), sent);
    }

    #[test]
    fn system_timer_fires_after_its_moment() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_io().build().unwrap();
        runtime.block_on(async {
            let clock = Clock::system();
            let at = clock.now() + Duration::from_millis(5);
            clock.sleep_until(at).await.unwrap();
            assert!(clock.now() >= at);
        });
    }
}
