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
use crate::options::Options;

struct Flight<T> {
    passengers: Vec<Passenger<T>>,
    sent: Moment,
    /// After this it no longer keeps others from leaving.
    overdue: Moment,
    /// When the next of its passengers is given up.
    next_give_up: Moment,
    abort: AbortHandle,
}

struct Passenger<T> {
    /// Taken when it is given up.
    tag: Option<T>,
    /// After this its answer is of no use.
    give_up: Moment,
    /// What it means if there is no answer.
    silence: ErrorKind,
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
    /// How long an operation without a lease of its own may take.
    deadline: Duration,
    location: String,
    outbox: VecDeque<(Op, T)>,
    in_the_air: HashMap<u64, Flight<T>>,
    next_number: u64,
    /// How many operations left together the last time.
    last_wave: usize,
    journeys: FuturesUnordered<BoxFuture<'static, Arrival>>,
}

impl<T> Flights<T> {
    pub(crate) fn new(backend: Arc<dyn Backend>, deadline: Duration) -> Self {
        let info = backend.info();
        Self {
            backend,
            at_once: info.flights,
            batch: info.batch,
            deadline,
            location: info.location,
            outbox: VecDeque::new(),
            in_the_air: HashMap::new(),
            next_number: 0,
            last_wave: 0,
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

    /// How many operations left together the last time.
    pub(crate) fn last_wave(&self) -> usize {
        self.last_wave
    }

    /// Sends what has gathered, if there is room, and names the tags of what leaves.
    pub(crate) fn depart(&mut self, now: Moment, mut leaving: impl FnMut(&T)) {
        if !self.outbox.is_empty() {
            self.last_wave = self.outbox.len();
        }
        while !self.outbox.is_empty() && self.on_time() < self.at_once {
            let count = self.outbox.len().min(self.batch);
            let mut ops = Vec::with_capacity(count);
            let mut passengers = Vec::with_capacity(count);
            let mut shortest = Duration::MAX;
            for (op, tag) in self.outbox.drain(..count) {
                leaving(&tag);
                let patience = lease(&op).unwrap_or(self.deadline);
                shortest = shortest.min(patience);
                passengers.push(Passenger { tag: Some(tag), give_up: now + patience, silence: silence(&op) });
                ops.push(op);
            }
            let (abort, registration) = AbortHandle::new_pair();
            let number = self.next_number;
            self.next_number += 1;
            // However long its leases are: others wait on the ground, and their time has a limit too.
            let overdue = now + shortest.min(self.deadline).min(Options::DEFAULT_DEADLINE) / 6;
            let next_give_up = now + shortest;
            let flight = Flight { passengers, sent: now, overdue, next_give_up, abort };
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
                let answer = |passenger: Passenger<T>| {
                    let reply = replies.next();
                    let reply =
                        reply.unwrap_or_else(|| Err(no_answer(&self.location, flight.sent, &passenger)));
                    Some((passenger.tag?, reply))
                };
                let replies = flight.passengers.into_iter().filter_map(answer).collect();
                return Landed { sent: flight.sent, replies };
            }
        }
    }

    /// When to call [`Flights::tend`] next.
    pub(crate) fn next(&self) -> Moment {
        let next = self.in_the_air.values().map(|flight| flight.overdue.min(flight.next_give_up)).min();
        next.unwrap_or(Moment::NEVER)
    }

    /// Lets others leave although a flight is late, and answers those for whom it is too late.
    pub(crate) fn tend(&mut self, now: Moment) -> Vec<Landed<T>> {
        let mut given_up = Vec::new();
        for flight in self.in_the_air.values_mut() {
            if flight.overdue <= now {
                flight.overdue = Moment::NEVER;
            }
            if flight.next_give_up <= now {
                let late = flight.passengers.iter_mut().filter(|passenger| passenger.give_up <= now);
                let answer = |late: &mut Passenger<T>| {
                    let error = no_answer(&self.location, flight.sent, late);
                    Some((late.tag.take()?, Err(error)))
                };
                let replies = late.filter_map(answer).collect();
                given_up.push(Landed { sent: flight.sent, replies });
                let left = flight.passengers.iter().filter(|passenger| passenger.tag.is_some());
                flight.next_give_up = left.map(|passenger| passenger.give_up).min().unwrap_or(Moment::NEVER);
                if flight.next_give_up == Moment::NEVER {
                    flight.abort.abort();
                }
            }
        }
        given_up
    }

    fn on_time(&self) -> usize {
        self.in_the_air.values().filter(|flight| flight.overdue != Moment::NEVER).count()
    }
}

fn no_answer<T>(location: &str, sent: Moment, passenger: &Passenger<T>) -> Error {
    let within = passenger.give_up.since(sent);
    Error::new(passenger.silence, format!("{location} did not answer within {within:?}"))
}

/// The lease that an operation is about: after that its answer is of no use.
fn lease(op: &Op) -> Option<Duration> {
    match op {
        Op::Acquire { attempt, .. } | Op::Check(attempt) | Op::Leave(attempt) => Some(attempt.ttl),
        Op::Renew(grant) | Op::Release(grant) => Some(grant.award.ttl),
        Op::ReadCell(_) | Op::WriteCell { .. } | Op::Break { .. } => None,
    }
}

fn silence(op: &Op) -> ErrorKind {
    match op {
        Op::ReadCell(_) => ErrorKind::Unreachable,
        _ => ErrorKind::OutcomeUnknown,
    }
}
