//! One flight: operations that do not depend on each other and are sent together.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use fencepost_core::backend::{OnBusy, Op, Reply};
use fencepost_core::clock::Moment;
use fencepost_core::{Attempt, Error, ErrorKind, Grant, Mode, Result, Rule};
use futures_util::future::{BoxFuture, join, join_all, join4};

use crate::cell::{read_cell, write_cell};
use crate::key_ops::KeyOp;
use crate::leases::{ExtendedLease, whole_seconds};
use crate::state::ClientState;

/// The reply to the operation at this index of the flight.
type IndexedReply = (usize, Result<Reply>);
/// An acquire, with its index in the flight.
#[derive(Clone, Copy)]
struct Acquire<'a> {
    index: usize,
    attempt: &'a Arc<Attempt>,
    on_busy: OnBusy,
}

/// A flight of one client.
#[derive(Clone, Copy)]
pub(crate) struct Flight<'a> {
    pub(crate) client: &'a ClientState,
    /// When the flight was sent. The leases of its grants count from then.
    pub(crate) sent_at: Moment,
}

impl<'a> Flight<'a> {
    pub(crate) fn new(client: &'a ClientState) -> Self {
        Self { client, sent_at: client.clock.now() }
    }

    /// Executes the operations, and removes expired entries of this client.
    pub(crate) async fn execute(self, ops: &[Op]) -> Vec<Result<Reply>> {
        {
            // Before the sweep looks for entries that no operation keeps.
            let mut state = self.client.state();
            ops.iter().filter_map(Op::owner).for_each(|owner| state.keep(owner, self.sent_at));
        }
        let (indexed, ()) = join(Box::pin(self.dispatch(ops)), self.client.sweep(self.sent_at)).await;
        let mut replies: Vec<Option<Result<Reply>>> = ops.iter().map(|_| None).collect();
        for (index, reply) in indexed {
            replies[index] = Some(reply);
        }
        let no_reply = || Err(Error::new(ErrorKind::OutcomeUnknown, "an operation got no reply"));
        let replies = replies.into_iter().map(|reply| reply.unwrap_or_else(no_reply));
        join_all(ops.iter().zip(replies).map(|(op, reply)| self.clean_up_after(op, reply))).await
    }

    async fn dispatch(self, ops: &[Op]) -> Vec<IndexedReply> {
        let (mut acquires, mut releases) = (Vec::new(), Vec::new());
        let (mut checks, mut renewals, mut singles) = (Vec::new(), Vec::new(), Vec::new());
        for (index, op) in ops.iter().enumerate() {
            match op {
                Op::Acquire { attempt, on_busy } => {
                    acquires.push(Acquire { index, attempt, on_busy: *on_busy });
                }
                Op::Release(grant) => releases.push((index, grant)),
                Op::Check(attempt) => checks.push((index, attempt)),
                Op::Renew(grant) => renewals.push((index, grant)),
                _ => singles.push(async move { (index, self.execute_single(op).await) }),
            }
        }
        let key_ops = Box::pin(self.acquire_and_release(acquires, releases, LeaseRetry::Once));
        let (key_ops, checked, renewed, singles) =
            join4(key_ops, self.check_all(checks), self.renew(&renewals), join_all(singles)).await;
        [key_ops, checked, renewed, singles].into_iter().flatten().collect()
    }

    async fn execute_single(self, op: &Op) -> Result<Reply> {
        match op {
            Op::Leave(attempt) => self.leave(attempt).await,
            Op::ReadCell(name) => read_cell(self.client, name).await,
            Op::WriteCell { grant, name, bytes, keep } => {
                write_cell(self.client, grant, name, bytes, *keep).await
            }
            Op::Break { name, token } => self.client.cluster.break_lock(name, *token).await,
            Op::Acquire { .. } | Op::Check(_) | Op::Renew(_) | Op::Release(_) => Ok(Reply::NoTicket),
        }
    }

    /// Removes the remaining keys of an attempt that has ended. After `NoTicket` and `Left` the engine continues with another
    /// owner or not at all, so these replies guarantee that no key exists and that no late request can create one.
    async fn clean_up_after(self, op: &Op, reply: Result<Reply>) -> Result<Reply> {
        let Some(attempt) = op.attempt().filter(|attempt| self.client.is_ending(attempt.owner)) else {
            return reply;
        };
        match self.client.clean_up(attempt).await {
            Err(error) if matches!(reply, Ok(Reply::NoTicket | Reply::Left)) => Err(error),
            // After a failure, the next operation of this owner or the sweep repeats the cleanup.
            Ok(()) | Err(_) => reply,
        }
    }

