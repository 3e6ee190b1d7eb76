//! The state of an attempt without an outcome: when it sends, retries and checks, and whether it continues after a failure.

use std::sync::Arc;
use std::time::Duration;

use super::RequestKind;
use super::held::renewal_due;
use crate::backend::{OnBusy, Op};
use crate::clock::Moment;
use crate::error::{Error, ErrorKind};
use crate::grant::{Attempt, Grant, LostReason};
use crate::token::Owner;

/// The number of sends of an acquire whose outcome is unknown.
const MAX_SENDS: u32 = 3;

/// The longest backoff before an acquire with an unknown outcome is retried; a twelfth of its ttl if that is shorter.
const UNKNOWN_OUTCOME_BACKOFF: Duration = Duration::from_millis(2500);

/// The longest backoff before an acquire is retried after a transient error; a twelfth of its ttl if that is shorter.
const TRANSIENT_BACKOFF: Duration = Duration::from_secs(1);

/// The outcome of an attempt.
#[derive(Debug)]
pub enum AcquireOutcome {
    /// The lock is held.
    Granted {
        /// The grant.
        grant: Grant,
        /// When it expires unless it is renewed.
        valid_until: Moment,
        /// When it ends even if it is renewed.
        hold_until: Moment,
    },
    /// The lock is not free, and the attempt does not wait.
    Busy,
    /// The wait ended first.
    WaitTimeout,
    /// It failed.
    Failed(Error),
}

#[derive(Debug)]
pub(super) struct Acquiring<C> {
    /// The receiver of the outcome; none for a ticket that is only undone.
    pub(super) caller: Option<C>,
    /// When the caller's wait ends.
    pub(super) until: Moment,
    /// The owner by which the caller refers to the attempt, if it is another one now.
    pub(super) caller_owner: Option<Owner>,
    pub(super) max_hold: Option<Duration>,
    pub(super) on_busy: OnBusy,
    pub(super) stage: Stage,
    /// When to send the next acquire or check; never while it is in flight.
    pub(super) send_at: Moment,
    /// How often it was sent under this owner, without the sends that were not applied.
    sends: u32,
    /// It was retried under a new owner.
    is_retried: bool,
    /// The error after which it is retried. It is the outcome if the wait ends first.
    pub(super) retried_error: Option<Error>,
    /// A push has asked for a check, while a request was in flight whose reply may be older.
    check_requested: bool,
    /// A push has reported its grant as lost, and when. The reply with that grant may still be in flight.
    pub(super) reported_lost: Option<(Moment, LostReason)>,
}

#[derive(Clone, Copy, Debug)]
pub(super) enum Stage {
    /// An acquire was sent then.
    Requested { sent: Moment },
    /// In the queue; the latest heartbeat with the reply "still waiting" was sent then.
    Queued { confirmed: Moment },
}

impl<C> Acquiring<C> {
    pub(super) fn new(
        on_busy: OnBusy,
        until: Moment,
        max_hold: Option<Duration>,
        caller: C,
        now: Moment,
    ) -> Self {
        let acquiring = Self::without_caller(Stage::Requested { sent: now }, now);
        Self { caller: Some(caller), until, max_hold, on_busy, ..acquiring }
    }

    pub(super) fn without_caller(stage: Stage, now: Moment) -> Self {
        Self {
            caller: None,
            until: Moment::NEVER,
            caller_owner: None,
            max_hold: None,
            on_busy: OnBusy::Return,
            stage,
            send_at: now,
            sends: 0,
            is_retried: false,
            retried_error: None,
            check_requested: false,
            reported_lost: None,
        }
    }

    /// Returns the same attempt, to be requested under a new owner after the old one has got its outcome.
    pub(super) fn restarted(self, old_owner: Owner, now: Moment) -> Self {
        Self {
            caller_owner: self.caller_owner.or(Some(old_owner)),
            stage: Stage::Requested { sent: now },
            send_at: now,
            sends: 0,
            is_retried: true,
            check_requested: false,
            reported_lost: None,
            ..self
        }
    }

    pub(super) fn is_queued(&self) -> bool {
        matches!(self.stage, Stage::Queued { .. })
    }

    /// Records that the acquire was sent.
    pub(super) fn mark_sent(&mut self, now: Moment) {
        if let Stage::Requested { sent } = &mut self.stage {
            *sent = now;
        }
    }

    pub(super) fn make_due(&mut self, now: Moment) {
        if self.send_at == Moment::NEVER {
            self.check_requested = true;
        } else {
            self.send_at = self.send_at.min(now);
        }
    }

    pub(super) fn take_due(&mut self, attempt: Arc<Attempt>, now: Moment) -> (RequestKind, Op) {
        self.send_at = Moment::NEVER;
        match self.stage {
            Stage::Queued { .. } => (RequestKind::Check, Op::Check(attempt)),
            Stage::Requested { .. } => {
                self.stage = Stage::Requested { sent: now };
                self.sends += 1;
                (RequestKind::Acquire, Op::Acquire { attempt, on_busy: self.on_busy })
            }
        }
    }

    /// Records that the ticket was alive when a request was sent at `sent`. The next check is due at a third of its ttl, after
    /// `check_after`, or at once if a push has asked for it.
    pub(super) fn confirm(&mut self, sent: Moment, ttl: Duration, check_after: Duration, now: Moment) {
        let confirmed = match self.stage {
            Stage::Queued { confirmed } => confirmed.max(sent),
            Stage::Requested { .. } => sent,
        };
        self.stage = Stage::Queued { confirmed };
        self.retried_error = None;
        let check_after =
            if std::mem::take(&mut self.check_requested) { Duration::ZERO } else { check_after };
        self.send_at = renewal_due(confirmed, ttl).min(now + check_after);
    }

    /// Records a failed acquire. Returns `None` if it is retried, and the error if it is not.
    pub(super) fn failed(&mut self, error: Error, ttl: Duration, now: Moment) -> Option<Error> {
        let is_unknown = error.kind() == ErrorKind::OutcomeUnknown;
        // An earlier send may have reached the backend, and have a ticket: an outage does not end it.
        let may_have_ticket = self.is_retried || self.sends > 1;
        let is_outage = may_have_ticket && error.kind() == ErrorKind::Unreachable;
        let waits = self.on_busy == OnBusy::Wait && self.caller.is_some();
        if is_unknown && self.caller.is_some() && self.sends < MAX_SENDS {
            self.send_at = now + (ttl / 12).min(UNKNOWN_OUTCOME_BACKOFF);
            None
        } else if !is_unknown && waits && (error.is_transient() || is_outage) {
            // It was not applied, and does not count.
            self.sends -= 1;
            self.retried_error = Some(error);
            self.send_at = now + (ttl / 12).min(TRANSIENT_BACKOFF);
            None
        } else {
            Some(error)
        }
    }
}
