//! A grant that is held: renewed at a third of its ttl, lost at its deadline. An unanswered renewal is repeated after a sixth
//! of the ttl, a failed one after a twelfth. Only the machine decides that a grant is lost.

use std::sync::Arc;
use std::time::Duration;

use super::entry::{Entry, Phase};
use super::{Machine, Output};
use crate::backend::Reply;
use crate::clock::{Moment, valid_until};
use crate::error::{Error, Result};
use crate::grant::{Attempt, Award, Grant, LostReason};
use crate::token::Owner;

/// The outcome of a renewal.
#[derive(Debug)]
pub enum RenewalOutcome {
    /// The lease is valid until then.
    Done(Moment),
    /// The backend reports that the lock is not held.
    NotHeld,
    /// It failed.
    Failed(Error),
    /// There is no reply yet, and it is sent again.
    Unanswered,
}

#[derive(Debug)]
pub(super) struct Held {
    pub(super) award: Award,
    /// The ttl of the latest renewal.
    pub(super) ttl: Duration,
    /// When the latest successful renewal was sent: the lease counts from here.
    pub(super) counted_from: Moment,
    /// When it ends even if it is renewed.
    hold_until: Moment,
    /// When to send the next renewal.
    pub(super) renew_at: Moment,
    /// A renewal is unanswered.
    pub(super) is_renewing: bool,
    /// Why it was lost.
    pub(super) lost: Option<LostReason>,
}

/// Returns when a lease that was confirmed at `sent` should be renewed.
pub(super) fn renewal_due(sent: Moment, ttl: Duration) -> Moment {
    sent + ttl / 3
}

impl Held {
    pub(super) fn new(award: Award, counted_from: Moment, hold_until: Moment) -> Self {
        Self {
            award,
            ttl: award.ttl,
            counted_from,
            hold_until,
            renew_at: renewal_due(counted_from, award.ttl),
            is_renewing: false,
            lost: None,
        }
    }

    /// Returns when the grant is lost unless it is renewed before.
    pub(super) fn ends(&self) -> Moment {
        match self.lost {
            None => valid_until(self.counted_from, self.ttl).min(self.hold_until),
            Some(_) => Moment::NEVER,
        }
    }

    /// Marks the grant as lost; false if it was already.
    pub(super) fn lose(&mut self, reason: LostReason) -> bool {
        self.renew_at = Moment::NEVER;
        self.lost.replace(reason).is_none()
    }

    pub(super) fn begin_renewal(&mut self, attempt: Arc<Attempt>, now: Moment) -> Grant {
        self.renew_at = now + self.ttl / 6;
        self.is_renewing = true;
        Grant { attempt, award: self.award }
    }

    fn renewed(&mut self, sent: Moment, ttl: Duration) {
        // Of two replies the one whose request was sent later counts, whichever arrives first.
        if sent >= self.counted_from {
            self.counted_from = sent;
            self.ttl = ttl;
            self.renew_at = renewal_due(sent, ttl);
        }
    }
}

impl<C, T> Machine<C, T> {
    pub(super) fn on_renew_reply(&mut self, owner: Owner, sent: Moment, reply: Result<Reply>, now: Moment) {
        let outcome = self.entries.change(owner, |entry| {
            let Phase::Held(held) = &mut entry.phase else { return None };
            held.is_renewing = false;
            if held.lost.is_some() {
                return None;
            }
            Some(match reply {
                Ok(Reply::Renewed { ttl }) => {
                    held.renewed(sent, ttl);
                    RenewalOutcome::Done(held.ends())
                }
                Ok(_) => {
                    held.lose(LostReason::NotHeld);
                    RenewalOutcome::NotHeld
                }
                Err(error) => {
                    held.renew_at = now + held.ttl / 12;
                    RenewalOutcome::Failed(error)
                }
            })
        });
        let Some(Some(outcome)) = outcome else { return };
        let is_lost = matches!(outcome, RenewalOutcome::NotHeld);
        self.outputs.push(Output::Renewal(owner, outcome));
        if is_lost {
            self.outputs.push(Output::Lost(owner, LostReason::NotHeld));
        }
    }

    /// The deadline has passed: no renewal succeeded in time, or `max_hold` is reached.
    pub(super) fn on_lease_end(&mut self, owner: Owner, now: Moment) {
        let lost = self.entries.change(owner, |entry| {
            let Phase::Held(held) = &mut entry.phase else { return None };
            let reason = if now >= held.hold_until { LostReason::MaxHold } else { LostReason::Expired };
            held.lose(reason);
            Some((reason, held.award))
        });
        if let Some(Some((reason, award))) = lost {
            self.outputs.push(Output::Lost(owner, reason));
            if reason == LostReason::MaxHold {
                self.release_award(owner, award, None, now);
            }
        }
    }

    pub(super) fn forfeit(&mut self, owner: Owner) {
        self.entries.change(owner, |entry| match &mut entry.phase {
            Phase::Held(held) => held.lose(LostReason::Expired),
            _ => false,
        });
    }

    pub(super) fn release(
        &mut self,
        owner: Owner,
        lost: Option<LostReason>,
        responder: Option<T>,
        now: Moment,
    ) {
        let Some(Entry { attempt, phase: Phase::Held(Held { award, .. }), .. }) = self.entries.get(owner)
        else {
            return self.respond(responder, Err(Error::closed()));
        };
        let award = *award;
        let Some(reason) = lost else {
            return self.release_award(owner, award, responder, now);
        };
        let error = Error::lost(&attempt.describe(), reason);
        self.respond(responder, Err(error));
        // Unless the backend has reported that there is nothing to release.
        if matches!(reason, LostReason::NotHeld | LostReason::Broken) {
            self.remove_or_undo(owner, now);
        } else {
            self.release_award(owner, award, None, now);
        }
    }

    pub(super) fn respond(&mut self, responder: Option<T>, outcome: Result<()>) {
        self.outputs.extend(responder.map(|responder| Output::Released(responder, outcome)));
    }
}
