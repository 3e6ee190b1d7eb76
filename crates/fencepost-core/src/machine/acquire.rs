//! Attempts, from the first request to the outcome: sent, retried, queued, abandoned.

use std::sync::Arc;
use std::time::Duration;

use super::acquiring::{AcquireOutcome, Acquiring, Stage};
use super::entry::{Entry, Phase};
use super::held::Held;
use super::leaving::Leaving;
use super::releasing::Releasing;
use super::{Machine, Output};
use crate::backend::{OnBusy, Reply};
use crate::clock::{Moment, valid_until};
use crate::error::{Error, ErrorKind, Result};
use crate::grant::{Attempt, Award, Grant, LostReason};
use crate::token::Owner;

impl<C, T> Machine<C, T> {
    pub(super) fn acquire(&mut self, attempt: Arc<Attempt>, acquiring: Acquiring<C>, now: Moment) {
        if self.is_closing {
            let outcome = AcquireOutcome::Failed(Error::closed());
            self.outputs.extend(acquiring.caller.map(|caller| Output::Outcome(caller, outcome)));
            return;
        }
        let owner = attempt.owner;
        self.entries.insert(owner, Entry::new(attempt, Phase::Acquiring(acquiring)));
        self.send_due(owner, now);
    }

    /// The caller was dropped: undoes the attempt.
    pub(super) fn abandon(&mut self, caller_owner: Owner, now: Moment) {
        let owner = self.current_owners.get(&caller_owner).copied().unwrap_or(caller_owner);
        self.detach_caller(owner, now);
    }

    /// Reports this outcome now, and undoes the attempt.
    pub(super) fn finish_and_undo(&mut self, owner: Owner, outcome: AcquireOutcome, now: Moment) {
        let caller = self.detach_caller(owner, now);
        self.outputs.extend(caller.map(|caller| Output::Outcome(caller, outcome)));
    }

    pub(super) fn on_wait_timeout(&mut self, owner: Owner, now: Moment) {
        let retried_error =
            self.change_acquiring(owner, |acquiring, _| acquiring.retried_error.take()).flatten();
        self.finish_and_undo(
            owner,
            retried_error.map_or(AcquireOutcome::WaitTimeout, AcquireOutcome::Failed),
            now,
        );
    }

    /// Scenario 65: a backend that was set back, for example restored from a snapshot, may have a ticket that this client does
    /// not know. The lock would stay idle until that lease ends, so the ticket is checked, and then removed or its grant
    /// released.
    pub(super) fn adopt_unknown(&mut self, attempt: &Arc<Attempt>, now: Moment) {
        if !self.contains(attempt.owner) {
            let acquiring = Acquiring::without_caller(Stage::Queued { confirmed: now }, now);
            self.entries.insert(attempt.owner, Entry::new(attempt.clone(), Phase::Acquiring(acquiring)));
        }
    }

    /// The backend has pushed a grant.
    pub(super) fn on_pushed_grant(&mut self, owner: Owner, award: Award, now: Moment) {
        self.entries.change(owner, |entry| match &entry.phase {
            // Another grant than the one that is being released: the backend had a second ticket of this owner.
            Phase::Releasing(releasing) if releasing.award.token != award.token => {
                entry.outcome_unknown = true;
            }
            _ => {}
        });
        let Some((acquiring, entry)) = self.get_acquiring(owner) else { return };
        // An earlier send whose outcome is unknown may have been granted, and that grant may even have been lost again: a push
        // proves nothing then, and a check is sent.
        if entry.outcome_unknown {
            return self.check_now(owner, now);
        }
        // The grant is later than the latest request without it.
        let (Stage::Requested { sent: counted_from } | Stage::Queued { confirmed: counted_from }) =
            acquiring.stage;
        self.on_granted(owner, award, counted_from, now);
    }

    /// The backend has pushed that a check is worthwhile. The reply to a request in flight may be older: then the check is sent
    /// after it.
    pub(super) fn check_now(&mut self, owner: Owner, now: Moment) {
        self.change_acquiring(owner, |acquiring, _| acquiring.make_due(now));
        self.send_due(owner, now);
    }

