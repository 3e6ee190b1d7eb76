//! Releases: sent until there is an outcome, or until the lease has expired.

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
    /// The receiver of the outcome.
    responder: Option<T>,
    /// When the lease has expired.
    give_up: Moment,
    /// A send of it may have been applied without a reply.
    outcome_unknown: bool,
    /// When to send it; never while it is in flight.
    pub(super) send_at: Moment,
}

impl<T> Releasing<T> {
    pub(super) fn new(award: Award, responder: Option<T>, now: Moment) -> Self {
        Self { award, responder, give_up: now + award.ttl, outcome_unknown: false, send_at: now }
    }

    pub(super) fn begin_release(&mut self, attempt: Arc<Attempt>) -> Grant {
        self.send_at = Moment::NEVER;
        Grant { attempt, award: self.award }
    }

    /// Returns the outcome of the release; `None` if it is retried.
    fn outcome(&mut self, attempt: &Attempt, reply: Result<Reply>, now: Moment) -> Option<Result<()>> {
        Some(match reply {
            Ok(Reply::NotHeld) if self.outcome_unknown => Err(Error::new(
                ErrorKind::OutcomeUnknown,
                format!(
                    "the release of {} was sent twice, and the second send found it not held",
                    attempt.describe()
                ),
            )),
            Ok(Reply::NotHeld) => Err(Error::lost(&attempt.describe(), LostReason::NotHeld)),
            Ok(_) => Ok(()),
            Err(error) => {
                let send_at = now + self.award.ttl / 12;
                let is_retryable = matches!(error.kind(), ErrorKind::Unreachable | ErrorKind::OutcomeUnknown);
                if is_retryable && send_at < self.give_up {
                    self.outcome_unknown |= error.kind() == ErrorKind::OutcomeUnknown;
                    self.send_at = send_at;
                    return None;
                }
                Err(error.context(format_args!("could not release {}", attempt.describe())))
            }
        })
    }
}

impl<C, T> Machine<C, T> {
    /// Starts to release the award of this owner.
    pub(super) fn release_award(&mut self, owner: Owner, award: Award, responder: Option<T>, now: Moment) {
        self.entries
            .change(owner, |entry| entry.phase = Phase::Releasing(Releasing::new(award, responder, now)));
        self.send_due(owner, now);
    }

    pub(super) fn on_release_reply(&mut self, owner: Owner, reply: Result<Reply>, now: Moment) {
        let ended = self.entries.change(owner, |entry| match &mut entry.phase {
            Phase::Releasing(releasing) => {
                let outcome = releasing.outcome(&entry.attempt, reply, now)?;
                Some((releasing.responder.take(), outcome))
            }
            _ => None,
        });
        if let Some(Some((responder, outcome))) = ended {
            self.respond(responder, outcome);
            self.remove_or_undo(owner, now);
        }
    }
}
