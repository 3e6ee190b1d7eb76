//! What the machine knows about one owner.

use std::sync::Arc;
use std::time::Duration;

use super::Asked;
use super::held::Held;
use super::leaving::Leaving;
use super::releasing::Releasing;
use super::wanted::Wanted;
use crate::backend::Op;
use crate::clock::Moment;
use crate::delay_queue::Due;
use crate::grant::Attempt;

#[derive(Debug)]
pub(super) struct Entry<C, T> {
    pub(super) attempt: Arc<Attempt>,
    pub(super) phase: Phase<C, T>,
    /// The newest request about this owner that is not answered, renewals apart.
    pub(super) in_flight: Option<Asked>,
    /// A send of its acquire may still take effect.
    pub(super) is_doubtful: bool,
}

#[derive(Debug)]
pub(super) enum Phase<C, T> {
    /// Asked for, or waiting in line.
    Wanted(Wanted<C>),
    Held(Held),
    Releasing(Releasing<T>),
    /// Whatever of it may be in the storage is undone.
    Leaving(Leaving),
}

impl<C, T> Entry<C, T> {
    pub(super) fn new(attempt: Arc<Attempt>, phase: Phase<C, T>) -> Self {
        Self { attempt, phase, in_flight: None, is_doubtful: false }
    }

    /// Returns whether this is a grant that is lost and only waits for its guard to go.
    pub(super) fn is_lost(&self) -> bool {
        matches!(&self.phase, Phase::Held(held) if held.lost.is_some())
    }

    /// Returns whether a renewal is not answered.
    pub(super) fn is_renewing(&self) -> bool {
        matches!(&self.phase, Phase::Held(held) if held.is_renewing)
    }

    /// Returns how much earlier than necessary a lease may be renewed to leave together with others.
    pub(super) fn slack(&self) -> Duration {
        if self.deadline() <= self.request_at() { Duration::ZERO } else { self.early() }
    }

    fn early(&self) -> Duration {
        match &self.phase {
            Phase::Held(held) => held.ttl / 12,
            Phase::Wanted(wanted) if wanted.is_queued() => self.attempt.ttl / 12,
            _ => Duration::ZERO,
        }
    }

    /// Makes due at once what would be sent later, or asks again after the answer to what is in flight.
    pub(super) fn hurry(&mut self, now: Moment) {
        match &mut self.phase {
            // An acquire that failed keeps its pause: the storage may not be back for good.
            Phase::Wanted(wanted) if wanted.is_queued() => wanted.hurry(now),
            Phase::Wanted(_) => {}
            Phase::Held(held) if held.lost.is_some() => {}
            Phase::Held(held) => held.renew_at = held.renew_at.min(now),
            Phase::Releasing(Releasing { again, .. }) | Phase::Leaving(Leaving { again, .. }) => {
                if *again != Moment::NEVER {
                    *again = now;
                }
            }
        }
    }

    /// Returns the request that is due by then and marks it as sent now. Only a client that closes does not wait for the
    /// answer to another request about the same owner.
    pub(super) fn take_due(&mut self, by: Moment, now: Moment, is_closing: bool) -> Option<(Asked, Op)> {
        let is_due = self.wants_to_send_at() <= by && self.deadline() > now;
        let is_renewal = matches!(self.phase, Phase::Held(_));
        if !is_due || (self.in_flight.is_some() && !is_renewal && !is_closing) {
            return None;
        }
        let attempt = self.attempt.clone();
        let (asked, op) = match &mut self.phase {
            Phase::Wanted(wanted) => wanted.take_due(attempt, now),
            Phase::Held(held) => (Asked::Renew, Op::Renew(held.take_due(attempt, now))),
            Phase::Releasing(releasing) => (Asked::Release, Op::Release(releasing.take_due(attempt))),
            Phase::Leaving(leaving) => {
                leaving.again = Moment::NEVER;
                (Asked::Leave, Op::Leave(attempt))
            }
        };
        if !is_renewal {
            self.in_flight = Some(asked);
        }
        Some((asked, op))
    }

    fn wants_to_send_at(&self) -> Moment {
        match &self.phase {
            Phase::Wanted(wanted) => wanted.send_at,
            Phase::Held(held) => held.renew_at,
            Phase::Releasing(releasing) => releasing.again,
            Phase::Leaving(leaving) => leaving.again,
        }
    }

    /// Returns when the next request can leave, as far as that is known.
    fn request_at(&self) -> Moment {
        let waits_for_an_answer = self.in_flight.is_some() && !matches!(self.phase, Phase::Held(_));
        if waits_for_an_answer { Moment::NEVER } else { self.wants_to_send_at() }
    }

    /// Returns when something ends although it could be kept.
    fn deadline(&self) -> Moment {
        match &self.phase {
            Phase::Wanted(wanted) => wanted.until,
            Phase::Held(held) => held.ends(),
            Phase::Releasing(_) | Phase::Leaving(_) => Moment::NEVER,
        }
    }
}

impl<C, T> Due for Entry<C, T> {
    fn due(&self) -> Moment {
        self.request_at().min(self.deadline())
    }
}
