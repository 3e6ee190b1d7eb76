//! Sends acquires and releases: the operations that create and delete the keys of attempts. [`crate::transactions`] builds
//! their requests; [`crate::acquire`] and [`crate::release`] interpret the responses.

use std::sync::Arc;
use std::time::Duration;

use fencepost_core::backend::{OnBusy, Reply};
use fencepost_core::{Attempt, Grant, Result, request_timeout};

use crate::cluster::{MAX_NESTED_TXNS, MAX_TXN_OPS, batches};
use crate::error::Failure;
use crate::flight::{Flight, LeaseRetry};
use crate::leases::ExtendedLease;
use crate::proto::{TxnRequest, TxnResponse};
use crate::request::{nested, nested_response, unconditional};
use crate::state::State;
use crate::successor::Successor;
use crate::transactions::acquire_op_count;

/// The maximum number of locks that are remembered as contended.
const MAX_CONTENDED: usize = 4096;
/// How often an acquire is sent again because the full transaction is needed, or another key suffix.
const MAX_RETRIES: usize = 3;

/// An operation that creates or deletes the keys of an attempt.
pub(crate) enum KeyOp {
    Acquire { attempt: Arc<Attempt>, on_busy: OnBusy, lease: ExtendedLease },
    Release(Grant),
}

/// An operation that is being sent.
struct PendingOp<'a> {
    op: &'a KeyOp,
    /// For a release: the waiter of this process that gets the lock next.
    successor: Option<Successor<'a>>,
    /// For an acquire: the transaction that is sent.
    txn: AcquireTxn,
}

/// The transaction of an acquire.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum AcquireTxn {
    /// Succeeds only if the queues are empty.
    Uncontended,
    /// Also joins queues, and reads what is ahead.
    Full,
}

/// The outcome of an operation, according to the response.
pub(crate) enum OpOutcome {
    Reply(Result<Reply>),
    /// The keys of the attempt existed already: its position has to be read.
    AlreadyQueued,
    /// The lease was missing, so the transaction was not applied. It can be repeated with a new lease.
    LeaseMissing,
    /// The transaction was not applied: send it again, in full and with the suffix assigned by then.
    SendAgain,
}

impl State {
    /// Returns whether another attempt was seen in the queue of one of these locks when it was last read.
    fn is_contended(&self, attempt: &Attempt) -> bool {
        !self.contended.is_empty() && attempt.wants.iter().any(|want| self.contended.contains(&want.name))
    }

    /// Records whether other attempts were seen in the queues of these locks.
    pub(crate) fn set_contended(&mut self, attempt: &Attempt, is_contended: bool) {
        if self.contended.len() > MAX_CONTENDED {
            self.contended.clear();
        }
        for want in &attempt.wants {
            if is_contended {
                self.contended.insert(want.name.clone());
            } else {
                self.contended.remove(&want.name);
            }
        }
    }
}

impl<'a> Flight<'a> {
    /// Sends acquires and releases in as few transactions as possible, and returns their outcomes in order. An acquire that
    /// finds its lock contended or its key suffix occupied is sent again, with the full transaction.
    pub(crate) async fn send_all(self, ops: &[KeyOp]) -> Vec<OpOutcome> {
        let mut outcomes = self.send(ops.iter(), AcquireTxn::Uncontended).await;
        for _ in 0..MAX_RETRIES {
            let must_retry = |index: &usize| matches!(outcomes[*index], OpOutcome::SendAgain);
            let indices: Vec<usize> = (0..outcomes.len()).filter(must_retry).collect();
            if indices.is_empty() {
                break;
            }
            let retried = self.send(indices.iter().map(|index| &ops[*index]), AcquireTxn::Full).await;
            indices.into_iter().zip(retried).for_each(|(index, outcome)| outcomes[index] = outcome);
        }
        outcomes
    }

