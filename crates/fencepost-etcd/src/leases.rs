//! The leases of one client: one for each ttl, shared by all of its attempts with that ttl. A lease is kept alive only by
//! operations on attempts that are attached to it.

use std::collections::{HashMap, HashSet};
use std::time::Duration;

use fencepost_contenders::OwnEntry;
use fencepost_core::clock::Moment;
use fencepost_core::{Error, ErrorKind, LostReason, Result, request_timeout};
use futures_util::future::join_all;

use crate::cluster::READ_TIMEOUT;
use crate::error::Failure;
use crate::request::keys_only;
use crate::state::{ClientState, Entry};

/// A lease whose last confirmation is older than its ttl divided by this is kept alive before it is used for new keys.
const FRESH_FRACTION: u32 = 4;
/// The number of tombstones on a lease at which it is retired.
const MAX_TOMBSTONES: usize = 1_000;

/// A lease as this client knows it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Lease {
    pub(crate) id: i64,
    /// The requested ttl, in seconds.
    pub(crate) requested_secs: i64,
    /// The ttl that the server granted.
    pub(crate) ttl: Duration,
    /// When the latest request was sent that is known to have restarted its ttl.
    pub(crate) confirmed_at: Moment,
    /// The Raft term in which it was granted, or an earlier one. No leader of an earlier term knows it.
    pub(crate) term: u64,
    /// The number of tombstones attached to it.
    tombstones: usize,
    /// Whether some of the keys that belong to it may still be attached to another lease.
    pub(crate) has_pending_moves: bool,
}

/// A keep-alive of a lease that is not confirmed yet.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Extension {
    pub(crate) lease_id: i64,
    pub(crate) sent_at: Moment,
    /// The Raft term of the member that responded. A leader that was replaced without noticing may respond too, so the
    /// extension counts once a later linearizable response is of the same term.
    pub(crate) term: u64,
}

/// The leases of one client.
#[derive(Debug, Default)]
pub(crate) struct Leases {
    current_by_secs: HashMap<i64, i64>,
    leases: HashMap<i64, Lease>,
}

impl Leases {
    pub(crate) fn get(&self, id: i64) -> Option<Lease> {
        self.leases.get(&id).copied()
    }

    /// Returns the lease for new keys with this ttl.
    fn current(&self, seconds: i64) -> Option<Lease> {
        self.get(*self.current_by_secs.get(&seconds)?)
    }

    pub(crate) fn get_mut(&mut self, id: i64) -> Option<&mut Lease> {
        self.leases.get_mut(&id)
    }

    fn insert(&mut self, lease: Lease) {
        self.current_by_secs.insert(lease.requested_secs, lease.id);
        self.leases.insert(lease.id, lease);
    }

    /// Returns whether a lease should be kept alive before a grant relies on it.
    pub(crate) fn is_stale(&self, id: i64, now: Moment) -> bool {
        self.get(id).is_some_and(|lease| now.since(lease.confirmed_at) > lease.ttl / FRESH_FRACTION)
    }

    /// Confirms an extension if the cluster is still in its term, and the lease was granted in that term. Returns whether
    /// it is confirmed.
    pub(crate) fn confirm(&mut self, extension: Extension, term: u64) -> bool {
        let lease = self.leases.get_mut(&extension.lease_id);
        let Some(lease) = lease.filter(|lease| extension.term == term && lease.term == term) else {
            return false;
        };
        lease.confirmed_at = lease.confirmed_at.max(extension.sent_at);
        true
    }

    /// Counts a tombstone that was attached to this lease. Tombstones exist as long as the lease, so a lease with many is
    /// retired.
    pub(crate) fn count_tombstone(&mut self, id: i64) {
        let Some(lease) = self.leases.get_mut(&id) else { return };
        lease.tombstones += 1;
        if lease.tombstones >= MAX_TOMBSTONES {
            self.retire(id);
        }
    }

    /// Attaches no new keys to this lease; existing ones stay on it and are renewed.
    pub(crate) fn retire(&mut self, id: i64) {
        self.current_by_secs.retain(|_, current| *current != id);
    }

    /// Returns the leases that get no new keys.
    pub(crate) fn retired(&self) -> Vec<i64> {
        let current: HashSet<i64> = self.current_by_secs.values().copied().collect();
        self.leases.keys().copied().filter(|id| !current.contains(id)).collect()
    }

    /// Removes a lease that has no keys of this client any more.
    pub(crate) fn remove(&mut self, id: i64) {
        self.leases.remove(&id);
        self.retire(id);
    }

    pub(crate) fn ids(&self) -> Vec<i64> {
        self.leases.keys().copied().collect()
    }
}

/// Returns whole seconds, rounded up: a lease is never shorter than requested.
pub(crate) fn whole_seconds(ttl: Duration) -> i64 {
    i64::try_from(ttl.as_nanos().div_ceil(1_000_000_000)).unwrap_or(i64::MAX)
}

/// A lease, and its unconfirmed extension if it was just kept alive.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ExtendedLease {
    pub(crate) lease: Lease,
    pub(crate) extension: Option<Extension>,
}

