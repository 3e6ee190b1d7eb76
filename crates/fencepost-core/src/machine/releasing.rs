//! Releases: sent until there is a verdict, or until the lease has ended by itself.

use std::sync::Arc;

use super::Machine;
use super::entry::Phase;
use crate::backend::Reply;
use crate::clock::Moment;
use crate::error::{Error, ErrorKind, Result};
use crate::grant::{Attempt, Award, Grant, LostReason};
use crate::token::Owner;

#[derive(Debug)]
pub(super) struct Releasing<T> {
    pub(super) award: Award,
    /// What waits for the outcome.
    told: Option<T>,
    /// After this the lease has ended by itself.
    give_up: Moment,
    /// A send of it may have taken effect unnoticed.
    is_unknown: bool,
    /// When to send it; never while it is in flight.
    pub(super) again: Moment,
}

impl<T> Releasing<T> {
    pub(super) fn new(award: Award, told: Option<T>, now: Moment) -> Self {
        Self { award, told, give_up: now + award.ttl, is_unknown: false, again: now }
    }

    pub(super) fn take_due(&mut self, attempt: Arc<Attempt>) -> Grant {
        self.again = Moment::NEVER;
        Grant { attempt, award: self.award }
    }

    /// Returns how the release went; `None` if it is to be repeated.
    fn outcome(&mut self, attempt: &Attempt, reply: Result<Reply>, now: Moment) -> Option<Result<()>> {
        Some(match reply {
            Ok(Reply::NotHeld) if self.is_unknown => Err(Error::new(
                ErrorKind::OutcomeUnknown,
                format!("the release of {} was sent twice and the second found it gone", attempt.describe()),
            )),
            Ok(Reply::NotHeld) => Err(Error::lost(&attempt.describe(), LostReason::NotHeld)),
            Ok(_) => Ok(()),
            Err(error) => {
                let again = now + self.award.ttl / 12;
                let is_retryable = matches!(error.kind(), ErrorKind::Unreachable | ErrorKind::OutcomeUnknown);
                if is_retryable && again < self.give_up {
                    self.is_unknown |= error.kind() == ErrorKind::OutcomeUnknown;
                    self.again = again;
                    return None;
                }
                Err(error.context(format_args!("could not release {}", attempt.describe())))
            }
        })
    }
}

impl<C, T> Machine<C, T> {
    /// Begins to release what was awarded to this owner.
    pub(super) fn give_back(&mut self, owner: Owner, award: Award, told: Option<T>, now: Moment) {
        self.entries.change(owner, |entry| entry.phase = Phase::Releasing(Releasing::new(award, told, now)));
        self.send_what_is_due(owner, now);
    }

    pub(super) fn release_answered(&mut self, owner: Owner, reply: Result<Reply>, now: Moment) {
        let ended = self.entries.change(owner, |entry| match &mut entry.phase {
            Phase::Releasing(releasing) => {
                let outcome = releasing.outcome(&entry.attempt, reply, now)?;
                Some((releasing.told.take(), outcome))
            }
            _ => None,
        });
        if let Some(Some((told, outcome))) = ended {
            self.tell(told, outcome);
            self.over(owner, now);
        }
    }
}
