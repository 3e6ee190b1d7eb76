//! Renewals: the leases are kept alive, and then the keys are proven to exist in the same Raft term.

use std::time::Duration;

use fencepost_core::backend::Reply;
use fencepost_core::{Grant, Result, request_timeout};

use crate::cluster::{MAX_TXN_OPS, batches};
use crate::flight::Flight;
use crate::key_ops::create_revision;
use crate::leases::Extension;
use crate::proto::{TxnRequest, TxnResponse};
use crate::request::{get, keys_only, next_kvs, raft_term, unconditional};

/// A grant whose lease was kept alive, with the index of its renewal in the flight.
type Extended<'a> = (usize, &'a Grant, Extension);

/// Whether the keys of a grant exist on the lease that was kept alive, and the Raft term of the response.
type Proof = (bool, u64);

impl Flight<'_> {
    pub(crate) async fn renew(self, renewals: &[(usize, &Grant)]) -> Vec<(usize, Result<Reply>)> {
        let lease_ids: Vec<Option<i64>> = {
            let mut state = self.client.state();
            let mut lease_id =
                |grant: &Grant| state.live_entry(grant.attempt.owner).map(|own| own.entry.lease_id);
            renewals.iter().map(|(_, grant)| lease_id(grant)).collect()
        };
        let cluster = &self.client.cluster;
        let extensions = self.client.keep_all_alive(lease_ids.iter().copied().flatten()).await;
        let mut replies = Vec::with_capacity(renewals.len());
        let mut extended: Vec<Extended<'_>> = Vec::with_capacity(renewals.len());
        for ((index, grant), lease_id) in renewals.iter().zip(lease_ids) {
            match lease_id.map_or(&Ok(None), |id| &extensions[&id]) {
                Ok(Some(extension)) => extended.push((*index, grant, *extension)),
                Ok(None) if self.has_moved(grant, lease_id) => {
                    replies.push((*index, Err(cluster.leader_changed())));
                }
                Ok(None) => replies.push((*index, Ok(Reply::NotHeld))),
                Err(error) => replies.push((*index, Err(error.clone()))),
            }
        }
        let batches = batches(&extended, MAX_TXN_OPS, |(_, grant, _)| grant.held().len());
        let interpret = |batch: &[Extended<'_>], response| proofs(batch, &response);
        let proofs = cluster.send_batches(batches, |batch| self.read_keys(batch), interpret).await;
        for ((index, grant, extension), proof) in extended.into_iter().zip(proofs) {
            let proof = proof.map_err(|failure| cluster.to_error(failure));
            replies.push((index, proof.and_then(|proof| self.on_proof(grant, extension, proof))));
        }
        replies
    }

    /// Returns the request that reads the keys of these grants.
    fn read_keys(self, grants: &[Extended<'_>]) -> (TxnRequest, Duration) {
        let (cluster, state) = (&self.client.cluster, self.client.state());
        let mut reads = Vec::new();
        for (_, grant, _) in grants {
            let keys = grant.held().iter().map(|want| state.entry_key(cluster, want, grant.attempt.owner));
            reads.extend(keys.map(|key| get(keys_only(key))));
        }
        let shortest_ttl = grants.iter().map(|(_, grant, _)| grant.award.ttl).min().unwrap_or_default();
        (unconditional(reads), request_timeout(shortest_ttl))
    }

    fn on_proof(self, grant: &Grant, extension: Extension, (is_held, term): Proof) -> Result<Reply> {
        let client = self.client;
        if !is_held && self.has_moved(grant, Some(extension.lease_id)) {
            return Err(client.cluster.leader_changed());
        }
        if !is_held {
            match grant.held() {
                [_] => client.forget_grant(grant),
                // Some keys of several names may still exist.
                _ if client.is_current(grant) => client.mark_ending(grant.attempt.owner),
                _ => {}
            }
            return Ok(Reply::NotHeld);
        }
        let mut state = client.state();
        let is_confirmed = state.leases.confirm(extension, term);
        let lease = state.leases.get(extension.lease_id).filter(|_| is_confirmed);
        lease.map(|lease| Reply::Renewed { ttl: lease.ttl }).ok_or_else(|| client.cluster.leader_changed())
    }

    /// Returns whether the keys of this grant were moved from this lease to another meanwhile.
    fn has_moved(self, grant: &Grant, lease_id: Option<i64>) -> bool {
        let state = self.client.state();
        let entry = state.own_entries.get(grant.attempt.owner).map(|own| &own.entry);
        entry.is_some_and(|entry| {
            !entry.is_ending
                && entry.create_revision == Some(create_revision(grant))
                && Some(entry.lease_id) != lease_id
        })
    }
}

fn proofs(grants: &[Extended<'_>], response: &TxnResponse) -> Vec<Proof> {
    let mut reads = response.responses.iter();
    let proofs = grants.iter().map(|(_, grant, extension)| {
        let create_revision = create_revision(grant);
        let mut is_held = true;
        for _ in grant.held() {
            let key = next_kvs(&mut reads).first();
            is_held &= key
                .is_some_and(|key| key.create_revision == create_revision && key.lease == extension.lease_id);
        }
        (is_held, raft_term(response))
    });
    proofs.collect()
}
