//! The leases of one client: one for each ttl, shared by all that is taken with it. A lease is kept alive only when
//! somebody asks for what hangs on it.

use std::collections::{HashMap, HashSet};
use std::time::Duration;

use fencepost_contenders::OwnEntry;
use fencepost_core::clock::Moment;
use fencepost_core::{Error, ErrorKind, LostReason, Result, request_timeout};
use futures_util::future::join_all;

use crate::client_state::{ClientState, Entry};
use crate::error::Failure;
use crate::request::mere;
use crate::store::LOOKING;

/// After this part of its ttl a lease is kept alive before anything new hangs on it.
const FRESH: u32 = 4;
/// A lease with so many tombstones is retired.
const MOST_TOMBSTONES: usize = 1_000;

/// A lease of the server's.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Lease {
    pub(crate) id: i64,
    /// The ttl that was asked for, in seconds.
    pub(crate) wanted: i64,
    /// The ttl that was really given.
    pub(crate) ttl: Duration,
    /// When the newest request was sent that is known to have given it its whole ttl.
    pub(crate) confirmed: Moment,
    /// The term in which it was granted, or an earlier one. No leader of an earlier term has ever known it.
    pub(crate) term: u64,
    /// How many tombstones were put on it.
    tombstones: usize,
    /// Whether some of the keys that should hang on it may still hang on another.
    pub(crate) is_incomplete: bool,
}

/// A lease was kept alive: this will be true if nothing has come in between.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Promise {
    pub(crate) lease: i64,
    pub(crate) sent: Moment,
    /// The term of whoever kept it alive. A leader that was replaced without noticing may do so too, so the promise counts
    /// once a later answer of the whole cluster is of the same term.
    pub(crate) term: u64,
}

/// The leases of one client.
#[derive(Debug, Default)]
pub(crate) struct Leases {
    by_seconds: HashMap<i64, i64>,
    leases: HashMap<i64, Lease>,
}

impl Leases {
    pub(crate) fn get(&self, id: i64) -> Option<Lease> {
        self.leases.get(&id).copied()
    }

    /// The lease for this ttl.
    fn current(&self, seconds: i64) -> Option<Lease> {
        self.get(*self.by_seconds.get(&seconds)?)
    }

    pub(crate) fn get_mut(&mut self, id: i64) -> Option<&mut Lease> {
        self.leases.get_mut(&id)
    }

    fn insert(&mut self, lease: Lease) {
        self.by_seconds.insert(lease.wanted, lease.id);
        self.leases.insert(lease.id, lease);
    }

    /// Returns whether a lease should be kept alive before anything is promised on it.
    pub(crate) fn is_stale(&self, id: i64, now: Moment) -> bool {
        self.get(id).is_some_and(|lease| now.since(lease.confirmed) > lease.ttl / FRESH)
    }

    /// What was promised has come true if the cluster is still of that term, and the lease not older.
    pub(crate) fn confirm(&mut self, promise: Promise, term: u64) -> bool {
        let lease = self.leases.get_mut(&promise.lease);
        let Some(lease) = lease.filter(|lease| promise.term == term && lease.term == term) else {
            return false;
        };
        lease.confirmed = lease.confirmed.max(promise.sent);
        true
    }

    /// Counts a tombstone that was put on this lease. They stay for as long as the lease does, so that it is retired when there
    /// are many.
    pub(crate) fn has_tombstone(&mut self, id: i64) {
        let Some(lease) = self.leases.get_mut(&id) else { return };
        lease.tombstones += 1;
        if lease.tombstones >= MOST_TOMBSTONES {
            self.retire(id);
        }
    }

    /// Lets nothing new hang on this lease; what is on it stays, and is renewed.
    pub(crate) fn retire(&mut self, id: i64) {
        self.by_seconds.retain(|_, there| *there != id);
    }

    /// Returns the leases on which nothing new hangs.
    pub(crate) fn retired(&self) -> Vec<i64> {
        let current: HashSet<i64> = self.by_seconds.values().copied().collect();
        self.leases.keys().copied().filter(|id| !current.contains(id)).collect()
    }

    /// Nothing on it is ours any more.
    pub(crate) fn forget(&mut self, id: i64) {
        self.leases.remove(&id);
        self.retire(id);
    }

    pub(crate) fn ids(&self) -> Vec<i64> {
        self.leases.keys().copied().collect()
    }
}

/// Whole seconds, rounded up: a lease is never shorter than was asked for.
pub(crate) fn seconds(ttl: Duration) -> i64 {
    i64::try_from(ttl.as_nanos().div_ceil(1_000_000_000)).unwrap_or(i64::MAX)
}

/// A lease, and what is promised of it.
pub(crate) type Leased = (Lease, Option<Promise>);

