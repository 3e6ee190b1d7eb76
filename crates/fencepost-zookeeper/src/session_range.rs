//! The session timeouts that an ensemble allows, and what follows from them for leases.

use std::time::Duration;

/// The timeout of the control session, in which nothing is held.
const CONTROL_SESSION_TIMEOUT: Duration = Duration::from_secs(10);

/// The session timeouts that the servers allow.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SessionRange {
    pub(crate) shortest: Duration,
    pub(crate) longest: Duration,
    /// Whether there may be followers, which do not expire sessions themselves.
    pub(crate) has_followers: bool,
}

impl SessionRange {
    /// Returns by how much a session timeout exceeds the ttl of its leases: a tick if there are followers. The newest
    /// report of a session that is known to have reached the leader is half a tick and three gaps old, if all round
    /// trips together take less than another gap; see [`crate::liveness`]. If it is older, a lease starts that much
    /// earlier.
    pub(crate) fn margin(self) -> Duration {
        if self.has_followers { self.half_tick() * 2 } else { Duration::ZERO }
    }

    /// Returns the interval of the leader's pings. The shortest session timeout is two ticks.
    pub(crate) fn half_tick(self) -> Duration {
        self.shortest / 4
    }

    /// Returns the maximum delay of a ping of a running leader, which is also the shortest interval of probes.
    pub(crate) fn gap(self) -> Duration {
        self.half_tick() / 4
    }

    /// Returns the interval of the probes of a session with leases of this ttl. Longer leases are probed less often,
    /// which costs them a few percent of their time.
    pub(crate) fn probe_interval(self, ttl: Duration) -> Duration {
        self.gap().max(ttl / 64)
    }

    /// Returns the session timeout for leases of this ttl.
    pub(crate) fn session_timeout(self, ttl: Duration) -> Duration {
        // Timeouts are negotiated in whole milliseconds.
        let millis = (ttl + self.margin()).as_nanos().div_ceil(1_000_000);
        Duration::from_millis(u64::try_from(millis).unwrap_or(u64::MAX))
    }

    /// Returns the timeout of the control session.
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
    fn in_an_ensemble_a_session_is_longer_than_its_lease() {
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