    async fn check_all(self, checks: Vec<(usize, &Arc<Attempt>)>) -> Vec<IndexedReply> {
        let mut replies = Vec::with_capacity(checks.len());
        let (mut local, mut queued) = (Vec::new(), Vec::new());
        {
            let mut state = self.client.state();
            for (index, attempt) in checks {
                if state.own_entries.keep_local_waiter(attempt.owner, self.sent_at) {
                    local.push((index, attempt));
                } else if state.live_entry(attempt.owner).is_some() {
                    queued.push((index, Arc::clone(attempt)));
                } else {
                    replies.push((index, Ok(Reply::NoTicket)));
                }
            }
        }
        let (indices, queued): (Vec<usize>, Vec<Arc<Attempt>>) = queued.into_iter().unzip();
        let (local, checked) = join(self.check_local_waiters(local), self.check(&queued)).await;
        replies.extend(local);
        for ((index, attempt), reply) in indices.into_iter().zip(queued).zip(checked) {
            if let Ok(None) = reply {
                self.client.mark_ending(attempt.owner);
            }
            replies.push((index, reply.map(|reply| reply.unwrap_or(Reply::NoTicket))));
        }
        replies
    }

    /// Checks local waiters one after the other, because two acquires of one lock may not be in one transaction.
    async fn check_local_waiters(self, checks: Vec<(usize, &Arc<Attempt>)>) -> Vec<IndexedReply> {
        let client = self.client;
        let mut replies = Vec::with_capacity(checks.len());
        for (index, attempt) in checks {
            {
                let state = client.state();
                if !state.own_entries.may_enqueue(attempt) {
                    client.forward_wakeup(&state, attempt);
                    replies.push((index, Ok(Reply::Waiting { check_after: attempt.ttl })));
                    continue;
                }
            }
            let acquire = vec![Acquire { index, attempt, on_busy: OnBusy::Wait }];
            let acquired = Box::pin(self.acquire_and_release(acquire, Vec::new(), LeaseRetry::Once)).await;
            let succeeded = acquired.iter().all(|(_, reply)| reply.is_ok());
            replies.extend(acquired);
            let mut state = client.state();
            if state.own_entries.keep_local_waiter(attempt.owner, self.sent_at) {
                // It could not create its keys after all, and stays first in the local queue.
                state.own_entries.move_to_front(attempt.owner);
                // Another local waiter may have become the first meanwhile. After an error the attempt retries by itself.
                if succeeded {
                    client.forward_wakeup(&state, attempt);
                }
            } else {
                // Several entries may have been removed at once, and only the first local waiter was woken.
                client.wake_unblocked(&state, attempt);
            }
        }
        replies
    }

    /// Executes acquires and releases, in as few transactions as possible.
    async fn acquire_and_release(
        self,
        acquires: Vec<Acquire<'_>>,
        releases: Vec<(usize, &Grant)>,
        retry: LeaseRetry,
    ) -> Vec<IndexedReply> {
        let (mut replies, acquires) = self.resume_acquires(acquires).await;
        let lease_by_secs = self.leases_for(acquires.iter().map(|acquire| acquire.attempt.ttl)).await;
        let mut direct: Vec<(usize, KeyOp)> =
            releases.into_iter().map(|(index, grant)| (index, KeyOp::Release(grant.clone()))).collect();
        let mut optimistic = Vec::new();
        for Acquire { index, attempt, on_busy } in acquires {
            let lease = match &lease_by_secs[&whole_seconds(attempt.ttl)] {
                Err(error) => {
                    replies.push((index, Err(error.clone())));
                    continue;
                }
                Ok(lease) => *lease,
            };
            if self.must_wait_locally(attempt, on_busy) {
                replies.push((index, Ok(Reply::Waiting { check_after: attempt.ttl })));
                continue;
            }
            let op = KeyOp::Acquire { attempt: attempt.clone(), on_busy, lease };
            if must_read_first(attempt, on_busy) {
                optimistic.push((index, op));
            } else {
                direct.push((index, op));
            }
        }
        // In the order of the flight: an acquire that follows a release of the same lock must see it as released.
        direct.sort_unstable_by_key(|(index, _)| *index);
        let (indices, direct): (Vec<usize>, Vec<KeyOp>) = direct.into_iter().unzip();
        let direct = async {
            let outcomes = self.send_all(&direct).await;
            let direct = direct.iter().zip(outcomes);
            let direct = direct.map(async |(op, outcome)| self.into_reply(op, outcome, retry).await);
            indices.into_iter().zip(join_all(direct).await).collect::<Vec<IndexedReply>>()
        };
        let (indices, optimistic): (Vec<usize>, Vec<KeyOp>) = optimistic.into_iter().unzip();
        let optimistic = join_all(optimistic.iter().map(|op| self.read_then_acquire(op, retry)));
        let (direct, optimistic) = join(direct, optimistic).await;
        replies.extend(direct);
        replies.extend(indices.into_iter().zip(optimistic));
        replies
    }

