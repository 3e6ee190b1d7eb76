//! How long a run waits in all: for the server, and then for the lock.

use std::time::Duration;

use fencepost::clock::{Clock, Moment};
use fencepost::{Error, ErrorKind};

use crate::durations::show;

/// The time that `--wait` allows, counted from the start of the run.
#[derive(Clone, Copy, Debug)]
pub(crate) struct WaitLimit {
    began: Moment,
    wait: Option<Duration>,
}

impl WaitLimit {
    /// Starts the count; `None` waits for ever.
    pub(crate) fn start(wait: Option<Duration>) -> Self {
        Self { began: Clock::system().now(), wait }
    }

    /// Returns how much of the wait is left; `None` if it has no end.
    pub(crate) fn left(self, now: Moment) -> Option<Duration> {
        self.wait.map(|wait| (self.began + wait).since(now))
    }

    /// Returns whether `--wait` was given and is not zero.
    pub(crate) fn is_limited(self) -> bool {
        self.wait.is_some_and(|wait| !wait.is_zero())
    }

    /// Returns the end of the wait.
    pub(crate) fn end(self) -> Moment {
        self.wait.map_or(Moment::NEVER, |wait| self.began + wait)
    }

    /// Returns how long the run has waited.
    pub(crate) fn waited(self, now: Moment) -> Duration {
        now.since(self.began)
    }

    /// Returns whether waiting can mend this error and `--wait` says how long: the server is away, or cannot serve now.
    pub(crate) fn covers(self, error: &Error) -> bool {
        self.is_limited() && is_outage(error)
    }

    /// Writes the progress of the wait: `2s of 30s`, or `2s` if it has no end.
    pub(crate) fn progress(self, now: Moment) -> String {
        let waited = show(Duration::from_secs(self.waited(now).as_secs()));
        match self.wait {
            Some(wait) => format!("{waited} of {}", show(wait)),
            None => waited,
        }
    }

    /// Adds to an error that it lasted until the end of the wait, and how long the run has waited: it may be longer than
    /// `--wait`, because a server that does not reply at the end gets some time to do so.
    pub(crate) fn exhausted(self, error: Error, what: &str, now: Moment) -> Error {
        error.context(format_args!("gave up {what} after {}", show(self.waited(now))))
    }
}

/// Returns whether the error says that the server is away or cannot serve now, and not that it has rejected something.
pub(crate) fn is_outage(error: &Error) -> bool {
    error.is_transient() || matches!(error.kind(), ErrorKind::Unreachable | ErrorKind::OutcomeUnknown)
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn seconds(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    fn limit(wait: Option<u64>) -> WaitLimit {
        WaitLimit { began: at(0), wait: wait.map(seconds) }
    }

    fn at(second: u64) -> Moment {
        Moment::START + seconds(1000 + second)
    }

    #[test]
    fn connecting_counts_towards_the_wait() {
        assert_eq!(limit(Some(3)).left(at(2)), Some(seconds(1)));
        assert_eq!(limit(Some(3)).left(at(4)), Some(Duration::ZERO));
        assert_eq!(limit(None).left(at(4)), None);
        assert_eq!((limit(Some(3)).end(), limit(None).end()), (at(3), Moment::NEVER));
        assert_eq!(limit(Some(30)).progress(at(2)), "2s of 30s");
        assert_eq!(limit(None).progress(at(130)), "2m10s");
    }

    #[test]
    fn the_time_really_waited_is_reported() {
        let error = limit(Some(3)).exhausted(Error::new(ErrorKind::Unreachable, "x"), "connecting", at(5));
        assert_eq!(error.to_string(), "gave up connecting after 5s: x");
    }

    #[test]
    fn only_an_outage_is_waited_out_and_only_if_a_wait_was_given() {
        let error = |kind| Error::new(kind, "x");
        for (kind, covered) in [
            (ErrorKind::Unreachable, true),
            (ErrorKind::OutcomeUnknown, true),
            (ErrorKind::Denied, false),
            (ErrorKind::BadConfig, false),
            (ErrorKind::Unsupported, false),
            (ErrorKind::Missing, false),
            (ErrorKind::Backend, false),
        ] {
            assert_eq!(limit(Some(3)).covers(&error(kind)), covered, "{kind:?}");
            assert!(!limit(None).covers(&error(kind)) && !limit(Some(0)).covers(&error(kind)), "{kind:?}");
        }
        assert!(limit(Some(3)).covers(&error(ErrorKind::Backend).transient()));
    }
}
