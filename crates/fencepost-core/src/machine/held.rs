//! A grant that is held: renewed at a third of its ttl, lost at its deadline. A renewal without an answer is repeated after
//! a sixth of the ttl, a failed one after a twelfth. The machine alone decides that a grant is lost.

use std::sync::Arc;
use std::time::Duration;

use super::entry::{Entry, Phase};
use super::{Machine, Output};
use crate::backend::Reply;
use crate::clock::{Moment, valid_until};
use crate::error::{Error, Result};
use crate::grant::{Attempt, Award, Grant, LostReason};
use crate::token::Owner;

/// How a renewal went.
#[derive(Debug)]
pub enum RenewalOutcome {
    /// The lease is valid until then.
    Done(Moment),
    /// The storage says that the lock is not held.
    NotHeld,
    /// There was no verdict.
    Failed(Error),
    /// There is no answer yet, and it is sent again.
    Unanswered,
}

#[derive(Debug)]
pub(super) struct Held {
    pub(super) award: Award,
    /// The ttl that the storage gave last.
    pub(super) ttl: Duration,
    /// The lease is known to have run from this moment on.
    pub(super) counted_from: Moment,
    /// When it must end although it could be renewed.
    hold_until: Moment,
    /// When to send the next renewal.
    pub(super) renew_at: Moment,
    /// A renewal was sent and is not answered.
    pub(super) is_renewing: bool,
    /// Why it is not held any more.
    pub(super) lost: Option<LostReason>,
}

/// Returns when a lease that was confirmed at `sent` should be renewed.
pub(super) fn renewal(sent: Moment, ttl: Duration) -> Moment {
    sent + ttl / 3
}

impl Held {
    pub(super) fn new(award: Award, counted_from: Moment, hold_until: Moment) -> Self {
        Self {
            award,
            ttl: award.ttl,
            counted_from,
            hold_until,
            renew_at: renewal(counted_from, award.ttl),
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
    pub(super) fn lose(&mut self, why: LostReason) -> bool {
        self.renew_at = Moment::NEVER;
        self.lost.replace(why).is_none()
    }

    pub(super) fn take_due(&mut self, attempt: Arc<Attempt>, now: Moment) -> Grant {
        self.renew_at = now + self.ttl / 6;
        self.is_renewing = true;
        Grant { attempt, award: self.award }
    }

    fn renewed(&mut self, sent: Moment, ttl: Duration) {
        // Of two answers the one that was sent later counts, whichever arrives first.
        if sent >= self.counted_from {
            self.counted_from = sent;
            self.ttl = ttl;
            self.renew_at = renewal(sent, ttl);
        }
    }
}

impl<C, T> Machine<C, T> {
    pub(super) fn renew_answered(&mut self, owner: Owner, sent: Moment, reply: Result<Reply>, now: Moment) {
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

    /// The deadline has come: no renewal succeeded in time, or it was held for as long as it may be.
    pub(super) fn lease_is_over(&mut self, owner: Owner, now: Moment) {
        let lost = self.entries.change(owner, |entry| {
            let Phase::Held(held) = &mut entry.phase else { return None };
            let why = if now >= held.hold_until { LostReason::MaxHold } else { LostReason::Expired };
            held.lose(why);
            Some((why, held.award))
        });
        if let Some(Some((why, award))) = lost {
            self.outputs.push(Output::Lost(owner, why));
            if why == LostReason::MaxHold {
                self.give_back(owner, award, None, now);
            }
        }
    }

    pub(super) fn forfeit(&mut self, owner: Owner) {
        self.entries.change(owner, |entry| match &mut entry.phase {
            Phase::Held(held) => held.lose(LostReason::Expired),
            _ => false,
        });
    }

    pub(super) fn release(&mut self, owner: Owner, lost: Option<LostReason>, told: Option<T>, now: Moment) {
        let Some(Entry { attempt, phase: Phase::Held(Held { award, .. }), .. }) = self.entries.get(owner)
        else {
            return self.tell(told, Err(Error::closed()));
        };
        let award = *award;
        let Some(why) = lost else {
            return self.give_back(owner, award, told, now);
        };
        let error = Error::lost(&attempt.describe(), why);
        self.tell(told, Err(error));
        // Unless the storage has said that there is nothing to give back.
        if matches!(why, LostReason::NotHeld | LostReason::Broken) {
            self.over(owner, now);
        } else {
            self.give_back(owner, award, None, now);
        }
    }

    pub(super) fn tell(&mut self, told: Option<T>, outcome: Result<()>) {
        self.outputs.extend(told.map(|told| Output::Released(told, outcome)));
    }
}