    /// Executes one acquire again, from the beginning.
    pub(crate) fn retry_acquire<'b>(
        self,
        attempt: &'b Arc<Attempt>,
        on_busy: OnBusy,
    ) -> BoxFuture<'b, Result<Reply>>
    where
        'a: 'b,
    {
        Box::pin(async move {
            let acquire = vec![Acquire { index: 0, attempt, on_busy }];
            let replies = self.acquire_and_release(acquire, Vec::new(), LeaseRetry::Never).await;
            let undone = || Err(self.client.cluster.undone_by_cleanup(attempt));
            replies.into_iter().next().map_or_else(undone, |(_, reply)| reply)
        })
    }

    /// Replies to the acquires that need no new keys: unsupported ones, those of owners that have left, and those whose keys
    /// exist already. Returns the others.
    async fn resume_acquires(self, acquires: Vec<Acquire<'_>>) -> (Vec<IndexedReply>, Vec<Acquire<'_>>) {
        let (mut replies, mut new, mut known) = (Vec::new(), Vec::new(), Vec::new());
        for acquire in acquires {
            let Acquire { index, attempt, .. } = acquire;
            if let Err(error) = self.client.cluster.check_supported(attempt) {
                replies.push((index, Err(error)));
                continue;
            }
            let mut state = self.client.state();
            if state.has_tombstone(attempt.owner, self.sent_at) {
                replies.push((index, Ok(Reply::Busy)));
            } else if state.live_entry(attempt.owner).is_some() {
                known.push(acquire);
            } else {
                new.push(acquire);
            }
        }
        let attempts: Vec<Arc<Attempt>> = known.iter().map(|acquire| Arc::clone(acquire.attempt)).collect();
        for (acquire, checked) in known.into_iter().zip(self.check(&attempts).await) {
            match checked.transpose() {
                Some(reply) => replies.push((acquire.index, reply)),
                // The earlier request has not been applied, or its lease has ended.
                None => new.push(acquire),
            }
        }
        let mut to_send = Vec::with_capacity(new.len());
        for acquire in new {
            let is_ending = self.client.is_ending(acquire.attempt.owner);
            match if is_ending { self.client.clean_up(acquire.attempt).await } else { Ok(()) } {
                Ok(()) => to_send.push(acquire),
                Err(error) => replies.push((acquire.index, Err(error))),
            }
        }
        (replies, to_send)
    }

    /// Returns whether an attempt has to wait in this process, and adds it to the local waiters if so.
    fn must_wait_locally(self, attempt: &Arc<Attempt>, on_busy: OnBusy) -> bool {
        let mut state = self.client.state();
        let is_yielding = attempt.wants.iter().any(|want| state.yields.is_yielding(&want.name, self.sent_at));
        let may_enqueue = !is_yielding && state.own_entries.may_enqueue(attempt);
        if on_busy == OnBusy::Return || may_enqueue || state.own_entries.get(attempt.owner).is_some() {
            return false;
        }
        if is_yielding {
            // It retries when the yield ends, whatever happens until then.
            state.watches.clear_deletions(attempt);
        }
        state.own_entries.wait_locally(attempt, self.sent_at);
        true
    }

    /// Returns a lease for each of these ttls, by its whole seconds.
    async fn leases_for(self, ttls: impl Iterator<Item = Duration>) -> HashMap<i64, Result<ExtendedLease>> {
        let ttls: HashMap<i64, Duration> = ttls.map(|ttl| (whole_seconds(ttl), ttl)).collect();
        let leases = ttls.into_iter().map(async |(seconds, ttl)| (seconds, self.client.lease_for(ttl).await));
        join_all(leases).await.into_iter().collect()
    }
}

/// Whether an acquire whose lease was missing is sent again with a new lease.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum LeaseRetry {
    Once,
    Never,
}

/// Returns whether an acquire has to read the queues before its transaction can be built.
fn must_read_first(attempt: &Attempt, on_busy: OnBusy) -> bool {
    let is_any = attempt.rule == Rule::Any && attempt.wants.len() > 1;
    let is_semaphore = attempt.wants.iter().any(|want| matches!(want.mode, Mode::Semaphore { .. }));
    is_any || (is_semaphore && on_busy == OnBusy::Return)
}