    pub(super) fn on_acquire_reply(&mut self, owner: Owner, sent: Moment, reply: Result<Reply>, now: Moment) {
        let Some((acquiring, entry)) = self.get_acquiring(owner) else { return };
        match reply {
            Ok(Reply::Granted(award)) => self.on_granted(owner, award, sent, now),
            Ok(Reply::Waiting { check_after }) => self.on_waiting(owner, sent, check_after, now),
            // An attempt that waits gets this reply only if it meets its own tombstone.
            Ok(_)
                if entry.outcome_unknown
                    && acquiring.on_busy == OnBusy::Wait
                    && acquiring.caller.is_some() =>
            {
                self.retry_as_new_owner(owner, None, now);
            }
            Ok(_) => self.finish(owner, AcquireOutcome::Busy, now),
            Err(error) => {
                let is_unknown = error.kind() == ErrorKind::OutcomeUnknown;
                let error = error.context(format_args!("could not acquire {}", entry.attempt.describe()));
                self.entries.change(owner, |entry| entry.outcome_unknown |= is_unknown);
                let failed = self
                    .change_acquiring(owner, |acquiring, ttl| acquiring.failed(error, ttl, now))
                    .flatten();
                if let Some(error) = failed {
                    self.finish(owner, AcquireOutcome::Failed(error), now);
                }
            }
        }
    }

    pub(super) fn on_check_reply(&mut self, owner: Owner, sent: Moment, reply: Result<Reply>, now: Moment) {
        let Some((acquiring, _)) = self.get_acquiring(owner) else { return };
        let is_awaited = acquiring.caller.is_some();
        match reply {
            Ok(Reply::Granted(award)) => self.on_granted(owner, award, sent, now),
            Ok(Reply::Waiting { check_after }) => self.on_waiting(owner, sent, check_after, now),
            Ok(_) if is_awaited => self.retry_as_new_owner(owner, None, now),
            Ok(_) => self.remove_or_undo(owner, now),
            Err(_) if !is_awaited => self.leave(owner, now),
            // Unreachable for a while: the ticket is kept, and checked again.
            Err(error) if matches!(error.kind(), ErrorKind::Unreachable | ErrorKind::OutcomeUnknown) => {
                self.change_acquiring(owner, |acquiring, ttl| acquiring.send_at = now + ttl / 12);
            }
            Err(error) => self.finish_and_undo(owner, AcquireOutcome::Failed(error), now),
        }
    }

    fn on_waiting(&mut self, owner: Owner, sent: Moment, check_after: Duration, now: Moment) {
        let is_awaited = self.change_acquiring(owner, |acquiring, ttl| {
            acquiring.confirm(sent, ttl, check_after, now);
            acquiring.caller.is_some()
        });
        if is_awaited == Some(false) {
            self.leave(owner, now);
        }
    }

    fn on_granted(&mut self, owner: Owner, award: Award, sent: Moment, now: Moment) {
        let Some((acquiring, entry)) = self.get_acquiring(owner) else { return };
        // The reply to a request that was sent after the push counts more than the push.
        let lost = acquiring.reported_lost.filter(|(pushed, _)| sent <= *pushed).map(|(_, reason)| reason);
        let counted_from = sent - award.elapsed;
        if acquiring.caller.is_none() {
            self.release_award(owner, award, None, now);
        } else if lost.is_none() && valid_until(counted_from, award.ttl) > now {
            self.hold(owner, award, counted_from, now);
        } else if acquiring.on_busy == OnBusy::Wait {
            // It was broken before this client knew of it, or this process was stopped for longer than the lease: the grant is
            // released and never shown.
            self.retry_as_new_owner(owner, Some(award), now);
        } else {
            let late = Error::lost(&entry.attempt.describe(), lost.unwrap_or(LostReason::Expired));
            let caller = self.take_caller(owner);
            self.release_award(owner, award, None, now);
            self.outputs.extend(caller.map(|caller| Output::Outcome(caller, AcquireOutcome::Failed(late))));
        }
    }