impl ClientState {
    /// Returns a lease for new keys with this ttl, kept alive or created if necessary.
    pub(crate) async fn lease_for(&self, ttl: Duration) -> Result<ExtendedLease> {
        let requested_secs = whole_seconds(ttl);
        // One at a time, so that concurrent callers share a new lease.
        let _creation = self.lease_creation.lock().await;
        let current = self.state().leases.current(requested_secs);
        if let Some(lease) = current {
            if self.clock.now().since(lease.confirmed_at) < lease.ttl / FRESH_FRACTION {
                return Ok(ExtendedLease { lease, extension: None });
            }
            if let Some(extension) = self.keep_alive(lease.id).await? {
                if extension.term == lease.term {
                    return Ok(ExtendedLease { lease, extension: Some(extension) });
                }
                self.state().leases.retire(lease.id);
            }
        }
        let (sent_at, term) = (self.clock.now(), self.cluster.link.term());
        let granted = self.cluster.link.lease_grant(requested_secs, 0, request_timeout(ttl)).await;
        let granted = granted.map_err(|failure| self.cluster.to_error(failure))?;
        let lease = Lease {
            id: granted.id,
            requested_secs,
            ttl: Duration::from_secs(granted.ttl.unsigned_abs()),
            confirmed_at: sent_at,
            // The term may have changed between the grant and the response.
            term: granted.header.map_or(term, |header| header.raft_term.min(term)),
            tombstones: 0,
            has_pending_moves: false,
        };
        self.state().leases.insert(lease);
        Ok(ExtendedLease { lease, extension: None })
    }

    /// Keeps these leases alive, or replaces them, concurrently: the request timeout of a long lease may exceed the ttl of a
    /// short one.
    pub(crate) async fn keep_all_alive(
        &self,
        ids: impl Iterator<Item = i64>,
    ) -> HashMap<i64, Result<Option<Extension>>> {
        let ids: HashSet<i64> = ids.collect();
        let extensions = ids.into_iter().map(async |id| (id, self.keep_alive_or_replace(id).await));
        join_all(extensions).await.into_iter().collect()
    }

    /// Keeps a lease alive. Returns `None` if it does not exist any more; its attempts are then lost.
    pub(crate) async fn keep_alive(&self, id: i64) -> Result<Option<Extension>> {
        let sent_at = self.clock.now();
        let timeout = self.state().leases.get(id).map_or(READ_TIMEOUT, |lease| request_timeout(lease.ttl));
        match self.cluster.link.keep_alive(id, timeout).await {
            Ok(kept) => Ok(Some(Extension { lease_id: id, sent_at, term: kept.raft_term })),
            Err(Failure::NoLease) if self.has_keys(id, timeout).await? => {
                let location = &self.cluster.location;
                let message =
                    format!("the leader of {location} reports a lease as missing although its keys exist");
                Err(Error::new(ErrorKind::Unreachable, message))
            }
            Err(Failure::NoLease) => {
                self.lose_lease(id, LostReason::NotHeld);
                Ok(None)
            }
            Err(Failure::Failed(error)) => Err(error),
        }
    }

    /// Returns whether a key of this client is attached to this lease. A new leader may report on leases before it knows
    /// all of them, and a former leader before it notices that it was replaced; reads of keys are confirmed by a majority.
    async fn has_keys(&self, id: i64, timeout: Duration) -> Result<bool> {
        let key = {
            let state = self.state();
            let mut own_entries = state.own_entries.iter().map(|(_, own)| own);
            let has_keys =
                |own: &OwnEntry<Entry>| own.entry.create_revision.is_some() && !own.entry.is_ending;
            let own = own_entries.find(|own| has_keys(own) && own.entry.proven_lease_id() == id);
            own.map(|own| {
                let want = &own.entry.wants(&own.attempt)[0];
                state.entry_key(&self.cluster, want, own.attempt.owner)
            })
        };
        let Some(key) = key else { return Ok(false) };
        let read = self.cluster.link.range(keys_only(key), timeout).await;
        let read = read.map_err(|failure| self.cluster.to_error(failure))?;
        Ok(read.kvs.iter().any(|key| key.lease == id))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TTL: Duration = Duration::from_secs(10);

    fn lease(id: i64, confirmed_at: Moment) -> Lease {
        Lease {
            id,
            requested_secs: 10,
            ttl: TTL,
            confirmed_at,
            term: 7,
            tombstones: 0,
            has_pending_moves: false,
        }
    }

    #[test]
    fn a_lease_with_many_tombstones_is_retired_and_still_renewed() {
        let mut leases = Leases::default();
        leases.insert(lease(1, Moment::START));
        for _ in 1..MAX_TOMBSTONES {
            leases.count_tombstone(1);
        }
        assert!(leases.current(10).is_some() && leases.retired().is_empty());
        leases.count_tombstone(1);
        assert!(leases.current(10).is_none());
        assert_eq!(leases.retired(), [1]);
        let sent_at = Moment::START + TTL;
        assert!(leases.confirm(Extension { lease_id: 1, sent_at, term: 7 }, 7));
        assert_eq!(leases.get(1).map(|lease| lease.confirmed_at), Some(sent_at));
        leases.insert(lease(2, sent_at));
        assert_eq!((leases.current(10).map(|lease| lease.id), leases.retired()), (Some(2), vec![1]));
        leases.remove(1);
        assert!(leases.get(1).is_none() && leases.retired().is_empty());
    }

    #[test]
    fn an_extension_counts_only_in_the_term_of_its_lease() {
        let mut leases = Leases::default();
        leases.insert(lease(1, Moment::START));
        let sent_at = Moment::START + TTL;
        for (extended, confirmed) in [(7, 8), (8, 8), (8, 7)] {
            assert!(!leases.confirm(Extension { lease_id: 1, sent_at, term: extended }, confirmed));
        }
        assert_eq!(leases.get(1).map(|lease| lease.confirmed_at), Some(Moment::START));
        assert!(leases.confirm(Extension { lease_id: 1, sent_at, term: 7 }, 7));
    }
}
