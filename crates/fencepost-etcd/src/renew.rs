//! Renewals: the leases are kept alive, and then the keys are proven to be there in the same term.

use std::time::Duration;

use fencepost_core::backend::Reply;
use fencepost_core::{Grant, Result, request_timeout};

use crate::enter::{revision_of, term};
use crate::flight::Flight;
use crate::leases::Promise;
use crate::look::next;
use crate::proto::{TxnRequest, TxnResponse};
use crate::request::{all, get, mere};
use crate::store::{MOST_PARTS, batches};

/// A grant whose lease was kept alive, with the number of its renewal.
type Kept<'a> = (usize, &'a Grant, Promise);

/// Whether the keys of a grant are there, on the lease that was kept alive, and the term of the answer.
type Proof = (bool, u64);

impl Flight<'_> {
    pub(crate) async fn renew(self, renewals: &[(usize, &Grant)]) -> Vec<(usize, Result<Reply>)> {
        let on: Vec<Option<i64>> = {
            let mut state = self.client.state();
            let mut lease = |grant: &Grant| state.live(grant.attempt.owner).map(|place| place.entry.lease);
            renewals.iter().map(|(_, grant)| lease(grant)).collect()
        };
        let store = &self.client.store;
        let leases = self.client.keep_all_alive(on.iter().copied().flatten()).await;
        let mut answers = Vec::with_capacity(renewals.len());
        let mut kept: Vec<Kept<'_>> = Vec::with_capacity(renewals.len());
        for ((at, grant), lease) in renewals.iter().zip(on) {
            match lease.map_or(&Ok(None), |lease| &leases[&lease]) {
                Ok(Some(promise)) => kept.push((*at, grant, *promise)),
                Ok(None) if self.has_moved(grant, lease) => answers.push((*at, Err(store.new_leader()))),
                Ok(None) => answers.push((*at, Ok(Reply::NotHeld))),
                Err(error) => answers.push((*at, Err(error.clone()))),
            }
        }
        let batches = batches(&kept, MOST_PARTS, |(_, grant, _)| grant.held().len());
        let read = |batch: &[Kept<'_>], answer| proofs(batch, &answer);
        let proofs = store.ask_all(batches, |batch| self.ask_for_keys(batch), read).await;
        for ((at, grant, promise), proof) in kept.into_iter().zip(proofs) {
            let proof = proof.map_err(|failure| store.failed(failure));
            answers.push((at, proof.and_then(|proof| self.renewed(grant, promise, proof))));
        }
        answers
    }

    /// Asks whether the keys of these grants are there.
    fn ask_for_keys(self, grants: &[Kept<'_>]) -> (TxnRequest, Duration) {
        let (store, state) = (&self.client.store, self.client.state());
        let mut parts = Vec::new();
        for (_, grant, _) in grants {
            let seats = grant.held().iter().map(|want| state.seat(store, want, grant.attempt.owner));
            parts.extend(seats.map(|seat| get(mere(seat))));
        }
        let shortest = grants.iter().map(|(_, grant, _)| grant.award.ttl).min().unwrap_or_default();
        (all(parts), request_timeout(shortest))
    }

    fn renewed(self, grant: &Grant, promise: Promise, (is_held, term): Proof) -> Result<Reply> {
        let client = self.client;
        if !is_held && self.has_moved(grant, Some(promise.lease)) {
            return Err(self.client.store.new_leader());
        }
        if !is_held {
            match grant.held() {
                [_] => client.forget_grant(grant),
                // Of several names some may be left.
                _ if client.is_of(grant) => client.ends(grant.attempt.owner),
                _ => {}
            }
            return Ok(Reply::NotHeld);
        }
        let mut state = client.state();
        let is_kept = state.leases.confirm(promise, term);
        let lease = state.leases.get(promise.lease).filter(|_| is_kept);
        lease.map(|lease| Reply::Renewed { ttl: lease.ttl }).ok_or_else(|| self.client.store.new_leader())
    }

    /// Returns whether the keys of this grant were moved from this lease to another meanwhile.
    fn has_moved(self, grant: &Grant, lease: Option<i64>) -> bool {
        let state = self.client.state();
        let entry = state.places.get(grant.attempt.owner).map(|place| &place.entry);
        entry.is_some_and(|it| {
            !it.ending && it.revision == Some(revision_of(grant)) && Some(it.lease) != lease
        })
    }
}

fn proofs(grants: &[Kept<'_>], answer: &TxnResponse) -> Vec<Proof> {
    let mut looks = answer.responses.iter();
    let proofs = grants.iter().map(|(_, grant, promise)| {
        let made = revision_of(grant);
        let mut is_held = true;
        for _ in grant.held() {
            let key = next(&mut looks).first();
            is_held &= key.is_some_and(|key| key.create_revision == made && key.lease == promise.lease);
        }
        (is_held, term(answer))
    });
    proofs.collect()
}