    fn hold(&mut self, owner: Owner, award: Award, counted_from: Moment, now: Moment) {
        let caller = self.take_caller(owner);
        let outcome = self.entries.change(owner, |entry| {
            let Phase::Acquiring(acquiring) = &entry.phase else { return None };
            let hold_until = acquiring.max_hold.map_or(Moment::NEVER, |max_hold| now + max_hold);
            let held = Held::new(award, counted_from, hold_until);
            let valid_until = held.ends();
            entry.phase = Phase::Held(held);
            let grant = Grant { attempt: entry.attempt.clone(), award };
            Some(AcquireOutcome::Granted { grant, valid_until, hold_until })
        });
        if let (Some(caller), Some(Some(outcome))) = (caller, outcome) {
            self.outputs.push(Output::Outcome(caller, outcome));
        }
        self.send_due(owner, now);
    }

    /// Ends an attempt that holds nothing, as far as is known.
    fn finish(&mut self, owner: Owner, outcome: AcquireOutcome, now: Moment) {
        let caller = self.take_caller(owner);
        self.remove_or_undo(owner, now);
        self.outputs.extend(caller.map(|caller| Output::Outcome(caller, outcome)));
    }

    /// Takes the caller out, and undoes the attempt if necessary.
    fn detach_caller(&mut self, owner: Owner, now: Moment) -> Option<C> {
        let caller = self.take_caller(owner);
        let (acquiring, entry) = self.get_acquiring(owner)?;
        if acquiring.is_queued() {
            self.leave(owner, now);
        } else if entry.in_flight.is_none() {
            self.remove_or_undo(owner, now);
        }
        // Otherwise the reply to the acquire in flight decides what has to be undone.
        caller
    }

    fn take_caller(&mut self, owner: Owner) -> Option<C> {
        let (caller, caller_owner) = self.change_acquiring(owner, |acquiring, _| {
            acquiring.until = Moment::NEVER;
            (acquiring.caller.take(), acquiring.caller_owner.take())
        })?;
        caller_owner.and_then(|caller_owner| self.current_owners.remove(&caller_owner));
        caller
    }

    /// Retries under a new owner, after the old one has got its outcome; an award of the old one is released.
    fn retry_as_new_owner(&mut self, owner: Owner, awarded: Option<Award>, now: Moment) {
        let Some(Entry { attempt, phase: Phase::Acquiring(acquiring), in_flight, outcome_unknown }) =
            self.entries.remove(owner)
        else {
            return;
        };
        let new = Arc::new(attempt.with_new_owner());
        let undone = match awarded {
            Some(award) => Some(Phase::Releasing(Releasing::new(award, None, now))),
            None => outcome_unknown.then(|| Phase::Leaving(Leaving::new(attempt.ttl, true, now))),
        };
        if let Some(phase) = undone {
            self.entries.insert(owner, Entry { attempt, phase, in_flight, outcome_unknown });
            self.send_due(owner, now);
        }
        let acquiring = acquiring.restarted(owner, now);
        self.current_owners.extend(acquiring.caller_owner.map(|caller_owner| (caller_owner, new.owner)));
        self.acquire(new, acquiring, now);
    }

    fn get_acquiring(&self, owner: Owner) -> Option<(&Acquiring<C>, &Entry<C, T>)> {
        let entry = self.entries.get(owner)?;
        match &entry.phase {
            Phase::Acquiring(acquiring) => Some((acquiring, entry)),
            _ => None,
        }
    }

    /// Changes an attempt in the acquiring phase, given its ttl.
    fn change_acquiring<R>(
        &mut self,
        owner: Owner,
        act: impl FnOnce(&mut Acquiring<C>, Duration) -> R,
    ) -> Option<R> {
        let act = |entry: &mut Entry<C, T>| match &mut entry.phase {
            Phase::Acquiring(acquiring) => Some(act(acquiring, entry.attempt.ttl)),
            _ => None,
        };
        self.entries.change(owner, act).flatten()
    }
}
