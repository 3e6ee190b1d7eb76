//! Properties of operations that every backend needs: the owner, the locks, and how long to wait for a reply.

use std::sync::Arc;
use std::time::Duration;

use crate::backend::Op;
use crate::grant::{Attempt, Want};
use crate::name::LockName;
use crate::token::Owner;

/// The bounds of [`request_timeout`].
const TIMEOUT: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(5));

/// Returns the timeout of one request about a lease of this length.
///
/// A sixth of the lease leaves time for a second and a third request; below a second a busy server would be taken for a
/// dead one, and above five seconds a dead one is detected too late.
pub fn request_timeout(ttl: Duration) -> Duration {
    (ttl / 6).clamp(TIMEOUT.0, TIMEOUT.1)
}

impl Op {
    /// Returns the attempt that this operation belongs to; none for [`Op::ReadCell`] and [`Op::Break`].
    pub fn attempt(&self) -> Option<&Arc<Attempt>> {
        match self {
            Self::Acquire { attempt, .. } | Self::Check(attempt) | Self::Leave(attempt) => Some(attempt),
            Self::Renew(grant) | Self::Release(grant) | Self::WriteCell { grant, .. } => Some(&grant.attempt),
            Self::ReadCell(_) | Self::Break { .. } => None,
        }
    }

    /// Returns the owner of the attempt that this operation belongs to.
    pub fn owner(&self) -> Option<Owner> {
        self.attempt().map(|attempt| attempt.owner)
    }

    /// Returns the wants that this operation acquires, renews or releases. Cell operations and breaks have none.
    pub fn wants(&self) -> &[Want] {
        match self {
            Self::Acquire { attempt, .. } | Self::Check(attempt) | Self::Leave(attempt) => &attempt.wants,
            Self::Renew(grant) | Self::Release(grant) => grant.held(),
            Self::ReadCell(_) | Self::WriteCell { .. } | Self::Break { .. } => &[],
        }
    }

    /// Returns the locks of this operation.
    pub fn names(&self) -> impl Iterator<Item = &LockName> {
        let name = match self {
            Self::ReadCell(name) | Self::WriteCell { name, .. } | Self::Break { name, .. } => Some(name),
            _ => None,
        };
        self.wants().iter().map(|want| &want.name).chain(name)
    }

    /// Returns the length of the lease of this operation; cell operations and breaks have none.
    pub fn ttl(&self) -> Option<Duration> {
        match self {
            Self::Acquire { attempt, .. } | Self::Check(attempt) | Self::Leave(attempt) => Some(attempt.ttl),
            Self::Renew(grant) | Self::Release(grant) => Some(grant.award.ttl),
            Self::ReadCell(_) | Self::WriteCell { .. } | Self::Break { .. } => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_is_waited_for_between_one_and_five_seconds() {
        let seconds = Duration::from_secs;
        for (ttl, timeout) in [(1, 1), (6, 1), (12, 2), (30, 5), (3600, 5)] {
            assert_eq!(request_timeout(seconds(ttl)), seconds(timeout), "ttl {ttl}");
        }
    }
}
