//! Natural batching: while flights are in the air, further operations gather and leave together. No timer is involved,
//! and nothing waits when nothing is in the air.
//!
//! A flight that is not answered in time is given up as a whole: its future is dropped before any of its operations is
//! answered with "outcome unknown", so a backend never executes a resend beside its first send.

mod sharing;

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::{AbortHandle, Abortable, BoxFuture};
use futures_util::stream::{FuturesUnordered, StreamExt};

use crate::backend::{Backend, Op, Reply};
use crate::clock::Moment;
use crate::error::{Error, ErrorKind, Result};
use crate::op::request_timeout;
use crate::options::Options;

/// A flight is not given up before this, however short a lease in it is: the others in it may have taken effect.
const SHORTEST: Duration = Duration::from_millis(500);

struct Flight<T> {
    passengers: Vec<Passenger<T>>,
    sent: Moment,
    /// After this it no longer keeps others from leaving.
    overdue: Moment,
    /// After this its answers are of no use.
    give_up: Moment,
    abort: AbortHandle,
}

struct Passenger<T> {
    tag: T,
    /// The kind of error if there is no answer.
    silence: ErrorKind,
}

/// The number of a flight, and its answers.
type Arrival = (u64, Option<Vec<Result<Reply>>>);

/// A flight that has ended: when it was sent, and the answer to each operation with its tag.
pub(crate) struct Landed<T> {
    pub(crate) sent: Moment,
    pub(crate) replies: Vec<(T, Result<Reply>)>,
}

