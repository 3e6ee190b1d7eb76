//! Natural batching: while the maximum number of flights is in progress, further operations are collected and sent together.
//! No timer is involved.
//!
//! A flight without a reply in time is given up as a whole: its future is dropped before its operations are completed with
//! "outcome unknown", so a backend never executes a resend beside the first send.

mod sharing;

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::{AbortHandle, Abortable, BoxFuture};
use futures_util::stream::{FuturesUnordered, StreamExt};

use crate::backend::{Backend, Op, Reply};
use crate::clock::Moment;
use crate::duration_text::duration_text;
use crate::error::{Error, ErrorKind, Result};
use crate::op::request_timeout;
use crate::options::Options;

/// The least time before a flight is given up, however short a lease in it is: other operations in it may have been applied.
const MIN_TIMEOUT: Duration = Duration::from_millis(500);

struct Flight<T> {
    members: Vec<Member<T>>,
    sent: Moment,
    /// After this it no longer counts towards the limit of flights.
    overdue: Moment,
    /// After this its replies are of no use.
    give_up: Moment,
    abort: AbortHandle,
}

struct Member<T> {
    tag: T,
    /// The kind of error if there is no reply.
    unanswered: ErrorKind,
}

/// The number of a flight, and its replies.
type Finished = (u64, Option<Vec<Result<Reply>>>);

/// A flight that has ended: when it was sent, and the reply to each operation with its tag.
pub(crate) struct Completed<T> {
    pub(crate) sent: Moment,
    pub(crate) replies: Vec<(T, Result<Reply>)>,
}

/// Operations to send, and flights in flight. `T` identifies the receiver of a reply.
pub(crate) struct Flights<T> {
    backend: Arc<dyn Backend>,
    limit: usize,
    batch: usize,
    may_share: Option<fn(&Op, &Op) -> bool>,
    /// The timeout of an operation without a lease.
    call_timeout: Duration,
    location: String,
    pending: VecDeque<(Op, T)>,
    in_flight: HashMap<u64, Flight<T>>,
    next_number: u64,
    /// The number of operations that were pending at the last send.
    last_batch: usize,
    executing: FuturesUnordered<BoxFuture<'static, Finished>>,
}

impl<T> Flights<T> {
    pub(crate) fn new(backend: Arc<dyn Backend>, call_timeout: Duration) -> Self {
        let info = backend.info();
        Self {
            backend,
            limit: info.max_flights,
            batch: info.max_batch,
            may_share: info.may_share,
            call_timeout,
            location: info.location,
            pending: VecDeque::new(),
            in_flight: HashMap::new(),
            next_number: 0,
            last_batch: 0,
            executing: FuturesUnordered::new(),
        }
    }

    /// Adds an operation to be sent.
    pub(crate) fn push(&mut self, op: Op, tag: T) {
        self.pending.push_back((op, tag));
    }

    /// Returns whether nothing is pending and nothing is in flight.
    pub(crate) fn is_empty(&self) -> bool {
        self.pending.is_empty() && self.in_flight.is_empty()
    }

    /// Returns the number of operations that were pending at the last send.
    pub(crate) fn last_batch(&self) -> usize {
        self.last_batch
    }

    /// Sends what is pending, up to the limit of flights, and calls `on_send` with the tag of each operation sent.
    pub(crate) fn send(&mut self, now: Moment, mut on_send: impl FnMut(&T)) {
        if !self.pending.is_empty() {
            self.last_batch = self.pending.len();
        }
        while !self.pending.is_empty() && self.on_time() < self.limit {
            let batch_ops = self.take_batch();
            let mut ops = Vec::with_capacity(batch_ops.len());
            let mut members = Vec::with_capacity(batch_ops.len());
            let (mut timeout, mut lease) = (Duration::MAX, self.call_timeout);
            for (op, tag) in batch_ops {
                on_send(&tag);
                timeout = timeout.min(self.timeout(&op));
                lease = lease.min(op.ttl().unwrap_or(self.call_timeout));
                members.push(Member { tag, unanswered: unanswered(&op) });
                ops.push(op);
            }
            let (abort, registration) = AbortHandle::new_pair();
            let number = self.next_number;
            self.next_number += 1;
            // However long its leases are: pending operations wait for it, and have deadlines too.
            let overdue = now + lease.min(Options::DEFAULT_CALL_TIMEOUT) / 6;
            let flight = Flight { members, sent: now, overdue, give_up: now + timeout, abort };
            self.in_flight.insert(number, flight);
            let backend = self.backend.clone();
            let executing = Abortable::new(async move { backend.execute(ops).await }, registration);
            self.executing.push(Box::pin(async move { (number, executing.await.ok()) }));
        }
    }

