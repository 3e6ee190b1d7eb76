//! A lease is replaced when the cluster has another leader than the one that granted it. An earlier leader whose disk has hung
//! still counts its leases down, and when it recovers, the new leader executes its revocations, although the leases were
//! renewed meanwhile (etcd issues 12528 and 15247). It cannot revoke a lease that it has never known.

use std::sync::Arc;
use std::time::Duration;

use fencepost_core::backend::Wakeup;
use fencepost_core::{Attempt, LostReason, Owner, Result};

use crate::enter::TOGETHER;
use crate::error::Failure;
use crate::home::{Entry, Home, State};
use crate::leases::Promise;
use crate::proto::KeyValue;
use crate::request::{all, found, get, inner, mere, moved, nested};
use crate::watching::held;

impl State {
    /// From now on the keys of one lease belong on another. Those that may still arrive on the first stay there.
    fn replace(&mut self, from: i64, to: i64) {
        let owners: Vec<Owner> = self.places.iter().map(|(owner, _)| owner).collect();
        for owner in owners {
            let Some(place) = self.places.get_mut(owner) else { continue };
            let entry = &mut place.entry;
            if entry.lease == from && entry.revision.is_some() && !entry.lapsed {
                entry.moving_from = Some(entry.proven_lease());
                entry.lease = to;
            }
        }
        if let Some(lease) = self.leases.get_mut(to) {
            lease.is_incomplete = true;
        }
    }
}

/// An attempt whose keys may hang on another lease than they should.
struct Moving {
    attempt: Arc<Attempt>,
    revision: i64,
    keys: Vec<Vec<u8>>,
}

impl Home {
    /// Gives a lease its whole ttl again, or replaces it if the leader has changed since it was granted: its keys are moved to a
    /// new lease, and what is promised is promised by that one. Returns nothing if the lease is gone.
    pub(crate) async fn keep_alive_or_replace(&self, id: i64) -> Result<Option<Promise>> {
        let Some(mut promise) = self.keep_alive(id).await? else { return Ok(None) };
        let lease = self.state().leases.get(id);
        if let Some(lease) = lease.filter(|lease| lease.term != promise.term) {
            let Some(successor) = self.successor(id, lease.wanted).await? else { return Ok(None) };
            promise = successor;
        }
        let is_incomplete = self.state().leases.get(promise.lease).is_some_and(|lease| lease.is_incomplete);
        if is_incomplete {
            self.move_keys(promise.lease).await?;
        }
        Ok(Some(promise))
    }

    /// Lets another lease take the place of this one.
    async fn successor(&self, id: i64, wanted: i64) -> Result<Option<Promise>> {
        let asked = self.clock.now();
        self.state().leases.retire(id);
        let (lease, kept) = self.lease_for(Duration::from_secs(wanted.unsigned_abs())).await?;
        self.state().replace(id, lease.id);
        match kept {
            Some(promise) => Ok(Some(promise)),
            // It is older than the request that is to be answered.
            None if lease.confirmed < asked => self.keep_alive(lease.id).await,
            None => Ok(Some(Promise { lease: lease.id, sent: lease.confirmed, term: lease.term })),
        }
    }

    /// Moves the keys that should hang on this lease and may hang on another. The revision that created a key stays, and so do
    /// its token and its place in line.
    async fn move_keys(&self, lease: i64) -> Result<()> {
        loop {
            // More may be replaced by the same lease while some are being moved, and a key may change before it is.
            let moving = self.moving_to(lease);
            if moving.is_empty() {
                return Ok(());
            }
            for together in in_transactions(moving) {
                self.move_together(lease, together).await?;
            }
        }
    }