/// Operations that wait to leave, and flights in the air. `T` says what an answer belongs to.
pub(crate) struct Flights<T> {
    backend: Arc<dyn Backend>,
    at_once: usize,
    batch: usize,
    may_share: Option<fn(&Op, &Op) -> bool>,
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
            may_share: info.may_share,
            deadline,
            location: info.location,
            outbox: VecDeque::new(),
            in_the_air: HashMap::new(),
            next_number: 0,
            last_wave: 0,
            journeys: FuturesUnordered::new(),
        }
    }

    /// Adds an operation to those that wait to leave.
    pub(crate) fn push(&mut self, op: Op, tag: T) {
        self.outbox.push_back((op, tag));
    }

    /// Returns whether nothing waits to leave and nothing is in the air.
    pub(crate) fn is_empty(&self) -> bool {
        self.outbox.is_empty() && self.in_the_air.is_empty()
    }

    /// Returns how many operations left together the last time.
    pub(crate) fn last_wave(&self) -> usize {
        self.last_wave
    }

    /// Sends what has gathered, if there is room, and calls `leaving` with the tag of each operation that leaves.
    pub(crate) fn depart(&mut self, now: Moment, mut leaving: impl FnMut(&T)) {
        if !self.outbox.is_empty() {
            self.last_wave = self.outbox.len();
        }
        while !self.outbox.is_empty() && self.on_time() < self.at_once {
            let boarding = self.board();
            let mut ops = Vec::with_capacity(boarding.len());
            let mut passengers = Vec::with_capacity(boarding.len());
            let (mut patience, mut lease) = (Duration::MAX, self.deadline);
            for (op, tag) in boarding {
                leaving(&tag);
                patience = patience.min(self.patience(&op));
                lease = lease.min(op.ttl().unwrap_or(self.deadline));
                passengers.push(Passenger { tag, silence: silence(&op) });
                ops.push(op);
            }
            let (abort, registration) = AbortHandle::new_pair();
            let number = self.next_number;
            self.next_number += 1;
            // However long its leases are: others wait on the ground, and their time has a limit too.
            let overdue = now + lease.min(Options::DEFAULT_DEADLINE) / 6;
            let flight = Flight { passengers, sent: now, overdue, give_up: now + patience, abort };
            self.in_the_air.insert(number, flight);
            let backend = self.backend.clone();
            let journey = Abortable::new(async move { backend.execute(ops).await }, registration);
            self.journeys.push(Box::pin(async move { (number, journey.await.ok()) }));
        }
    }

    /// Takes what the next flight carries out of the outbox.
    fn board(&mut self) -> Vec<(Op, T)> {
        let Some(may_share) = self.may_share else {
            return self.outbox.drain(..self.outbox.len().min(self.batch)).collect();
        };
        let selected = sharing::select(self.outbox.iter().map(|(op, _)| op), self.batch, may_share);
        let rest = self.outbox.split_off(selected.len());
        let mut boarding = Vec::with_capacity(selected.len());
        let mut left_behind = VecDeque::with_capacity(rest.len());
        for (passenger, is_selected) in self.outbox.drain(..).zip(selected) {
            if is_selected {
                boarding.push(passenger);
            } else {
                left_behind.push_back(passenger);
            }
        }
        left_behind.extend(rest);
        self.outbox = left_behind;
        boarding
    }

    /// Returns the next flight that lands; never, if none is in the air.
    ///
    /// # Cancel safety
    /// Dropping the future loses nothing.
    pub(crate) async fn landed(&mut self) -> Landed<T> {
        loop {
            let Some((number, replies)) = self.journeys.next().await else {
                return std::future::pending().await;
            };
            if let Some(flight) = self.in_the_air.remove(&number) {
                return self.answered(flight, replies.unwrap_or_default());
            }
        }
    }

    fn answered(&self, flight: Flight<T>, replies: Vec<Result<Reply>>) -> Landed<T> {
        let Flight { passengers, sent, give_up, .. } = flight;
        let mut replies = replies.into_iter();
        let answer = |Passenger { tag, silence }| {
            let no_answer = || {
                let within = give_up.since(sent);
                Err(Error::new(silence, format!("{} did not answer within {within:?}", self.location)))
            };
            (tag, replies.next().unwrap_or_else(no_answer))
        };
        Landed { sent, replies: passengers.into_iter().map(answer).collect() }
    }

    /// Returns when to call [`Flights::tend`] next.
    pub(crate) fn next(&self) -> Moment {
        let next = self.in_the_air.values().map(|flight| flight.overdue.min(flight.give_up)).min();
        next.unwrap_or(Moment::NEVER)
    }

    /// Lets others leave although a flight is late, and gives up those that are too late.
    pub(crate) fn tend(&mut self, now: Moment) -> Vec<Landed<T>> {
        for flight in self.in_the_air.values_mut().filter(|flight| flight.overdue <= now) {
            flight.overdue = Moment::NEVER;
        }
        let late = self.in_the_air.iter().filter(|(_, flight)| flight.give_up <= now);
        let late: Vec<u64> = late.map(|(number, _)| *number).collect();
        let given_up = late.into_iter().filter_map(|number| self.in_the_air.remove(&number));
        let given_up: Vec<Flight<T>> = given_up.inspect(|flight| flight.abort.abort()).collect();
        given_up.into_iter().map(|flight| self.answered(flight, Vec::new())).collect()
    }

    fn on_time(&self) -> usize {
        self.in_the_air.values().filter(|flight| flight.overdue != Moment::NEVER).count()
    }

    /// Returns how long the answer to an operation is waited for. It is of no use after the lease; but others about the same
    /// owner wait for it, so it is given up when a backend had time to give up on one server and ask another, and a check while
    /// there is time for another one.
    fn patience(&self, op: &Op) -> Duration {
        let Some(ttl) = op.ttl() else { return self.deadline };
        let patience = match op {
            Op::Renew(_) => ttl,
            Op::Check(_) => ttl / 3,
            _ => ttl.min(request_timeout(ttl) * 2),
        };
        patience.max(SHORTEST)
    }
}

fn silence(op: &Op) -> ErrorKind {
    match op {
        Op::ReadCell(_) => ErrorKind::Unreachable,
        _ => ErrorKind::OutcomeUnknown,
    }
}
