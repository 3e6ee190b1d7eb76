//! What is known of an attempt that has no verdict: when it asks, asks again, checks, and whether it goes on after a failure.

use std::sync::Arc;
use std::time::Duration;

use super::Asked;
use super::held::renewal;
use crate::backend::{OnBusy, Op};
use crate::clock::Moment;
use crate::error::{Error, ErrorKind};
use crate::grant::{Attempt, Grant, LostReason};
use crate::token::Owner;

/// How often a request whose outcome is unknown is sent in all.
const SENDS: u32 = 3;

/// After an unknown outcome an acquire is repeated after a twelfth of its ttl, but not later than this.
const ASK_AGAIN: Duration = Duration::from_millis(2500);

/// After a refusal for the time being an acquire is repeated after a twelfth of its ttl, but not later than this.
const TRY_AGAIN: Duration = Duration::from_secs(1);

/// How an attempt ended.
#[derive(Debug)]
pub enum Verdict {
    /// The lock is held.
    Granted {
        /// What is held.
        grant: Grant,
        /// Until when it is valid unless it is renewed.
        valid_until: Moment,
        /// When it ends although it could be renewed.
        hold_until: Moment,
    },
    /// The lock is not free, and the attempt was not to wait.
    Busy,
    /// It did not come to its turn in time.
    WaitTimeout,
    /// It failed.
    Failed(Error),
}

#[derive(Debug)]
pub(super) struct Wanted<C> {
    /// What waits for the verdict; none for a ticket that is only undone.
    pub(super) caller: Option<C>,
    /// Until when the caller waits.
    pub(super) until: Moment,
    /// The owner by which the caller knows its attempt, if that is another one now.
    pub(super) known_as: Option<Owner>,
    pub(super) max_hold: Option<Duration>,
    pub(super) on_busy: OnBusy,
    pub(super) stage: Stage,
    /// When to send the next acquire or check; never while it is in flight.
    pub(super) send_at: Moment,
    sends: u32,
    /// It has waited before, and asks again: a storage that is away for a moment does not end that.
    has_waited: bool,
    /// Why the storage refuses for the time being, if it does.
    pub(super) refusal: Option<Error>,
    /// A push said that it is worth a check; the answer in flight may have been given before.
    is_hurried: bool,
    /// A push said that its grant is gone, and when. The answer that grants it may still be in flight.
    pub(super) gone: Option<(Moment, LostReason)>,
}

#[derive(Clone, Copy, Debug)]
pub(super) enum Stage {
    /// Asked for by an acquire that was sent then.
    Asking { sent: Moment },
    /// In line; the newest heartbeat that was answered with "still waiting" was sent then.
    Queued { confirmed: Moment },
}

impl<C> Wanted<C> {
    pub(super) fn new(
        on_busy: OnBusy,
        until: Moment,
        max_hold: Option<Duration>,
        caller: C,
        now: Moment,
    ) -> Self {
        let wanted = Self::without_caller(Stage::Asking { sent: now }, now);
        Self { caller: Some(caller), until, max_hold, on_busy, ..wanted }
    }

    pub(super) fn without_caller(stage: Stage, now: Moment) -> Self {
        Self {
            caller: None,
            until: Moment::NEVER,
            known_as: None,
            max_hold: None,
            on_busy: OnBusy::Return,
            stage,
            send_at: now,
            sends: 0,
            has_waited: false,
            refusal: None,
            is_hurried: false,
            gone: None,
        }
    }

    /// The same attempt, to be asked for under a new owner after a verdict on the one before.
    pub(super) fn again(self, was: Owner, now: Moment) -> Self {
        Self {
            known_as: self.known_as.or(Some(was)),
            stage: Stage::Asking { sent: now },
            send_at: now,
            sends: 0,
            has_waited: true,
            is_hurried: false,
            gone: None,
            ..self
        }
    }

    pub(super) fn is_queued(&self) -> bool {
        matches!(self.stage, Stage::Queued { .. })
    }

    /// The acquire has left.
    pub(super) fn left(&mut self, now: Moment) {
        if let Stage::Asking { sent } = &mut self.stage {
            *sent = now;
        }
    }

    pub(super) fn hurry(&mut self, now: Moment) {
        if self.send_at == Moment::NEVER {
            self.is_hurried = true;
        } else {
            self.send_at = self.send_at.min(now);
        }
    }

    pub(super) fn take_due(&mut self, attempt: Arc<Attempt>, now: Moment) -> (Asked, Op) {
        self.send_at = Moment::NEVER;
        match self.stage {
            Stage::Queued { .. } => (Asked::Check, Op::Check(attempt)),
            Stage::Asking { .. } => {
                self.stage = Stage::Asking { sent: now };
                self.sends += 1;
                (Asked::Acquire, Op::Acquire { attempt, on_busy: self.on_busy })
            }
        }
    }

    /// The ticket was alive when a request left at `sent`. It is checked at a third of its ttl, when its turn may have come, or
    /// at once if a push asked for it.
    pub(super) fn confirm(&mut self, sent: Moment, ttl: Duration, check_after: Duration, now: Moment) {
        let confirmed = match self.stage {
            Stage::Queued { confirmed } => confirmed.max(sent),
            Stage::Asking { .. } => sent,
        };
        self.stage = Stage::Queued { confirmed };
        self.refusal = None;
        let check_after = if std::mem::take(&mut self.is_hurried) { Duration::ZERO } else { check_after };
        self.send_at = renewal(confirmed, ttl).min(now + check_after);
    }

    /// The acquire has failed. Returns nothing if it is sent again, and the error if that was the end of it.
    pub(super) fn failed(&mut self, error: Error, ttl: Duration, now: Moment) -> Option<Error> {
        let is_unknown = error.kind() == ErrorKind::OutcomeUnknown;
        let is_away = self.has_waited && error.kind() == ErrorKind::Unreachable;
        let is_patient = self.on_busy == OnBusy::Wait && self.caller.is_some();
        if is_unknown && self.caller.is_some() && self.sends < SENDS {
            self.send_at = now + (ttl / 12).min(ASK_AGAIN);
            None
        } else if !is_unknown && is_patient && (error.is_transient() || is_away) {
            // It had no effect, and does not count.
            self.sends -= 1;
            self.refusal = Some(error);
            self.send_at = now + (ttl / 12).min(TRY_AGAIN);
            None
        } else {
            Some(error)
        }
    }
}