    async fn move_together(&self, lease: i64, moving: Vec<Moving>) -> Result<()> {
        let ttl = self.state().leases.get(lease).map_or(Duration::ZERO, |lease| lease.ttl);
        let keys = moving.iter().flat_map(|it| &it.keys);
        let looks = keys.map(|key| get(mere(key.clone()))).collect();
        let looked = self.link.txn(all(looks), Self::patience(ttl)).await;
        let looked = looked.map_err(|failure| self.half_done(failure))?;
        let mut looks = looked.responses.iter();
        let (mut there, mut gone) = (Vec::new(), Vec::new());
        for one in moving {
            let keys = looks.by_ref().take(one.keys.len()).filter_map(|look| found(look).first());
            let keys: Vec<&KeyValue> = keys.filter(|key| key.create_revision == one.revision).collect();
            if keys.len() == one.keys.len() {
                there.push((one, keys));
            } else {
                gone.push(one.attempt);
            }
        }
        let moves = there.iter().flat_map(|(_, keys)| keys.iter().map(|key| nested(moved(key, lease))));
        match self.link.txn(all(moves.collect()), Self::patience(ttl)).await {
            Ok(answer) => {
                let mut moves = answer.responses.into_iter();
                for (one, keys) in &there {
                    let done = moves.by_ref().take(keys.len()).filter_map(inner).filter(|it| it.succeeded);
                    if done.count() == keys.len() {
                        self.state().have_moved(lease, one);
                    }
                }
            }
            Err(Failure::NoLease) => {
                self.lease_is_gone(lease);
                return Err(self.failed(Failure::NoLease));
            }
            Err(failure) => return Err(self.half_done(failure)),
        }
        for attempt in gone {
            self.keys_are_gone(&attempt).await;
        }
        Ok(())
    }

    /// Loses an attempt of which a key was removed. Without a place it is awarded nothing, whatever was read before.
    async fn keys_are_gone(&self, attempt: &Attempt) {
        let owner = attempt.owner;
        let place = self.state().places.get(owner).map(|place| place.entry.held.is_some());
        let Some(is_held) = place else { return };
        let why = LostReason::NotHeld;
        self.push(if is_held { Wakeup::Gone { owner, why } } else { Wakeup::Turn { owner } });
        if attempt.wants.len() > 1 {
            self.end(attempt).await;
        } else {
            self.forget(owner);
        }
    }

    /// Returns the attempts whose keys are not known to hang on this lease, although they should.
    fn moving_to(&self, lease: i64) -> Vec<Moving> {
        let mut state = self.state();
        let state = &mut *state;
        let places = state.places.iter().map(|(_, place)| place);
        let should_move =
            |entry: &Entry| entry.lease == lease && entry.moving_from.is_some() && !entry.lapsed;
        let places = places.filter(|it| should_move(&it.entry));
        let moving = places.filter_map(|place| {
            let (attempt, entry) = (&place.attempt, &place.entry);
            let revision = entry.revision?;
            let wants = entry.held.map_or(attempt.wants.as_slice(), |chosen| held(attempt, chosen));
            let called = state.seats.called(attempt.owner);
            let keys = wants.iter().map(|want| self.keys.seat(want, called)).collect();
            Some(Moving { attempt: attempt.clone(), revision, keys })
        });
        let moving: Vec<Moving> = moving.collect();
        if let Some(lease) = state.leases.get_mut(lease) {
            lease.is_incomplete = !moving.is_empty();
        }
        moving
    }
}

/// Splits these into as few transactions as possible.
fn in_transactions(moving: Vec<Moving>) -> Vec<Vec<Moving>> {
    let mut transactions: Vec<Vec<Moving>> = Vec::new();
    let mut keys = 0;
    for one in moving {
        keys += one.keys.len();
        if let Some(last) = transactions.last_mut().filter(|_| keys <= TOGETHER) {
            last.push(one);
        } else {
            keys = one.keys.len();
            transactions.push(vec![one]);
        }
    }
    transactions
}

impl State {
    /// The keys of this attempt, created by this revision, hang on this lease.
    fn have_moved(&mut self, lease: i64, moved: &Moving) {
        let place = self.places.get_mut(moved.attempt.owner);
        let is_same = |entry: &Entry| entry.lease == lease && entry.revision == Some(moved.revision);
        if let Some(place) = place.filter(|place| is_same(&place.entry)) {
            place.entry.moving_from = None;
        }
    }
}
