//! Reads the positions of this client's attempts. Every read is linearizable, and proves that the keys of the attempt exist.

use std::sync::Arc;

use fencepost_contenders::OwnEntry;
use fencepost_core::backend::Reply;
use fencepost_core::{Attempt, Mode, Result, Rule, Want, request_timeout};

use crate::cluster::{Cluster, MAX_TXN_OPS, batches};
use crate::error::Failure;
use crate::flight::Flight;
use crate::layout::is_owned_by;
use crate::position::Position;
use crate::proto::{KeyValue, RangeRequest, RequestOp, ResponseOp, TxnResponse};
use crate::request::{
    delete_each, get, keys_only, newest_first, next_kvs, oldest_first, raft_term, revision, single_key,
    unconditional,
};
use crate::state::{Entry, State};

/// The result of reading the keys of an attempt.
pub(crate) enum Lookup {
    /// All keys exist, created by `create_revision`; its position in each queue, as of `read_revision`.
    Present { create_revision: i64, read_revision: i64, positions: Vec<Position> },
    /// A key is missing or was replaced. `is_partial` tells whether others exist.
    Missing { is_partial: bool },
    /// The key that it waits for is deleted: another one may be ahead.
    PredecessorDeleted,
}

/// What is read to find the position of an attempt.
#[derive(Clone, Copy, PartialEq, Eq)]
enum ReadScope {
    /// The one key that it waits for, if there is one: the cost does not depend on the length of the queue.
    Predecessor,
    /// The queue: the server scans all of it, even for a limited result.
    Queue,
}

/// A read of the position of one attempt.
struct PositionQuery<'a> {
    attempt: &'a Attempt,
    /// The wants that it has keys for.
    wants: &'a [Want],
    keys: Vec<Vec<u8>>,
    lease_id: Option<i64>,
    create_revision: Option<i64>,
    predecessor: Option<Vec<u8>>,
}

impl<'a> PositionQuery<'a> {
    fn new(state: &State, cluster: &Cluster, attempt: &'a Attempt, scope: ReadScope) -> Self {
        let owner = attempt.owner;
        let entry = state.own_entries.get(owner).map(|own| &own.entry);
        let wants = entry.map_or(attempt.wants.as_slice(), |entry| entry.wants(attempt));
        let has_one_queue = |entry: &&Entry| {
            scope == ReadScope::Predecessor
                && wants.len() == 1
                && entry.held.is_none()
                && entry.create_revision.is_some()
        };
        let predecessor = entry.filter(has_one_queue).and_then(|_| state.watches.only_predecessor(owner));
        Self {
            attempt,
            wants,
            keys: wants.iter().map(|want| state.entry_key(cluster, want, owner)).collect(),
            lease_id: entry.map(|entry| entry.lease_id),
            create_revision: entry.and_then(|entry| entry.create_revision),
            predecessor: predecessor.map(<[u8]>::to_vec),
        }
    }

    /// Returns the reads: its own keys, and what is ahead of each.
    fn reads(&self, cluster: &Cluster) -> Vec<RequestOp> {
        let own = self.keys.iter().cloned();
        let own =
            own.map(|key| get(if self.create_revision.is_some() { keys_only(key) } else { single_key(key) }));
        let queues = self.wants.iter().map(|want| {
            if let Some(key) = &self.predecessor {
                return get(keys_only(key.clone()));
            }
            let range = cluster.keys.ahead(want);
            get(match (want.mode, self.create_revision) {
                (Mode::Semaphore { .. }, Some(create_revision)) => RangeRequest {
                    keys_only: true,
                    max_create_revision: create_revision,
                    ..oldest_first(range)
                },
                (_, Some(create_revision)) => {
                    RangeRequest { max_create_revision: create_revision - 1, ..newest_first(range, 1) }
                }
                (_, None) => RangeRequest { keys_only: true, ..oldest_first(range) },
            })
        });
        own.chain(queues).collect()
    }

    /// Interprets the responses to [`PositionQuery::reads`].
    fn interpret<'b>(
        &self,
        cluster: &Cluster,
        responses: &mut impl Iterator<Item = &'b ResponseOp>,
        read_revision: i64,
    ) -> Lookup {
        let keys: Vec<&[KeyValue]> = self.wants.iter().map(|_| next_kvs(responses)).collect();
        let queues: Vec<&[KeyValue]> = self.wants.iter().map(|_| next_kvs(responses)).collect();
        let first = keys.first().and_then(|keys| keys.first()).map(|key| key.create_revision);
        // A key of an earlier request may be attached to a lease that was abandoned.
        let is_own = |key: &KeyValue| match self.create_revision {
            Some(create_revision) => key.create_revision == create_revision,
            None => is_owned_by(key, self.attempt.owner) && Some(key.lease) == self.lease_id,
        };
        let is_present = |keys: &&[KeyValue]| {
            keys.first().is_some_and(|key| Some(key.create_revision) == first && is_own(key))
        };
        match first.filter(|_| keys.iter().all(is_present)) {
            None => Lookup::Missing { is_partial: keys.iter().any(|keys| !keys.is_empty()) },
            Some(create_revision) => {
                let queues = self.wants.iter().zip(queues);
                let positions = queues.map(|(want, queue)| cluster.position(want, queue, create_revision));
                let positions: Vec<Position> = positions.collect();
                if self.predecessor.is_some() && positions.contains(&Position::Unblocked) {
                    return Lookup::PredecessorDeleted;
                }
                Lookup::Present { create_revision, read_revision, positions }
            }
        }
    }
}

