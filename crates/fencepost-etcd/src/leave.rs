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
use crate::proto::{KeyValue, RequestOp};
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
    /// The place of this owner, if nobody has cared for it while its lease lasts. That may be longer than was asked for. From
    /// then on it counts no more, also if somebody cares again.
    fn lapsed(&mut self, owner: Owner, now: Moment) -> Option<Lapsed> {
        let place = self.places.get_mut(owner)?;
        let (attempt, lease) = (place.attempt.clone(), place.entry.lease);
        let ttl = self.leases.get(lease).map_or(attempt.ttl, |given| given.ttl.max(attempt.ttl));
        let lapsed = Lapsed { owner, attempt, lease, end: place.kept + ttl * 2 };
        (place.kept + ttl < now).then(|| {
            place.entry.lapsed = true;
            lapsed
        })
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
            self.bury_if_doubtful(attempt).await?;
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
                        self.bury(attempt).await?;
                        self.forget(owner);
                        return Ok(Reply::Left);
                    }
                    Standing::Gone { .. } if is_sure => {
                        // Somebody has taken its keys away before; to the storage it was nobody who left.
                        self.bury(attempt).await?;
                        self.forget(owner);
                        self.state().departed.insert(owner, asked + attempt.ttl);
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
            let mut keys = answer.responses.iter().flat_map(found);
            let made = self.state().places.get(owner).and_then(|place| place.entry.revision);
            let is_own = |key: &&KeyValue| Some(key.create_revision) == made || self.is_own(key, owner);
            let Some(own) = keys.find(is_own) else { return Ok(()) };
            request.compare.push(created(own.key.clone(), own.create_revision));
        }
        let cleared = self.link.txn(request, Self::patience(attempt.ttl)).await;
        cleared.map(drop).map_err(|failure| self.failed(failure))
    }

    /// An attempt is over, although some of its keys may be left. They go; if that fails, its place is remembered until they do.
    pub(crate) async fn end(&self, attempt: &Attempt) {
        {
            let mut state = self.state();
            let state = &mut *state;
            state.watches.end(&self.link, attempt.owner);
            if let Some(place) = state.places.get_mut(attempt.owner) {
                place.entry.lapsed = true;
            }
        }
        if self.clear(attempt).await.is_ok() {
            self.forget(attempt.owner);
        }
    }

    /// The same as [`Home::bury`] for an attempt that has no keys as far as anybody knows.
    pub(crate) async fn bury_if_doubtful(&self, attempt: &Attempt) -> Result<()> {
        let is_doubtful = self.state().doubtful.contains(&attempt.owner);
        if is_doubtful { self.bury(attempt).await } else { Ok(()) }
    }

    /// Takes the keys of an attempt away for good: what it has sent, and nobody has answered, does nothing when it arrives.
    pub(crate) async fn bury(&self, attempt: &Attempt) -> Result<()> {
        if !self.state().doubtful.contains(&attempt.owner) {
            return self.clear(attempt).await;
        }
        let mut request = all(vec![self.farewell(attempt).await?]);
        if self.keys.layout != Layout::Single {
            let seats = attempt.wants.iter().map(|want| delete(self.keys.seat(want, attempt.owner)));
            request.success.extend(seats);
        }
        let buried = self.link.txn(request, Self::patience(attempt.ttl)).await;
        buried.map_err(|failure| self.failed(failure))?;
        if self.keys.layout == Layout::Single {
            self.clear(attempt).await?;
        }
        self.state().doubtful.remove(&attempt.owner);
        Ok(())
    }

    /// What is written about an owner that has left.
    async fn farewell(&self, attempt: &Attempt) -> Result<RequestOp> {
        let lasting = seconds(attempt.ttl * 2);
        let lease = self.link.lease_grant(lasting, 0, Self::patience(attempt.ttl)).await;
        let lease = lease.map_err(|failure| self.failed(failure))?;
        Ok(put(self.keys.left(attempt.owner), Vec::new(), lease.id))
    }

    /// Remembers in the storage that an owner has left, so that what it has sent does nothing. Not if it has come meanwhile.
    async fn defeat(&self, attempt: &Attempt) -> Result<bool> {
        let patience = Self::patience(attempt.ttl);
        let mut request = all(vec![self.farewell(attempt).await?]);
        if self.keys.layout != Layout::Single {
            let seats = attempt.wants.iter().map(|want| absent(self.keys.seat(want, attempt.owner)));
            request.compare = seats.collect();
        }
        let answer = self.link.txn(request, patience).await.map_err(|failure| self.failed(failure))?;
        if self.keys.layout == Layout::Single {
            self.clear(attempt).await?;
        }
        if answer.succeeded {
            self.state().doubtful.remove(&attempt.owner);
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
            Ok(()) => {
                self.forget(place.owner);
                // If this fails, it is done when the engine lets its owner leave.
                let _ = self.bury_if_doubtful(&place.attempt).await;
            }
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