    async fn send<'b>(self, ops: impl Iterator<Item = &'b KeyOp>, txn: AcquireTxn) -> Vec<OpOutcome>
    where
        'a: 'b,
    {
        let pending: Vec<PendingOp<'b>> = ops.map(|op| self.prepare(op, txn)).collect();
        let batches = batches(&pending, MAX_NESTED_TXNS, |pending| pending.op.weight());
        let cluster = &self.client.cluster;
        let responses =
            cluster.send_batches(batches, |batch| self.batch_request(batch), split_response).await;
        pending.into_iter().zip(responses).map(|(op, response)| self.on_response(op, response)).collect()
    }

    /// Records an acquire before it is sent, because its keys may be created although no reply arrives. Ends the watches of a
    /// released grant: the deletion of its own keys is expected.
    fn prepare<'b>(self, op: &'b KeyOp, txn: AcquireTxn) -> PendingOp<'b>
    where
        'a: 'b,
    {
        let mut state = self.client.state();
        match op {
            KeyOp::Acquire { attempt, lease: ExtendedLease { lease, .. }, .. } => {
                state.watches.clear_deletions(attempt);
                state.register(attempt, lease.id, self.sent_at);
                state.record_sent(attempt.owner, lease.id);
                let txn = if state.is_contended(attempt) { AcquireTxn::Full } else { txn };
                PendingOp { op, successor: None, txn }
            }
            KeyOp::Release(grant) => {
                state.watches.remove_owner(&self.client.cluster.link, grant.attempt.owner);
                PendingOp { op, successor: Successor::find(self.client, &mut state, grant), txn }
            }
        }
    }

    fn batch_request(self, batch: &[PendingOp<'_>]) -> (TxnRequest, Duration) {
        let shortest_ttl = batch.iter().map(|pending| pending.op.ttl()).min().unwrap_or_default();
        let request = match batch {
            [only] => self.request(only),
            several => unconditional(several.iter().map(|pending| nested(self.request(pending))).collect()),
        };
        (request, request_timeout(shortest_ttl))
    }

    fn request(self, pending: &PendingOp<'_>) -> TxnRequest {
        let (cluster, state) = (&self.client.cluster, self.client.state());
        match pending.op {
            KeyOp::Acquire { attempt, on_busy, lease: ExtendedLease { lease, .. } } => {
                let suffix = state.suffixes.get(attempt.owner);
                match pending.txn {
                    AcquireTxn::Full => cluster.full_acquire(attempt, suffix, *on_busy, lease.id),
                    AcquireTxn::Uncontended => cluster.uncontended_acquire(attempt, suffix, lease.id),
                }
            }
            KeyOp::Release(grant) => {
                let suffix = state.suffixes.get(grant.attempt.owner);
                cluster.release(grant, suffix, pending.successor.as_ref())
            }
        }
    }

    fn on_response(self, pending: PendingOp<'_>, response: Result<TxnResponse, Failure>) -> OpOutcome {
        let PendingOp { op, successor, txn } = pending;
        match (op, response) {
            (KeyOp::Release(grant), Ok(response)) => {
                if let Some(successor) = successor {
                    successor.on_response(&response);
                }
                OpOutcome::Reply(Ok(self.on_release_response(grant, response)))
            }
            (KeyOp::Release(_), Err(failure)) => OpOutcome::Reply(Err(self.client.cluster.to_error(failure))),
            (KeyOp::Acquire { attempt, on_busy, lease }, response) => {
                match self.record_response(attempt, *lease, response) {
                    Ok(response) => self.on_acquire_response(attempt, *on_busy, txn, &response),
                    Err(Failure::NoLease) => OpOutcome::LeaseMissing,
                    Err(Failure::Failed(error)) => OpOutcome::Reply(Err(error)),
                }
            }
        }
    }

    /// Turns an outcome into the reply. The position of an attempt whose keys existed already is read, and an acquire whose
    /// lease was missing is repeated with a new one.
    pub(crate) async fn into_reply(self, op: &KeyOp, outcome: OpOutcome, retry: LeaseRetry) -> Result<Reply> {
        let attempt = match op {
            KeyOp::Acquire { attempt, .. } => attempt,
            KeyOp::Release(_) => {
                return if let OpOutcome::Reply(reply) = outcome { reply } else { Ok(Reply::NotHeld) };
            }
        };
        let undone = || Err(self.client.cluster.undone_by_cleanup(attempt));
        match outcome {
            OpOutcome::Reply(reply) => self.leave_other_queues(attempt, reply?).await,
            OpOutcome::AlreadyQueued => {
                let reply = self.check(std::slice::from_ref(attempt)).await.pop();
                // Some or all of its keys may have been deleted meanwhile.
                reply.and_then(Result::transpose).unwrap_or_else(undone)
            }
            OpOutcome::LeaseMissing => self.retry_with_new_lease(op, retry).await,
            OpOutcome::SendAgain => undone(),
        }
    }

    /// Repeats an acquire whose lease was missing.
    pub(crate) async fn retry_with_new_lease(self, op: &KeyOp, retry: LeaseRetry) -> Result<Reply> {
        match op {
            KeyOp::Acquire { attempt, on_busy, .. } if retry == LeaseRetry::Once => {
                self.retry_acquire(attempt, *on_busy).await
            }
            _ => Err(self.client.cluster.to_error(Failure::NoLease)),
        }
    }
}

impl KeyOp {
    fn ttl(&self) -> Duration {
        match self {
            Self::Acquire { attempt, .. } => attempt.ttl,
            Self::Release(grant) => grant.award.ttl,
        }
    }

    /// Returns how much of a batch the operation takes up. One with many names fills a batch of its own, because a nested
    /// transaction may have fewer operations than a top-level one.
    fn weight(&self) -> usize {
        let op_count = match self {
            Self::Acquire { attempt, .. } => acquire_op_count(attempt),
            Self::Release(grant) => grant.held().len(),
        };
        if op_count > MAX_TXN_OPS - MAX_NESTED_TXNS { MAX_NESTED_TXNS } else { 1 }
    }
}

/// Returns the response to each operation of a batch.
fn split_response(batch: &[PendingOp<'_>], response: TxnResponse) -> Vec<TxnResponse> {
    if batch.len() == 1 {
        return vec![response];
    }
    let header = response.header;
    let nested = |part| TxnResponse { header, ..nested_response(part).unwrap_or_default() };
    response.responses.into_iter().map(nested).collect()
}

/// Returns the revision that created the keys of a grant.
pub(crate) fn create_revision(grant: &Grant) -> i64 {
    i64::try_from(grant.award.token.get()).unwrap_or(0)
}
