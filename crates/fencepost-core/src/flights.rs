//! Natural batching: while flights are under way, further operations gather and leave together. No timer is involved,
//! and nothing waits when nothing is under way.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::{AbortHandle, Abortable, BoxFuture};
use futures_util::stream::{FuturesUnordered, StreamExt};

use crate::backend::{Backend, Op, Reply};
use crate::clock::Moment;
use crate::error::{Error, ErrorKind, Result};

/// How long an operation without a lease of its own may take.
const PATIENCE: Duration = Duration::from_secs(30);

struct Flight<T> {
    tags: Vec<T>,
    sent: Moment,
    /// After this it no longer keeps others from leaving.
    overdue: Moment,
    /// After this its answers are of no use.
    give_up: Moment,
    abort: AbortHandle,
}

/// The number of a flight, and its answers unless it was given up.
type Arrival = (u64, Option<Vec<Result<Reply>>>);

/// A flight that has ended: when it was sent, and the answer to each operation with its tag.
pub(crate) struct Landed<T> {
    pub(crate) sent: Moment,
    pub(crate) replies: Vec<(T, Result<Reply>)>,
}

/// Operations that wait to leave, and flights under way. `T` says whom an answer belongs to.
pub(crate) struct Flights<T> {
    backend: Arc<dyn Backend>,
    at_once: usize,
    batch: usize,
    outbox: VecDeque<(Op, T)>,
    in_the_air: HashMap<u64, Flight<T>>,
    next_number: u64,
    journeys: FuturesUnordered<BoxFuture<'static, Arrival>>,
}

impl<T> Flights<T> {
    pub(crate) fn new(backend: Arc<dyn Backend>) -> Self {
        let info = backend.info();
        Self {
            backend,
            at_once: info.flights,
            batch: info.batch,
            outbox: VecDeque::new(),
            in_the_air: HashMap::new(),
            next_number: 0,
            journeys: FuturesUnordered::new(),
        }
    }

    /// Puts an operation where it waits to leave.
    pub(crate) fn push(&mut self, op: Op, tag: T) {
        self.outbox.push_back((op, tag));
    }

    /// Whether nothing waits to leave and nothing is under way.
    pub(crate) fn is_empty(&self) -> bool {
        self.outbox.is_empty() && self.in_the_air.is_empty()
    }

    /// Sends what has gathered, if there is room, and names the tags of what leaves.
    pub(crate) fn depart(&mut self, now: Moment, mut leaving: impl FnMut(&T)) {
        while !self.outbox.is_empty() && self.on_time() < self.at_once {
            let count = self.outbox.len().min(self.batch);
            let (ops, tags): (Vec<Op>, Vec<T>) = self.outbox.drain(..count).unzip();
            tags.iter().for_each(&mut leaving);
            let shortest = ops.iter().map(patience).min().unwrap_or(PATIENCE);
            let longest = ops.iter().map(patience).max().unwrap_or(PATIENCE);
            let (abort, registration) = AbortHandle::new_pair();
            let number = self.next_number;
            self.next_number += 1;
            let flight =
                Flight { tags, sent: now, overdue: now + shortest / 6, give_up: now + longest, abort };
            self.in_the_air.insert(number, flight);
            let backend = self.backend.clone();
            let journey = Abortable::new(async move { backend.execute(ops).await }, registration);
            self.journeys.push(Box::pin(async move { (number, journey.await.ok()) }));
        }
    }

    /// The next flight that lands; never, if none is under way.
    ///
    /// # Cancel safety
    /// Dropping the future loses nothing.
    pub(crate) async fn landed(&mut self) -> Landed<T> {
        loop {
            let Some((number, replies)) = self.journeys.next().await else {
                return std::future::pending().await;
            };
            if let Some(flight) = self.in_the_air.remove(&number) {
                let mut replies = replies.unwrap_or_default().into_iter();
                let unknown = || Error::new(ErrorKind::OutcomeUnknown, "the storage did not answer in time");
                let answer = |tag| (tag, replies.next().unwrap_or_else(|| Err(unknown())));
                return Landed { sent: flight.sent, replies: flight.tags.into_iter().map(answer).collect() };
            }
        }
    }

    /// When to call [`Flights::tend`] next.
    pub(crate) fn next(&self) -> Moment {
        let next = self.in_the_air.values().map(|flight| flight.overdue.min(flight.give_up)).min();
        next.unwrap_or(Moment::NEVER)
    }

    /// Lets others leave although a flight is late, and ends those that are of no use any more.
    pub(crate) fn tend(&mut self, now: Moment) {
        for flight in self.in_the_air.values_mut() {
            if flight.overdue <= now {
                flight.overdue = Moment::NEVER;
            }
            if flight.give_up <= now {
                flight.give_up = Moment::NEVER;
                flight.abort.abort();
            }
        }
    }

    fn on_time(&self) -> usize {
        self.in_the_air.values().filter(|flight| flight.overdue != Moment::NEVER).count()
    }
}

fn patience(op: &Op) -> Duration {
    match op {
        Op::Acquire { attempt, .. } | Op::Check(attempt) | Op::Leave(attempt) => attempt.ttl,
        Op::Renew(grant) | Op::Release(grant) => grant.award.ttl,
        Op::ReadCell(_) | Op::WriteCell { .. } | Op::Break { .. } => PATIENCE,
    }
}
