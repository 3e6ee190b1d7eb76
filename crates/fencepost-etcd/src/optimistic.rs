//! Acquires whose outcome cannot be expressed as a comparison: one of several locks, and a semaphore without waiting. The
//! queues are read first, and the keys are created if the queues are unmodified since.

use std::sync::Arc;

use fencepost_contenders::{EntryMeta, holder_count};
use fencepost_core::backend::{OnBusy, Reply};
use fencepost_core::{Attempt, Mode, Result, Rule, request_timeout};

use crate::error::Failure;
use crate::flight::{Flight, LeaseRetry};
use crate::key_ops::KeyOp;
use crate::leases::ExtendedLease;
use crate::position::Position;
use crate::proto::{KeyValue, RangeRequest, ResponseOp, TxnRequest};
use crate::request::{get, key_absent, kvs, oldest_first, put, revision, unconditional, unmodified_since};
use crate::state::held_wants;

/// How often the queues are read again because they were modified.
const MAX_READS: usize = 5;

impl Flight<'_> {
    /// Executes an acquire that has to read the queues before it creates its keys.
    pub(crate) async fn read_then_acquire(self, op: &KeyOp, retry: LeaseRetry) -> Result<Reply> {
        let KeyOp::Acquire { attempt, on_busy, lease } = op else { return Ok(Reply::NotHeld) };
        match self.acquire_if_free(attempt, *lease).await {
            Ok(Reply::Busy) if *on_busy == OnBusy::Wait => {
                let outcome = self.send_all(std::slice::from_ref(op)).await.pop();
                match outcome {
                    Some(outcome) => self.into_reply(op, outcome, retry).await,
                    None => Err(self.client.cluster.undone_by_cleanup(attempt)),
                }
            }
            Ok(reply) => {
                if reply == Reply::Busy {
                    self.client.forget(attempt.owner);
                }
                Ok(reply)
            }
            Err(Failure::NoLease) => self.retry_with_new_lease(op, retry).await,
            Err(Failure::Failed(error)) => {
                self.forget_unless_unanswered(attempt);
                Err(error)
            }
        }
    }

    /// Acquires one or all of the locks if they are free now. Returns [`Reply::Busy`] if they are not.
    async fn acquire_if_free(self, attempt: &Arc<Attempt>, lease: ExtendedLease) -> Result<Reply, Failure> {
        let (client, keys) = (self.client, &self.client.cluster.keys);
        for _ in 0..MAX_READS {
            client.state().register(attempt, lease.lease.id, self.sent_at);
            let queues = attempt.wants.iter().map(|want| oldest_first(keys.queue(&want.name)));
            let reads = queues.map(|queue| get(RangeRequest { keys_only: true, ..queue })).collect();
            let response = client.cluster.txn(unconditional(reads), request_timeout(attempt.ttl)).await?;
            if self.is_suffix_occupied(attempt, response.responses.iter().flat_map(kvs)) {
                if client.state().try_new_suffix(attempt.owner) {
                    continue;
                }
                // An earlier request of it may have been applied after all.
                client.mark_ending(attempt.owner);
                return Err(self.client.cluster.undone_by_cleanup(attempt).into());
            }
            let free = self.first_free(attempt, &response.responses)?;
            let Some(chosen) = free else { return Ok(Reply::Busy) };
            let read_revision = revision(&response);
            if let Some(reply) = self.acquire_if_unmodified(attempt, chosen, lease, read_revision).await? {
                return Ok(reply);
            }
        }
        Ok(Reply::Busy)
    }

    /// Returns whether one of the keys that an attempt would create exists already.
    fn is_suffix_occupied<'a>(
        self,
        attempt: &Attempt,
        mut queues: impl Iterator<Item = &'a KeyValue>,
    ) -> bool {
        let (cluster, state) = (&self.client.cluster, self.client.state());
        let own = attempt.wants.iter().map(|want| state.entry_key(cluster, want, attempt.owner));
        let own: Vec<Vec<u8>> = own.collect();
        queues.any(|key| own.contains(&key.key))
    }

    /// Returns which want can be acquired with these queues; under [`Rule::All`] the first, if all can.
    fn first_free(self, attempt: &Attempt, queues: &[ResponseOp]) -> Result<Option<usize>> {
        let mut free = Vec::new();
        for (index, (want, queue)) in attempt.wants.iter().zip(queues).enumerate() {
            let modes = kvs(queue).iter().map(|key| self.client.cluster.keys.mode_of(key));
            let modes: Vec<Mode> = modes.collect();
            want.agree(modes.iter().copied())?;
            let own_index = modes.len();
            if holder_count(modes.into_iter().chain([want.mode])) > own_index {
                free.push(index);
            }
        }
        Ok(match attempt.rule {
            Rule::All => (free.len() == attempt.wants.len()).then_some(0),
            Rule::Any => free.first().copied(),
        })
    }

    /// Creates the keys of an attempt unless its queues were modified after they were read. Returns `None` if they were.
    async fn acquire_if_unmodified(
        self,
        attempt: &Arc<Attempt>,
        chosen: usize,
        lease: ExtendedLease,
        read_revision: i64,
    ) -> Result<Option<Reply>, Failure> {
        let (client, owner, lease_id) = (self.client, attempt.owner, lease.lease.id);
        let (cluster, entry_meta) = (&client.cluster, EntryMeta::new(attempt));
        let mut request = TxnRequest::default();
        request.compare.push(key_absent(cluster.keys.tombstone(owner, lease_id)));
        {
            let mut state = client.state();
            state.record_sent(owner, lease_id);
            if let Some(own) = state.live_entry(owner) {
                // Without a reply, these are the keys to look for.
                own.entry.held = Some(chosen);
            }
            for want in held_wants(attempt, chosen) {
                request.compare.push(unmodified_since(cluster.keys.queue(&want.name), read_revision));
                let key = state.entry_key(cluster, want, owner);
                request.compare.push(key_absent(key.clone()));
                request.success.push(put(key, entry_meta.to_bytes(), lease_id));
            }
        }
        let response = cluster.link.txn(request, request_timeout(attempt.ttl)).await;
        let response = self.record_response(attempt, lease, response)?;
        if !response.succeeded {
            return Ok(None);
        }
        let revision = revision(&response);
        let is_held = |index: usize| attempt.rule == Rule::All || index == chosen;
        let position = |index| if is_held(index) { Position::Unblocked } else { Position::BehindSeveral };
        let positions = (0..attempt.wants.len()).map(position);
        let positions: Vec<Position> = positions.collect();
        let reply = client.record_positions(attempt, &positions, revision, revision, self.sent_at);
        let reply = reply.ok_or_else(|| cluster.undone_by_cleanup(attempt))?;
        client.wake_compatible_waiters(attempt, chosen);
        Ok(Some(reply))
    }
}
