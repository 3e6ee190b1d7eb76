//! The session timeouts that an ensemble allows, and what follows from them for leases.

use std::time::Duration;

/// How long the session lives in which nothing is held.
const CONTROL_SESSION_TIMEOUT: Duration = Duration::from_secs(10);

/// How long sessions can be.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SessionRange {
    pub(crate) shortest: Duration,
    pub(crate) longest: Duration,
    /// Whether there may be servers that do not decide by themselves which sessions have ended.
    pub(crate) has_followers: bool,
}

impl SessionRange {
    /// Returns how much longer than a lease its session is: a tick where there are followers. The newest report of a session
    /// that is known to have reached the leader is half a tick and three gaps old, if all round trips together take less
    /// than another gap; see [`crate::liveness`]. If it is older, a lease counts from that much earlier.
    pub(crate) fn margin(self) -> Duration {
        if self.has_followers { self.half_tick() * 2 } else { Duration::ZERO }
    }

    /// Returns the time between two pings of the leader. The shortest session has two ticks.
    pub(crate) fn half_tick(self) -> Duration {
        self.shortest / 4
    }

    /// Returns how late a ping of a leader that runs may be, which is also the shortest pause between two probes.
    pub(crate) fn gap(self) -> Duration {
        self.half_tick() / 4
    }

    /// Returns the pause between two probes of a session with leases of this length. Fewer probes cost long leases a few
    /// percent of their time.
    pub(crate) fn probe_interval(self, ttl: Duration) -> Duration {
        self.gap().max(ttl / 64)
    }

    /// How long the session of such a lease must be.
    pub(crate) fn session_timeout(self, ttl: Duration) -> Duration {
        // Whole milliseconds are negotiated.
        let millis = (ttl + self.margin()).as_nanos().div_ceil(1_000_000);
        Duration::from_millis(u64::try_from(millis).unwrap_or(u64::MAX))
    }

    /// How long the session is in which nothing is held.
    pub(crate) fn control_timeout(self) -> Duration {
        CONTROL_SESSION_TIMEOUT.clamp(self.shortest, self.longest)
    }

    pub(crate) fn shortest_ttl(self) -> Duration {
        self.shortest.saturating_sub(self.margin())
    }

    pub(crate) fn longest_ttl(self) -> Duration {
        self.longest.saturating_sub(self.margin())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_session_is_longer_than_its_lease_where_others_must_hear_of_it() {
        let range = SessionRange {
            shortest: Duration::from_secs(4),
            longest: Duration::from_secs(40),
            has_followers: true,
        };
        assert_eq!(range.margin(), Duration::from_secs(2));
        assert_eq!(range.session_timeout(range.shortest_ttl()), range.shortest);
        assert_eq!(range.session_timeout(range.longest_ttl()), range.longest);
        let alone = SessionRange { has_followers: false, ..range };
        assert_eq!(alone.session_timeout(Duration::from_micros(9_000_001)), Duration::from_millis(9001));
    }
}
