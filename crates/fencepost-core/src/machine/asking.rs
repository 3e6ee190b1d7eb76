//! Attempts, from the first request to the verdict: asked for, asked for again, waiting in line, given up.

use std::sync::Arc;
use std::time::Duration;

use super::entry::{Entry, Phase};
use super::held::Held;
use super::leaving::Leaving;
use super::releasing::Releasing;
use super::wanted::{Stage, Verdict, Wanted};
use super::{Machine, Output};
use crate::backend::{OnBusy, Reply};
use crate::clock::{Moment, valid_until};
use crate::error::{Error, ErrorKind, Result};
use crate::grant::{Attempt, Award, Grant, LostReason};
use crate::token::Owner;

impl<C, T> Machine<C, T> {
    pub(super) fn acquire(&mut self, attempt: Arc<Attempt>, wanted: Wanted<C>, now: Moment) {
        if self.is_closing {
            let verdict = Verdict::Failed(Error::closed());
            self.outputs.extend(wanted.caller.map(|caller| Output::Verdict(caller, verdict)));
            return;
        }
        let owner = attempt.owner;
        self.entries.insert(owner, Entry::new(attempt, Phase::Wanted(wanted)));
        self.send_what_is_due(owner, now);
    }

    /// The caller has gone; what was asked for is undone.
    pub(super) fn abandon(&mut self, known_as: Owner, now: Moment) {
        let owner = self.renamed.get(&known_as).copied().unwrap_or(known_as);
        self.dismiss(owner, now);
    }

    /// Tells the caller this verdict now, and undoes what was asked for.
    pub(super) fn refuse(&mut self, owner: Owner, verdict: Verdict, now: Moment) {
        let caller = self.dismiss(owner, now);
        self.outputs.extend(caller.map(|caller| Output::Verdict(caller, verdict)));
    }

    pub(super) fn wait_is_over(&mut self, owner: Owner, now: Moment) {
        let refusal = self.change_wanted(owner, |wanted, _| wanted.refusal.take()).flatten();
        self.refuse(owner, refusal.map_or(Verdict::WaitTimeout, Verdict::Failed), now);
    }

    /// Scenario 65: a storage that was set back, for example restored from a snapshot, may still have a ticket of which this
    /// client knows nothing. Left alone, the lock would stay idle until that lease ends. It is checked, and then left or given
    /// back.
    pub(super) fn adopt_unknown(&mut self, attempt: &Arc<Attempt>, now: Moment) {
        if !self.knows(attempt.owner) {
            let wanted = Wanted::without_caller(Stage::Queued { confirmed: now }, now);
            self.entries.insert(attempt.owner, Entry::new(attempt.clone(), Phase::Wanted(wanted)));
        }
    }

    /// The storage has pushed a grant.
    pub(super) fn handed_over(&mut self, owner: Owner, award: Award, now: Moment) {
        self.entries.change(owner, |entry| match &entry.phase {
            // Another grant than the one that is being released: the storage had a second ticket of this owner.
            Phase::Releasing(releasing) if releasing.award.token != award.token => entry.is_doubtful = true,
            _ => {}
        });
        let Some((wanted, entry)) = self.get_wanted(owner) else { return };
        // This owner may have been granted before its newest request was sent, by one that was thought lost, or may even have
        // lost that grant again: a push proves nothing then, and the storage is asked.
        if entry.is_doubtful {
            return self.turn(owner, now);
        }
        // The grant came after the newest request that did not know of it yet.
        let (Stage::Asking { sent: counted_from } | Stage::Queued { confirmed: counted_from }) = wanted.stage;
        self.granted(owner, award, counted_from, now);
    }

    /// The storage has pushed that it may be this owner's turn. The answer to a request in flight may have been given before:
    /// then it is checked after that.
    pub(super) fn turn(&mut self, owner: Owner, now: Moment) {
        self.change_wanted(owner, |wanted, _| wanted.hurry(now));
        self.send_what_is_due(owner, now);
    }

    pub(super) fn acquire_answered(&mut self, owner: Owner, sent: Moment, reply: Result<Reply>, now: Moment) {
        let Some((wanted, entry)) = self.get_wanted(owner) else { return };
        match reply {
            Ok(Reply::Granted(award)) => self.granted(owner, award, sent, now),
            Ok(Reply::Waiting { check_after }) => self.still_waiting(owner, sent, check_after, now),
            // An attempt that joins the line is busy only if it meets its own tombstone.
            Ok(_) if entry.is_doubtful && wanted.on_busy == OnBusy::Wait && wanted.caller.is_some() => {
                self.ask_again_as_new(owner, None, now);
            }
            Ok(_) => self.end(owner, Verdict::Busy, now),
            Err(error) => {
                let is_unknown = error.kind() == ErrorKind::OutcomeUnknown;
                let error = error.context(format_args!("could not acquire {}", entry.attempt.describe()));
                self.entries.change(owner, |entry| entry.is_doubtful |= is_unknown);
                let failed =
                    self.change_wanted(owner, |wanted, ttl| wanted.failed(error, ttl, now)).flatten();
                if let Some(error) = failed {
                    self.end(owner, Verdict::Failed(error), now);
                }
            }
        }
    }

    pub(super) fn check_answered(&mut self, owner: Owner, sent: Moment, reply: Result<Reply>, now: Moment) {
        let Some((wanted, _)) = self.get_wanted(owner) else { return };
        let is_awaited = wanted.caller.is_some();
        match reply {
            Ok(Reply::Granted(award)) => self.granted(owner, award, sent, now),
            Ok(Reply::Waiting { check_after }) => self.still_waiting(owner, sent, check_after, now),
            Ok(_) if is_awaited => self.ask_again_as_new(owner, None, now),
            Ok(_) => self.over(owner, now),
            Err(_) if !is_awaited => self.leave(owner, now),
            // Away for a while: the place is kept, and checked again.
            Err(error) if matches!(error.kind(), ErrorKind::Unreachable | ErrorKind::OutcomeUnknown) => {
                self.change_wanted(owner, |wanted, ttl| wanted.send_at = now + ttl / 12);
            }
            Err(error) => self.refuse(owner, Verdict::Failed(error), now),
        }
    }