impl ClientState {
    /// A lease for this ttl on which something new may hang, kept alive or made if need be.
    pub(crate) async fn lease_for(&self, ttl: Duration) -> Result<Leased> {
        let wanted = seconds(ttl);
        // One at a time, so that a crowd does not make a lease each.
        let _alone = self.leasing.lock().await;
        let current = self.state().leases.current(wanted);
        if let Some(lease) = current {
            if self.clock.now().since(lease.confirmed) < lease.ttl / FRESH {
                return Ok((lease, None));
            }
            if let Some(promise) = self.keep_alive(lease.id).await? {
                if promise.term == lease.term {
                    return Ok((lease, Some(promise)));
                }
                self.state().leases.retire(lease.id);
            }
        }
        let (sent, term) = (self.clock.now(), self.store.link.term());
        let granted = self.store.link.lease_grant(wanted, 0, request_timeout(ttl)).await;
        let granted = granted.map_err(|failure| self.store.failed(failure))?;
        let given = Duration::from_secs(granted.ttl.unsigned_abs());
        let lease = Lease {
            id: granted.id,
            wanted,
            ttl: given,
            confirmed: sent,
            // It may have been granted before the term changed in which the answer came.
            term: granted.header.map_or(term, |header| header.raft_term.min(term)),
            tombstones: 0,
            is_incomplete: false,
        };
        self.state().leases.insert(lease);
        Ok((lease, None))
    }

    /// Gives these leases, or those that replace them, their whole ttl again, at once: a long one has more patience than a short
    /// one has time.
    pub(crate) async fn keep_all_alive(
        &self,
        ids: impl Iterator<Item = i64>,
    ) -> HashMap<i64, Result<Option<Promise>>> {
        let ids: HashSet<i64> = ids.collect();
        let kept = ids.into_iter().map(async |id| (id, self.keep_alive_or_replace(id).await));
        join_all(kept).await.into_iter().collect()
    }

    /// Gives a lease its whole ttl again; nothing if it is gone, and what hung on it is told so.
    pub(crate) async fn keep_alive(&self, id: i64) -> Result<Option<Promise>> {
        let sent = self.clock.now();
        let timeout = self.state().leases.get(id).map_or(LOOKING, |lease| request_timeout(lease.ttl));
        match self.store.link.keep_alive(id, timeout).await {
            Ok(kept) => Ok(Some(Promise { lease: id, sent, term: kept.raft_term })),
            Err(Failure::NoLease) if self.has_keys(id, timeout).await? => {
                let location = &self.store.location;
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

    /// Whether a key of ours hangs on this lease. A leader answers for leases before it has heard of all of them, or that it
    /// is none any more; for keys it asks the others.
    async fn has_keys(&self, id: i64, timeout: Duration) -> Result<bool> {
        let key = {
            let state = self.state();
            let mut places = state.places.iter().map(|(_, place)| place);
            let is_sure = |place: &OwnEntry<Entry>| place.entry.revision.is_some() && !place.entry.ending;
            let place = places.find(|place| is_sure(place) && place.entry.proven_lease() == id);
            place.map(|place| {
                let want = &place.entry.wants(&place.attempt)[0];
                state.seat(&self.store, want, place.attempt.owner)
            })
        };
        let Some(key) = key else { return Ok(false) };
        let answer = self.store.link.range(mere(key), timeout).await;
        let answer = answer.map_err(|failure| self.store.failed(failure))?;
        Ok(answer.kvs.iter().any(|key| key.lease == id))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TTL: Duration = Duration::from_secs(10);

    fn lease(id: i64, confirmed: Moment) -> Lease {
        Lease { id, wanted: 10, ttl: TTL, confirmed, term: 7, tombstones: 0, is_incomplete: false }
    }

    #[test]
    fn a_lease_with_many_tombstones_is_retired_and_still_renewed() {
        let mut leases = Leases::default();
        leases.insert(lease(1, Moment::START));
        for _ in 1..MOST_TOMBSTONES {
            leases.has_tombstone(1);
        }
        assert!(leases.current(10).is_some() && leases.retired().is_empty());
        leases.has_tombstone(1);
        assert!(leases.current(10).is_none());
        assert_eq!(leases.retired(), [1]);
        let sent = Moment::START + TTL;
        assert!(leases.confirm(Promise { lease: 1, sent, term: 7 }, 7));
        assert_eq!(leases.get(1).map(|lease| lease.confirmed), Some(sent));
        leases.insert(lease(2, sent));
        assert_eq!((leases.current(10).map(|lease| lease.id), leases.retired()), (Some(2), vec![1]));
        leases.forget(1);
        assert!(leases.get(1).is_none() && leases.retired().is_empty());
    }

    #[test]
    fn a_promise_counts_only_in_the_term_of_its_lease() {
        let mut leases = Leases::default();
        leases.insert(lease(1, Moment::START));
        let sent = Moment::START + TTL;
        for (promised, proven) in [(7, 8), (8, 8), (8, 7)] {
            assert!(!leases.confirm(Promise { lease: 1, sent, term: promised }, proven));
        }
        assert_eq!(leases.get(1).map(|lease| lease.confirmed), Some(Moment::START));
        assert!(leases.confirm(Promise { lease: 1, sent, term: 7 }, 7));
    }
}