impl Flight<'_> {
    /// Reads the positions of these attempts, and keeps their leases alive. Returns `None` for an attempt whose keys do not
    /// exist: it ends, unless one of its requests may still create them.
    pub(crate) async fn check(self, attempts: &[Arc<Attempt>]) -> Vec<Result<Option<Reply>>> {
        let client = self.client;
        let (lease_ids, to_extend) = {
            let mut state = client.state();
            let mut lease_id =
                |attempt: &Arc<Attempt>| state.live_entry(attempt.owner).map(|own| own.entry.lease_id);
            let lease_ids: Vec<Option<i64>> = attempts.iter().map(&mut lease_id).collect();
            let is_stale = |id: &i64| state.leases.is_stale(*id, self.sent_at);
            let to_extend: Vec<i64> = lease_ids.iter().flatten().copied().filter(is_stale).collect();
            (lease_ids, to_extend)
        };
        let extensions = client.keep_all_alive(to_extend.into_iter()).await;
        let lookups = self.look_up(attempts).await;
        let mut replies = Vec::with_capacity(attempts.len());
        for ((attempt, lease_id), lookup) in attempts.iter().zip(lease_ids).zip(lookups) {
            let extension = lease_id.and_then(|id| extensions.get(&id)?.as_ref().ok().copied().flatten());
            if let (Ok((_, term)), Some(extension)) = (&lookup, extension) {
                client.state().leases.confirm(extension, *term);
            }
            replies.push(match lookup {
                Ok((lookup, _)) => self.reply_to_check(attempt, lookup).await,
                Err(failure) => Err(client.cluster.to_error(failure)),
            });
        }
        replies
    }

    async fn reply_to_check(self, attempt: &Arc<Attempt>, lookup: Lookup) -> Result<Option<Reply>> {
        let client = self.client;
        match lookup {
            Lookup::Present { create_revision, read_revision, positions } => {
                match client.record_positions(
                    attempt,
                    &positions,
                    create_revision,
                    read_revision,
                    self.sent_at,
                ) {
                    Some(reply) => self.leave_other_queues(attempt, reply).await.map(Some),
                    None => Ok(None),
                }
            }
            Lookup::Missing { is_partial } => {
                let had_keys = |own: &OwnEntry<Entry>| own.entry.create_revision.is_some();
                if is_partial || client.state().own_entries.get(attempt.owner).is_some_and(had_keys) {
                    client.mark_ending(attempt.owner);
                }
                Ok(None)
            }
            Lookup::PredecessorDeleted => Ok(Some(Reply::Waiting { check_after: attempt.ttl })),
        }
    }

    /// Reads the keys and positions of these attempts. Returns with each the Raft term of the response.
    pub(crate) async fn look_up(self, attempts: &[Arc<Attempt>]) -> Vec<Result<(Lookup, u64), Failure>> {
        let mut lookups = self.look_up_in(attempts, ReadScope::Predecessor).await;
        let needs_queue = |index: &usize| matches!(lookups[*index], Ok((Lookup::PredecessorDeleted, _)));
        let repeated: Vec<usize> = (0..lookups.len()).filter(needs_queue).collect();
        let attempts: Vec<Arc<Attempt>> = repeated.iter().map(|index| attempts[*index].clone()).collect();
        let from_queue = self.look_up_in(&attempts, ReadScope::Queue).await;
        repeated.into_iter().zip(from_queue).for_each(|(index, lookup)| lookups[index] = lookup);
        lookups
    }

    async fn look_up_in(
        self,
        attempts: &[Arc<Attempt>],
        scope: ReadScope,
    ) -> Vec<Result<(Lookup, u64), Failure>> {
        let cluster = &self.client.cluster;
        let queries: Vec<PositionQuery<'_>> = {
            let state = self.client.state();
            attempts.iter().map(|attempt| PositionQuery::new(&state, cluster, attempt, scope)).collect()
        };
        let request = |batch: &[PositionQuery<'_>]| {
            let shortest_ttl = batch.iter().map(|query| query.attempt.ttl).min().unwrap_or_default();
            let reads = batch.iter().flat_map(|query| query.reads(cluster)).collect();
            (unconditional(reads), request_timeout(shortest_ttl))
        };
        let interpret = |batch: &[PositionQuery<'_>], response: TxnResponse| {
            let (read_revision, term) = (revision(&response), raft_term(&response));
            let mut responses = response.responses.iter();
            let lookups = batch.iter().map(|query| query.interpret(cluster, &mut responses, read_revision));
            lookups.map(|lookup| (lookup, term)).collect()
        };
        let batches = batches(&queries, MAX_TXN_OPS, |query| query.wants.len() * 2);
        cluster.send_batches(batches, request, interpret).await
    }

    /// Deletes the other keys of an attempt that was granted one of several locks, before the grant is returned.
    pub(crate) async fn leave_other_queues(self, attempt: &Arc<Attempt>, reply: Reply) -> Result<Reply> {
        let Reply::Granted(award) = &reply else { return Ok(reply) };
        let (client, cluster) = (self.client, &self.client.cluster);
        if attempt.rule == Rule::Any && attempt.wants.len() > 1 {
            let create_revision = i64::try_from(award.token.get()).unwrap_or(0);
            let others: Vec<(Vec<u8>, i64)> = {
                let state = client.state();
                let others = attempt.wants.iter().enumerate().filter(|(index, _)| *index != award.chosen);
                others
                    .map(|(_, want)| (state.entry_key(cluster, want, attempt.owner), create_revision))
                    .collect()
            };
            let deleted = cluster.link.txn(delete_each(others), request_timeout(attempt.ttl)).await;
            deleted.map_err(|failure| cluster.partially_applied(failure))?;
        }
        client.wake_compatible_waiters(attempt, award.chosen);
        Ok(reply)
    }
}
