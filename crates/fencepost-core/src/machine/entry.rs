//! The state of one owner.

use std::sync::Arc;
use std::time::Duration;

use super::RequestKind;
use super::acquiring::Acquiring;
use super::held::Held;
use super::leaving::Leaving;
use super::releasing::Releasing;
use crate::backend::Op;
use crate::clock::Moment;
use crate::delay_queue::Due;
use crate::grant::Attempt;

#[derive(Debug)]
pub(super) struct Entry<C, T> {
    pub(super) attempt: Arc<Attempt>,
    pub(super) phase: Phase<C, T>,
    /// The latest request of this owner that is unanswered, renewals excepted.
    pub(super) in_flight: Option<RequestKind>,
    /// A send of its acquire may still be applied.
    pub(super) outcome_unknown: bool,
}

#[derive(Debug)]
pub(super) enum Phase<C, T> {
    /// Requested, or in the queue.
    Acquiring(Acquiring<C>),
    Held(Held),
    Releasing(Releasing<T>),
    /// Its ticket or grant, if any, is undone.
    Leaving(Leaving),
}

impl<C, T> Entry<C, T> {
    pub(super) fn new(attempt: Arc<Attempt>, phase: Phase<C, T>) -> Self {
        Self { attempt, phase, in_flight: None, outcome_unknown: false }
    }

    /// Returns whether this is a lost grant whose guard has not been dropped yet.
    pub(super) fn is_lost(&self) -> bool {
        matches!(&self.phase, Phase::Held(held) if held.lost.is_some())
    }

    /// Returns whether a renewal is unanswered.
    pub(super) fn is_renewing(&self) -> bool {
        matches!(&self.phase, Phase::Held(held) if held.is_renewing)
    }

    /// Returns how much earlier than necessary a lease may be renewed to share a batch with others.
    pub(super) fn slack(&self) -> Duration {
        if self.deadline() <= self.next_send_at() { Duration::ZERO } else { self.renewal_slack() }
    }

    fn renewal_slack(&self) -> Duration {
        match &self.phase {
            Phase::Held(held) => held.ttl / 12,
            Phase::Acquiring(acquiring) if acquiring.is_queued() => self.attempt.ttl / 12,
            _ => Duration::ZERO,
        }
    }

    /// Makes the next request due now, or right after the reply to the one in flight.
    pub(super) fn make_due(&mut self, now: Moment) {
        match &mut self.phase {
            // A failed acquire keeps its backoff: the backend may fail again at once.
            Phase::Acquiring(acquiring) if acquiring.is_queued() => acquiring.make_due(now),
            Phase::Acquiring(_) => {}
            Phase::Held(held) if held.lost.is_some() => {}
            Phase::Held(held) => held.renew_at = held.renew_at.min(now),
            Phase::Releasing(Releasing { send_at, .. }) | Phase::Leaving(Leaving { send_at, .. }) => {
                if *send_at != Moment::NEVER {
                    *send_at = now;
                }
            }
        }
    }

    /// Returns the request that is due by then and marks it as sent now. Only a client that closes does not wait for the
    /// reply to another request of the same owner.
    pub(super) fn take_due(
        &mut self,
        by: Moment,
        now: Moment,
        is_closing: bool,
    ) -> Option<(RequestKind, Op)> {
        let is_due = self.send_at() <= by && self.deadline() > now;
        let is_renewal = matches!(self.phase, Phase::Held(_));
        if !is_due || (self.in_flight.is_some() && !is_renewal && !is_closing) {
            return None;
        }
        let attempt = self.attempt.clone();
        let (kind, op) = match &mut self.phase {
            Phase::Acquiring(acquiring) => acquiring.take_due(attempt, now),
            Phase::Held(held) => (RequestKind::Renew, Op::Renew(held.begin_renewal(attempt, now))),
            Phase::Releasing(releasing) => {
                (RequestKind::Release, Op::Release(releasing.begin_release(attempt)))
            }
            Phase::Leaving(leaving) => {
                leaving.send_at = Moment::NEVER;
                (RequestKind::Leave, Op::Leave(attempt))
            }
        };
        if !is_renewal {
            self.in_flight = Some(kind);
        }
        Some((kind, op))
    }

    fn send_at(&self) -> Moment {
        match &self.phase {
            Phase::Acquiring(acquiring) => acquiring.send_at,
            Phase::Held(held) => held.renew_at,
            Phase::Releasing(releasing) => releasing.send_at,
            Phase::Leaving(leaving) => leaving.send_at,
        }
    }

    /// Returns when the next request can be sent, as far as that is known.
    fn next_send_at(&self) -> Moment {
        let is_blocked = self.in_flight.is_some() && !matches!(self.phase, Phase::Held(_));
        if is_blocked { Moment::NEVER } else { self.send_at() }
    }

    /// Returns when the wait or the lease ends.
    fn deadline(&self) -> Moment {
        match &self.phase {
            Phase::Acquiring(acquiring) => acquiring.until,
            Phase::Held(held) => held.ends(),
            Phase::Releasing(_) | Phase::Leaving(_) => Moment::NEVER,
        }
    }
}

impl<C, T> Due for Entry<C, T> {
    fn due(&self) -> Moment {
        self.next_send_at().min(self.deadline())
    }
}
