//! The leases of one client: one for each ttl, shared by all that is taken with it. A lease is kept alive only when
//! somebody asks for what hangs on it.

use std::collections::{BTreeSet, HashMap};
use std::time::Duration;

use fencepost_core::clock::Moment;
use fencepost_core::{Error, Result};
use futures_util::future::join_all;

use crate::error::Failure;
use crate::home::Home;

/// After this part of its ttl a lease is kept alive before anything new hangs on it.
const FRESH: u32 = 4;

/// A lease of the server's.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Lease {
    pub(crate) id: i64,
    /// The ttl that was really given.
    pub(crate) ttl: Duration,
    /// When the newest request was sent that is known to have given it its whole ttl.
    pub(crate) confirmed: Moment,
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

    fn insert(&mut self, seconds: i64, lease: Lease) {
        self.by_seconds.insert(seconds, lease.id);
        self.leases.insert(lease.id, lease);
    }

    /// What was promised has come true if the cluster is still of that term.
    pub(crate) fn confirm(&mut self, promise: Promise, term: u64) -> bool {
        let holds = promise.term == term;
        if let Some(lease) = self.leases.get_mut(&promise.lease).filter(|_| holds) {
            lease.confirmed = lease.confirmed.max(promise.sent);
        }
        holds
    }

    /// Nothing new hangs on it.
    pub(crate) fn forget(&mut self, id: i64) {
        self.leases.remove(&id);
        self.by_seconds.retain(|_, there| *there != id);
    }

    pub(crate) fn ids(&self) -> Vec<i64> {
        self.leases.keys().copied().collect()
    }
}

/// Whole seconds, rounded up: a lease is never shorter than was asked for.
pub(crate) fn seconds(ttl: Duration) -> i64 {
    i64::try_from(ttl.as_nanos().div_ceil(1_000_000_000)).unwrap_or(i64::MAX)
}

impl Home {
    /// A lease for this ttl on which something new may hang, kept alive or made if need be.
    pub(crate) async fn lease_for(&self, ttl: Duration) -> Result<(Lease, Option<Promise>)> {
        let wanted = seconds(ttl);
        // One at a time, so that a crowd does not make a lease each.
        let _alone = self.leasing.lock().await;
        let current = self.state().leases.current(wanted);
        if let Some(lease) = current {
            if self.clock.now().since(lease.confirmed) < lease.ttl / FRESH {
                return Ok((lease, None));
            }
            if let Some(promise) = self.keep_alive(lease.id).await? {
                return Ok((lease, Some(promise)));
            }
        }
        let sent = self.clock.now();
        let granted = self.link.lease_grant(wanted, 0, Self::patience(ttl)).await;
        let granted = granted.map_err(|failure| self.failed(failure))?;
        let given = Duration::from_secs(granted.ttl.unsigned_abs());
        let lease = Lease { id: granted.id, ttl: given, confirmed: sent };
        self.state().leases.insert(wanted, lease);
        Ok((lease, None))
    }

    /// Gives a lease its whole ttl again; nothing if it is gone, and what hung on it is told so.
    pub(crate) async fn keep_alive(&self, id: i64) -> Result<Option<Promise>> {
        let sent = self.clock.now();
        let ttl = self.state().leases.get(id).map_or(Duration::ZERO, |lease| lease.ttl);
        match self.link.keep_alive(id, Self::patience(ttl)).await {
            Ok(kept) if kept.ttl_secs > 0 => Ok(Some(Promise { lease: id, sent, term: kept.raft_term })),
            Ok(_) | Err(Failure::NoLease) => {
                self.lease_is_gone(id);
                Ok(None)
            }
            Err(Failure::Failed(error)) => Err(error),
        }
    }

    /// Keeps several leases alive at once.
    pub(crate) async fn keep_all_alive(&self, ids: BTreeSet<i64>) -> HashMap<i64, Result<Option<Promise>>> {
        join_all(ids.into_iter().map(async |id| (id, self.keep_alive(id).await))).await.into_iter().collect()
    }

    pub(crate) fn failed(&self, failure: Failure) -> Error {
        failure.into_error(&self.location)
    }
}