    fn still_waiting(&mut self, owner: Owner, sent: Moment, check_after: Duration, now: Moment) {
        let is_awaited = self.change_wanted(owner, |wanted, ttl| {
            wanted.confirm(sent, ttl, check_after, now);
            wanted.caller.is_some()
        });
        if is_awaited == Some(false) {
            self.leave(owner, now);
        }
    }

    fn granted(&mut self, owner: Owner, award: Award, sent: Moment, now: Moment) {
        let Some((wanted, entry)) = self.get_wanted(owner) else { return };
        // What was sent after a push knows better.
        let gone = wanted.gone.filter(|(heard, _)| sent <= *heard).map(|(_, why)| why);
        let counted_from = sent - award.elapsed;
        if wanted.caller.is_none() {
            self.give_back(owner, award, None, now);
        } else if gone.is_none() && valid_until(counted_from, award.ttl) > now {
            self.hold(owner, award, counted_from, now);
        } else if wanted.on_busy == OnBusy::Wait {
            // It was broken before this client knew of it, or this process was stopped for longer than the lease: the grant is
            // given back and never shown.
            self.ask_again_as_new(owner, Some(award), now);
        } else {
            let late = Error::lost(&entry.attempt.describe(), gone.unwrap_or(LostReason::Expired));
            let caller = self.take_caller(owner);
            self.give_back(owner, award, None, now);
            self.outputs.extend(caller.map(|caller| Output::Verdict(caller, Verdict::Failed(late))));
        }
    }

    fn hold(&mut self, owner: Owner, award: Award, counted_from: Moment, now: Moment) {
        let caller = self.take_caller(owner);
        let verdict = self.entries.change(owner, |entry| {
            let Phase::Wanted(wanted) = &entry.phase else { return None };
            let hold_until = wanted.max_hold.map_or(Moment::NEVER, |max_hold| now + max_hold);
            let held = Held::new(award, counted_from, hold_until);
            let valid_until = held.ends();
            entry.phase = Phase::Held(held);
            let grant = Grant { attempt: entry.attempt.clone(), award };
            Some(Verdict::Granted { grant, valid_until, hold_until })
        });
        if let (Some(caller), Some(Some(verdict))) = (caller, verdict) {
            self.outputs.push(Output::Verdict(caller, verdict));
        }
        self.send_what_is_due(owner, now);
    }

    /// Ends an attempt that holds nothing, as far as is known.
    fn end(&mut self, owner: Owner, verdict: Verdict, now: Moment) {
        let caller = self.take_caller(owner);
        self.over(owner, now);
        self.outputs.extend(caller.map(|caller| Output::Verdict(caller, verdict)));
    }

    /// The caller goes; what was asked for is undone if need be.
    fn dismiss(&mut self, owner: Owner, now: Moment) -> Option<C> {
        let caller = self.take_caller(owner);
        let (wanted, entry) = self.get_wanted(owner)?;
        if wanted.is_queued() {
            self.leave(owner, now);
        } else if entry.in_flight.is_none() {
            self.over(owner, now);
        }
        // Otherwise the answer to the acquire in flight decides what there is to undo.
        caller
    }

    fn take_caller(&mut self, owner: Owner) -> Option<C> {
        let (caller, known_as) = self.change_wanted(owner, |wanted, _| {
            wanted.until = Moment::NEVER;
            (wanted.caller.take(), wanted.known_as.take())
        })?;
        known_as.and_then(|known_as| self.renamed.remove(&known_as));
        caller
    }

    /// Asks again under a new owner, after a verdict on the old one. What that was awarded is given back.
    fn ask_again_as_new(&mut self, owner: Owner, awarded: Option<Award>, now: Moment) {
        let Some(Entry { attempt, phase: Phase::Wanted(wanted), in_flight, is_doubtful }) =
            self.entries.remove(owner)
        else {
            return;
        };
        let new = Arc::new(attempt.with_new_owner());
        let undone = match awarded {
            Some(award) => Some(Phase::Releasing(Releasing::new(award, None, now))),
            None => is_doubtful.then(|| Phase::Leaving(Leaving::new(attempt.ttl, true, now))),
        };
        if let Some(phase) = undone {
            self.entries.insert(owner, Entry { attempt, phase, in_flight, is_doubtful });
            self.send_what_is_due(owner, now);
        }
        let wanted = wanted.again(owner, now);
        self.renamed.extend(wanted.known_as.map(|known_as| (known_as, new.owner)));
        self.acquire(new, wanted, now);
    }

    fn get_wanted(&self, owner: Owner) -> Option<(&Wanted<C>, &Entry<C, T>)> {
        let entry = self.entries.get(owner)?;
        match &entry.phase {
            Phase::Wanted(wanted) => Some((wanted, entry)),
            _ => None,
        }
    }

    /// Changes a wanted attempt, given the length of its lease.
    fn change_wanted<R>(
        &mut self,
        owner: Owner,
        act: impl FnOnce(&mut Wanted<C>, Duration) -> R,
    ) -> Option<R> {
        let act = |entry: &mut Entry<C, T>| match &mut entry.phase {
            Phase::Wanted(wanted) => Some(act(wanted, entry.attempt.ttl)),
            _ => None,
        };
        self.entries.change(owner, act).flatten()
    }
}