    /// Takes the operations of the next flight out of the pending ones.
    fn take_batch(&mut self) -> Vec<(Op, T)> {
        let Some(may_share) = self.may_share else {
            return self.pending.drain(..self.pending.len().min(self.batch)).collect();
        };
        let selected = sharing::select(self.pending.iter().map(|(op, _)| op), self.batch, may_share);
        let rest = self.pending.split_off(selected.len());
        let mut batch_ops = Vec::with_capacity(selected.len());
        let mut rest_ops = VecDeque::with_capacity(rest.len());
        for (member, is_selected) in self.pending.drain(..).zip(selected) {
            if is_selected {
                batch_ops.push(member);
            } else {
                rest_ops.push_back(member);
            }
        }
        rest_ops.extend(rest);
        self.pending = rest_ops;
        batch_ops
    }

    /// Returns the next flight that is completed; never, if none is in flight.
    ///
    /// # Cancel safety
    /// Dropping the future loses nothing.
    pub(crate) async fn next_completed(&mut self) -> Completed<T> {
        loop {
            let Some((number, replies)) = self.executing.next().await else {
                return std::future::pending().await;
            };
            if let Some(flight) = self.in_flight.remove(&number) {
                return self.complete(flight, replies.unwrap_or_default());
            }
        }
    }

    fn complete(&self, flight: Flight<T>, replies: Vec<Result<Reply>>) -> Completed<T> {
        let Flight { members, sent, give_up, .. } = flight;
        let mut replies = replies.into_iter();
        let outcome = |Member { tag, unanswered }| {
            let no_reply = || {
                let within = duration_text(give_up.since(sent));
                Err(Error::new(unanswered, format!("no reply from {} within {within}", self.location)))
            };
            (tag, replies.next().unwrap_or_else(no_reply))
        };
        Completed { sent, replies: members.into_iter().map(outcome).collect() }
    }

    /// Returns when to call [`Flights::give_up_overdue`] next.
    pub(crate) fn next_due(&self) -> Moment {
        let next = self.in_flight.values().map(|flight| flight.overdue.min(flight.give_up)).min();
        next.unwrap_or(Moment::NEVER)
    }

    /// Stops counting flights that are overdue, and gives up those whose timeout has passed.
    pub(crate) fn give_up_overdue(&mut self, now: Moment) -> Vec<Completed<T>> {
        for flight in self.in_flight.values_mut().filter(|flight| flight.overdue <= now) {
            flight.overdue = Moment::NEVER;
        }
        let late = self.in_flight.iter().filter(|(_, flight)| flight.give_up <= now);
        let late: Vec<u64> = late.map(|(number, _)| *number).collect();
        let given_up = late.into_iter().filter_map(|number| self.in_flight.remove(&number));
        let given_up: Vec<Flight<T>> = given_up.inspect(|flight| flight.abort.abort()).collect();
        given_up.into_iter().map(|flight| self.complete(flight, Vec::new())).collect()
    }

    fn on_time(&self) -> usize {
        self.in_flight.values().filter(|flight| flight.overdue != Moment::NEVER).count()
    }

    /// Returns the timeout of an operation. A reply is of no use after the lease; but other operations of the same owner wait
    /// for it, so the timeout leaves a backend enough time to give up one server and ask another, and a check enough time to be
    /// repeated.
    fn timeout(&self, op: &Op) -> Duration {
        let Some(ttl) = op.ttl() else { return self.call_timeout };
        let timeout = match op {
            Op::Renew(_) => ttl,
            Op::Check(_) => ttl / 3,
            _ => ttl.min(request_timeout(ttl) * 2),
        };
        timeout.max(MIN_TIMEOUT)
    }
}

fn unanswered(op: &Op) -> ErrorKind {
    match op {
        Op::ReadCell(_) => ErrorKind::Unreachable,
        _ => ErrorKind::OutcomeUnknown,
    }
}
