//! Leaving: the line, what nobody cares for, and in the end everything.

use std::sync::Arc;
use std::time::Duration;

use fencepost_core::backend::Reply;
use fencepost_core::clock::Moment;
use fencepost_core::{Attempt, Error, ErrorKind, LostReason, Owner, Result};
use futures_util::future::join_all;

use crate::config::Layout;
use crate::error::Failure;
use crate::home::{Home, State};
use crate::leases::seconds;
use crate::look::Standing;
use crate::request::{absent, all, created, delete, found, get, put};

/// How often a leaving looks again because its keys came meanwhile.
const LOOKS: usize = 3;
/// How often somebody looks for what nobody cares for.
const SWEEP: Duration = Duration::from_millis(100);

/// A place that nobody has cared for during a ttl.
struct Lapsed {
    owner: Owner,
    attempt: Arc<Attempt>,
    lease: i64,
    /// When its lease is given up.
    end: Moment,
}

impl State {
    /// The place of this owner, if nobody has cared for it while its lease lasts. That may be longer than was asked for.
    fn lapsed(&self, owner: Owner, now: Moment) -> Option<Lapsed> {
        let place = self.places.get(owner)?;
        let (attempt, lease) = (place.attempt.clone(), place.entry.lease);
        let ttl = self.leases.get(lease).map_or(attempt.ttl, |given| given.ttl.max(attempt.ttl));
        (place.kept + ttl < now).then(|| Lapsed { owner, attempt, lease, end: place.kept + ttl * 2 })
    }
}

impl Home {
    /// Leaves the line, or defeats an acquire that may still arrive.
    pub(crate) async fn leave(&self, attempt: &Arc<Attempt>, asked: Moment) -> Result<Reply> {
        let owner = attempt.owner;
        let is_known = {
            let mut state = self.state();
            if state.places.stop_waiting(owner) {
                state.watches.end(&self.link, owner);
                self.wake_next(&state, attempt);
                return Ok(Reply::Left);
            }
            let is_known = state.places.get(owner).map(|place| place.entry.revision.is_some());
            if is_known != Some(true) {
                // It may still arrive.
                state.departed.insert(owner, asked + attempt.ttl);
            }
            is_known
        };
        let Some(is_sure) = is_known else {
            return Ok(Reply::Left);
        };
        for _ in 0..LOOKS {
            let looked = self.look(std::slice::from_ref(attempt)).await;
            let (standings, _) = looked.map_err(|failure| self.failed(failure))?;
            for standing in standings {
                match standing {
                    Standing::There { revision, seen, lines } => {
                        let reply = self.stands(attempt, &lines, revision, seen, asked);
                        if let Reply::Granted(award) = self.settled(attempt, reply).await? {
                            self.state().departed.remove(&owner);
                            return Ok(Reply::HadBeenGranted(award));
                        }
                        self.clear(attempt).await?;
                        self.forget(owner);
                        return Ok(Reply::Left);
                    }
                    Standing::Gone { .. } if is_sure => {
                        self.clear(attempt).await?;
                        self.forget(owner);
                        return Ok(Reply::Left);
                    }
                    Standing::Gone { is_some_left, .. } => {
                        if is_some_left {
                            self.clear(attempt).await?;
                        }
                        if self.defeat(attempt).await? {
                            self.forget(owner);
                            return Ok(Reply::Left);
                        }
                    }
                }
            }
        }
        let message = format!("the keys of an attempt that is to leave {} come and go", self.location);
        Err(Error::new(ErrorKind::OutcomeUnknown, message))
    }

    /// Takes the keys of an attempt away, whatever they are.
    pub(crate) async fn clear(&self, attempt: &Attempt) -> Result<()> {
        let owner = attempt.owner;
        let mut request = all(attempt.wants.iter().map(|want| delete(self.keys.seat(want, owner))).collect());
        if self.keys.layout == Layout::Single {
            // What is there may be another's.
            let look = all(attempt.wants.iter().map(|want| get(self.seat(want, owner))).collect());
            let answer = self.link.txn(look, Self::patience(attempt.ttl)).await;
            let answer = answer.map_err(|failure| self.failed(failure))?;
            let keys = answer.responses.iter().flat_map(found);
            let Some(own) = keys.into_iter().find(|key| self.is_own(key, owner)) else {
                return Ok(());
            };
            request.compare.push(created(own.key.clone(), own.create_revision));
        }
        let cleared = self.link.txn(request, Self::patience(attempt.ttl)).await;
        cleared.map(drop).map_err(|failure| self.failed(failure))
    }

    /// Remembers in the storage that an owner has left, so that what it has sent does nothing. Not if it has come meanwhile.
    async fn defeat(&self, attempt: &Attempt) -> Result<bool> {
        let patience = Self::patience(attempt.ttl);
        let lasting = seconds(attempt.ttl * 2);
        let lease =
            self.link.lease_grant(lasting, 0, patience).await.map_err(|failure| self.failed(failure))?;
        let left = self.keys.left(attempt.owner);
        let mut request = all(vec![put(left, Vec::new(), lease.id)]);
        if self.keys.layout != Layout::Single {
            let seats = attempt.wants.iter().map(|want| absent(self.keys.seat(want, attempt.owner)));
            request.compare = seats.collect();
        }
        let answer = self.link.txn(request, patience).await.map_err(|failure| self.failed(failure))?;
        if self.keys.layout == Layout::Single {
            self.clear(attempt).await?;
        }
        Ok(answer.succeeded)
    }

    /// Takes away what nobody has cared for during a ttl. If that fails for another ttl although the lease lives, the lease is
    /// given up with everything on it.
    pub(crate) async fn sweep(&self, now: Moment) {
        let lapsed: Vec<Lapsed> = {
            let mut state = self.state();
            if state.swept.is_some_and(|swept| now.since(swept) < SWEEP) {
                return;
            }
            state.swept = Some(now);
            state.departed.retain(|_, until| *until > now);
            let lapsed = state.places.lapsed(now);
            lapsed.into_iter().filter_map(|owner| state.lapsed(owner, now)).collect()
        };
        join_all(lapsed.iter().map(async |place| match self.clear(&place.attempt).await {
            Ok(()) => drop(self.forget(place.owner)),
            Err(_) if place.end < now => self.lose_lease(place.lease, LostReason::Abandoned),
            Err(_) => {}
        }))
        .await;
    }

    /// Whether something is still there that nobody knows, for those who give up a lease.
    pub(crate) async fn revoke_all(&self) {
        let leases = self.state().leases.ids();
        for id in leases {
            match self.link.lease_revoke(id, Duration::from_secs(1)).await {
                Ok(_) | Err(Failure::NoLease) => {}
                // It ends by itself.
                Err(Failure::Failed(_)) => return,
            }
        }
    }
}
