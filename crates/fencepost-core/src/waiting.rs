//! The waiting line: every attempt from its first request to its verdict, and the undoing of those whose caller has
//! gone. A state machine without I/O: it is told what happened and says what to do.
//!
//! `C` is whoever waits for the verdict; the machine hands it back with [`Action::Finish`] and never looks inside.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use crate::backend::{Queue, Reply};
use crate::clock::{Moment, valid_until};
use crate::diary::{Diary, Due};
use crate::error::{Error, ErrorKind, Result};
use crate::grant::{Attempt, Award, Grant, LostReason};
use crate::token::Owner;

/// How often a request whose outcome is unknown is sent in all.
const SENDS: u32 = 3;

/// For how many ttls an undo is tried: a ticket that cannot be given up may be granted at the end of its lease, and that
/// grant has a lease too.
const UNDO_FOR: u32 = 2;

/// After a refusal for the time being an attempt is repeated after a twelfth of its ttl, but not later than this.
const TRY_AGAIN: Duration = Duration::from_secs(1);

/// The ids of callers' attempts are smaller.
const FIRST_UNDO: AttemptId = 1 << 63;

/// Names one attempt of this client, whatever owner it has just now.
pub type AttemptId = u64;

/// What the engine is to do.
#[derive(Debug)]
pub enum Action<C> {
    /// Send [`crate::backend::Op::Acquire`].
    Ask(AttemptId, Arc<Attempt>, Queue),
    /// Send [`crate::backend::Op::Leave`].
    Leave(AttemptId, Arc<Attempt>),
    /// Release what was granted although nobody wants it any more.
    GiveBack(Grant),
    /// Keep this ticket, which was alive at the moment given; look again after the duration given.
    KeepTicket(Arc<Attempt>, Moment, Duration),
    /// Stop keeping this ticket.
    DropTicket(Owner),
    /// Tell the caller.
    Finish(C, Verdict),
}

/// How an attempt ended.
#[derive(Debug)]
pub enum Verdict {
    /// The lock is held.
    Granted {
        /// What is held.
        grant: Grant,
        /// The lease is known to have run from this moment on.
        counted_from: Moment,
    },
    /// Somebody else has it, and the attempt was not to wait.
    Busy,
    /// It did not come to its turn in time.
    WaitedOut,
    /// It failed.
    Failed(Error),
}

/// Which request an answer belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Asked {
    /// The acquire.
    Ask,
    /// The heartbeat of the ticket.
    Check,
    /// The leaving.
    Leave,
}

#[derive(Clone, Copy, Debug)]
enum Phase {
    /// The acquire is under way, sent then.
    Asking { sent: Moment },
    /// The outcome of an acquire is unknown, or it was refused for the time being; it is sent again later.
    AskAgain,
    /// In line; the newest heartbeat that was answered with "still waiting" was sent then.
    Queued { confirmed: Moment },
    /// The leaving is under way.
    Leaving,
    /// A leaving failed; it is sent again later.
    LeaveAgain,
}

#[derive(Debug)]
struct Entry<C> {
    attempt: Arc<Attempt>,
    queue: Queue,
    /// Until when the caller waits.
    until: Moment,
    caller: Option<C>,
    phase: Phase,
    sends: u32,
    /// A send may have had its effect without our knowing.
    unknown: bool,
    /// It has waited before, and asks again: a storage that is away for a moment does not end that.
    has_waited: bool,
    /// Why the storage refuses for the time being, if it does.
    refusal: Option<Error>,
    /// A push said that it is worth a look; the answer under way may have been given before.
    hurry: bool,
    /// A push said that its grant is gone, and when that was heard. The answer that grants it may still be under way.
    gone: Option<(Moment, LostReason)>,
    /// When to send again, in the phases that do.
    again: Moment,
    /// When an undo is no longer needed: whatever it would undo has ended by itself.
    give_up: Moment,
}

impl<C> Entry<C> {
    /// An attempt for which no caller waits: it is only undone.
    fn without_caller(attempt: Arc<Attempt>, phase: Phase, give_up: Moment) -> Self {
        Self {
            attempt,
            queue: Queue::Never,
            until: Moment::NEVER,
            caller: None,
            phase,
            sends: 0,
            unknown: false,
            has_waited: false,
            refusal: None,
            hurry: false,
            gone: None,
            again: Moment::NEVER,
            give_up,
        }
    }
}

impl<C> Due for Entry<C> {
    fn due(&self) -> Moment {
        let until = if self.caller.is_some() { self.until } else { Moment::NEVER };
        match self.phase {
            Phase::AskAgain => self.again.min(until),
            Phase::LeaveAgain => self.again,
            Phase::Asking { .. } | Phase::Queued { .. } => until,
            Phase::Leaving => Moment::NEVER,
        }
    }
}

/// The attempts of a client that are not over.
#[derive(Debug)]
pub struct Waiting<C> {
    entries: Diary<AttemptId, Entry<C>>,
    by_owner: HashMap<Owner, AttemptId>,
    /// Owners that hold a grant, and of which a send may still arrive.
    doubtful: HashSet<Owner>,
    /// Undos of attempts that go on under another owner have ids of their own.
    next_undo: AttemptId,
}

impl<C> Default for Waiting<C> {
    fn default() -> Self {
        Self {
            entries: Diary::default(),
            by_owner: HashMap::new(),
            doubtful: HashSet::new(),
            next_undo: FIRST_UNDO,
        }
    }
}

impl<C> Waiting<C> {
    /// Begins an attempt.
    pub fn start(
        &mut self,
        id: AttemptId,
        attempt: Arc<Attempt>,
        queue: Queue,
        until: Moment,
        caller: C,
        now: Moment,
    ) -> Action<C> {
        let ask = Action::Ask(id, attempt.clone(), queue);
        let entry = Entry::without_caller(attempt, Phase::Asking { sent: now }, Moment::NEVER);
        self.insert(id, Entry { queue, until, caller: Some(caller), sends: 1, ..entry });
        ask
    }

    /// The request that was to be sent by [`Action::Ask`] has left just now.
    pub fn sent(&mut self, id: AttemptId, now: Moment) {
        self.entries.change(id, |entry| {
            if let Phase::Asking { sent } = &mut entry.phase {
                *sent = now;
            }
        });
    }

    /// The attempt that waits under this owner.
    pub fn find(&self, owner: Owner) -> Option<(AttemptId, &Arc<Attempt>)> {
        let id = *self.by_owner.get(&owner)?;
        Some((id, &self.entries.get(id)?.attempt))
    }

    /// Whether every attempt is over and undone.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// The attempts that somebody still waits for.
    pub fn awaited(&self) -> Vec<AttemptId> {
        self.entries.iter().filter(|(_, entry)| entry.caller.is_some()).map(|(id, _)| id).collect()
    }

    /// The storage has answered a request that was sent at `sent`.
    pub fn replied(
        &mut self,
        id: AttemptId,
        owner: Owner,
        asked: Asked,
        sent: Moment,
        reply: Result<Reply>,
        now: Moment,
    ) -> Vec<Action<C>> {
        let Some(entry) = self.entries.get(id) else {
            return Vec::new();
        };
        if entry.attempt.owner != owner {
            return Vec::new();
        }
        match (entry.phase, asked) {
            (Phase::Asking { .. }, Asked::Ask) => self.ask_answered(id, sent, reply, now),
            (Phase::Queued { .. }, Asked::Check) => self.check_answered(id, sent, reply, now),
            (Phase::Leaving, Asked::Leave) => self.leave_answered(id, reply, now),
            // Overtaken: for example a check that was under way when the line was left. The leaving tells the truth.
            _ => Vec::new(),
        }
    }

    /// The storage has pushed a grant.
    pub fn handed_over(&mut self, owner: Owner, award: Award, now: Moment) -> Vec<Action<C>> {
        let Some(id) = self.by_owner.get(&owner).copied() else {
            return Vec::new();
        };
        let Some(entry) = self.entries.get(id) else {
            return Vec::new();
        };
        match entry.phase {
            // This owner may have been granted before its newest request was sent, by one that was thought lost, or
            // may even have lost that grant again: a push proves nothing then, and the storage is asked.
            Phase::Queued { confirmed } if entry.unknown => {
                vec![Action::KeepTicket(entry.attempt.clone(), confirmed, Duration::ZERO)]
            }
            Phase::Asking { .. } if entry.unknown => {
                self.turn(owner);
                Vec::new()
            }
            // The grant came after the newest request that did not know of it yet.
            Phase::Asking { sent: counted_from } | Phase::Queued { confirmed: counted_from } => {
                self.granted(id, award, counted_from, now)
            }
            Phase::AskAgain | Phase::Leaving | Phase::LeaveAgain => Vec::new(),
        }
    }

    /// Takes over a ticket that the storage keeps for this client and that has no caller: it is looked at, and then left
    /// or given back.
    pub fn adopt(&mut self, attempt: Arc<Attempt>, now: Moment) -> Action<C> {
        let id = self.next_undo;
        self.next_undo += 1;
        let keep = Action::KeepTicket(attempt.clone(), now, Duration::ZERO);
        let give_up = now + attempt.ttl * UNDO_FOR;
        self.insert(id, Entry::without_caller(attempt, Phase::Queued { confirmed: now }, give_up));
        keep
    }

    /// The storage has pushed that it may be this owner's turn. If its acquire is not answered yet, the ticket is looked at
    /// as soon as there is one.
    pub fn turn(&mut self, owner: Owner) {
        if let Some(id) = self.by_owner.get(&owner).copied() {
            self.change(id, |entry| entry.hurry = matches!(entry.phase, Phase::Asking { .. }));
        }
    }

    /// The storage has pushed that the grant of this owner is gone, although we have not heard of a grant yet.
    pub fn gone(&mut self, owner: Owner, why: LostReason, now: Moment) {
        if let Some(id) = self.by_owner.get(&owner).copied() {
            self.change(id, |entry| entry.gone = Some((now, why)));
        }
    }

    /// A grant is over. If a send of its attempt may still arrive, it would find the lock free: that is undone.
    pub fn over(&mut self, grant: &Grant, now: Moment) -> Option<Action<C>> {
        let doubtful = self.doubtful.remove(&grant.attempt.owner);
        doubtful.then(|| self.undo_late_arrival(grant.attempt.clone(), now)).flatten()
    }

    /// The caller has gone.
    pub fn abandon(&mut self, id: AttemptId, now: Moment) -> Vec<Action<C>> {
        self.dismiss(id, now).1
    }

    /// The caller is told this verdict now, and what was asked for is undone.
    pub fn refuse(&mut self, id: AttemptId, verdict: Verdict, now: Moment) -> Vec<Action<C>> {
        let (caller, mut actions) = self.dismiss(id, now);
        actions.extend(caller.map(|caller| Action::Finish(caller, verdict)));
        actions
    }

    /// When to call [`Waiting::tick`] next.
    pub fn next(&self) -> Moment {
        self.entries.next()
    }

    /// What is to be done now.
    pub fn tick(&mut self, now: Moment) -> Vec<Action<C>> {
        let mut actions = Vec::new();
        while let Some(id) = self.entries.first_due(now) {
            let Some(entry) = self.entries.get(id) else { break };
            match entry.phase {
                Phase::LeaveAgain => actions.extend(self.leave(id)),
                _ if entry.caller.is_some() && entry.until <= now => {
                    let refusal = self.change(id, |entry| entry.refusal.take()).flatten();
                    let verdict = refusal.map_or(Verdict::WaitedOut, Verdict::Failed);
                    actions.extend(self.refuse(id, verdict, now));
                }
                _ => actions.extend(self.ask(id, now)),
            }
        }
        actions
    }

    fn ask_answered(
        &mut self,
        id: AttemptId,
        sent: Moment,
        reply: Result<Reply>,
        now: Moment,
    ) -> Vec<Action<C>> {
        let Some(entry) = self.entries.get(id) else {
            return Vec::new();
        };
        match reply {
            Ok(Reply::Granted(award)) => self.granted(id, award, sent, now),
            Ok(Reply::Waiting { turn_in, .. }) => {
                let look_in = if entry.hurry { Duration::ZERO } else { turn_in };
                let ticket = Action::KeepTicket(entry.attempt.clone(), sent, look_in);
                self.change(id, |entry| {
                    entry.phase = Phase::Queued { confirmed: sent };
                    entry.refusal = None;
                    entry.hurry = false;
                });
                if self.is_awaited(id) { vec![ticket] } else { self.leave_line(id, now) }
            }
            // An earlier send may still arrive, when the lock is free.
            Ok(_) if entry.unknown => self.undo(id, Verdict::Busy, now),
            Ok(_) => self.finish(id, Verdict::Busy),
            Err(error) => {
                let unknown = error.kind() == ErrorKind::OutcomeUnknown;
                if unknown && entry.caller.is_some() && entry.sends < SENDS {
                    self.change(id, |entry| {
                        entry.unknown = true;
                        entry.again = now + entry.attempt.ttl / 12;
                        entry.phase = Phase::AskAgain;
                    });
                    return Vec::new();
                }
                let is_patient = entry.queue == Queue::Join && entry.caller.is_some();
                let is_away = entry.has_waited && error.kind() == ErrorKind::Unreachable;
                let is_transient = (error.is_transient() || is_away) && !unknown;
                let error = error.while_doing(format_args!("could not acquire {}", entry.attempt.describe()));
                if is_transient && is_patient {
                    self.change(id, |entry| {
                        // It had no effect, and does not count.
                        entry.sends -= 1;
                        entry.refusal = Some(error);
                        entry.again = now + (entry.attempt.ttl / 12).min(TRY_AGAIN);
                        entry.phase = Phase::AskAgain;
                    });
                    return Vec::new();
                }
                let verdict = Verdict::Failed(error);
                if unknown || entry.unknown { self.undo(id, verdict, now) } else { self.finish(id, verdict) }
            }
        }
    }

    fn check_answered(
        &mut self,
        id: AttemptId,
        sent: Moment,
        reply: Result<Reply>,
        now: Moment,
    ) -> Vec<Action<C>> {
        match reply {
            Ok(Reply::Granted(award)) => self.granted(id, award, sent, now),
            Ok(Reply::Waiting { .. }) | Err(_) if !self.is_awaited(id) => self.leave_line(id, now),
            Ok(Reply::Waiting { .. }) => {
                self.change(id, |entry| {
                    if let Phase::Queued { confirmed } = &mut entry.phase {
                        *confirmed = sent.max(*confirmed);
                    }
                });
                Vec::new()
            }
            Ok(_) => self.ask_anew(id, now),
            // Away for a while: the place is kept, and the keeper checks again.
            Err(error) if matches!(error.kind(), ErrorKind::Unreachable | ErrorKind::OutcomeUnknown) => {
                Vec::new()
            }
            Err(error) => self.refuse(id, Verdict::Failed(error), now),
        }
    }

    fn leave_answered(&mut self, id: AttemptId, reply: Result<Reply>, now: Moment) -> Vec<Action<C>> {
        let Some(entry) = self.entries.get(id) else {
            return Vec::new();
        };
        match reply {
            Ok(Reply::HadBeenGranted(award)) => {
                let grant = Grant { attempt: entry.attempt.clone(), award };
                self.remove(id);
                vec![Action::GiveBack(grant)]
            }
            Err(error) if now < entry.give_up && error.kind() != ErrorKind::Closed => {
                self.change(id, |entry| {
                    entry.again = now + entry.attempt.ttl / 12;
                    entry.phase = Phase::LeaveAgain;
                });
                Vec::new()
            }
            _ => {
                self.remove(id);
                Vec::new()
            }
        }
    }

    fn granted(&mut self, id: AttemptId, award: Award, sent: Moment, now: Moment) -> Vec<Action<C>> {
        let Some(entry) = self.entries.get(id) else {
            return Vec::new();
        };
        let attempt = entry.attempt.clone();
        let queued = matches!(entry.phase, Phase::Queued { .. });
        let grant = Grant { attempt: attempt.clone(), award };
        // What was sent after a push knows better.
        let gone = entry.gone.filter(|(heard, _)| sent <= *heard).map(|(_, why)| why);
        let counted_from = sent - award.spent;
        if entry.unknown {
            self.doubtful.insert(attempt.owner);
        }
        let mut actions = Vec::new();
        if queued {
            actions.push(Action::DropTicket(attempt.owner));
        }
        if entry.caller.is_none() {
            self.remove(id);
            actions.push(Action::GiveBack(grant));
        } else if gone.is_none() && valid_until(counted_from, award.ttl) > now {
            actions.extend(self.finish(id, Verdict::Granted { grant, counted_from }));
        } else {
            // It was taken from us before we knew of it, or this process was stopped for longer than the lease: the
            // grant is given back and never shown.
            actions.push(Action::GiveBack(grant));
            if entry.queue == Queue::Join {
                actions.extend(self.ask_anew(id, now));
            } else {
                let late = Error::lost(&attempt.describe(), gone.unwrap_or(LostReason::Expired));
                actions.extend(self.finish(id, Verdict::Failed(late)));
            }
        }
        actions
    }

    /// The caller goes; what was asked for is undone if need be.
    fn dismiss(&mut self, id: AttemptId, now: Moment) -> (Option<C>, Vec<Action<C>>) {
        let Some(entry) = self.entries.get(id) else {
            return (None, Vec::new());
        };
        let (phase, unknown) = (entry.phase, entry.unknown);
        let caller = self.change(id, |entry| entry.caller.take()).flatten();
        let actions = match phase {
            Phase::Queued { .. } => self.leave_line(id, now),
            Phase::AskAgain if !unknown => {
                self.remove(id);
                Vec::new()
            }
            Phase::AskAgain => {
                self.change(id, |entry| entry.give_up = now + entry.attempt.ttl * UNDO_FOR);
                self.leave(id).into_iter().collect()
            }
            // The answer to the request that is under way decides what there is to undo.
            Phase::Asking { .. } | Phase::Leaving | Phase::LeaveAgain => Vec::new(),
        };
        (caller, actions)
    }

    fn leave_line(&mut self, id: AttemptId, now: Moment) -> Vec<Action<C>> {
        let Some(owner) = self.entries.get(id).map(|entry| entry.attempt.owner) else {
            return Vec::new();
        };
        self.change(id, |entry| entry.give_up = now + entry.attempt.ttl * UNDO_FOR);
        [Some(Action::DropTicket(owner)), self.leave(id)].into_iter().flatten().collect()
    }

    fn undo(&mut self, id: AttemptId, verdict: Verdict, now: Moment) -> Vec<Action<C>> {
        let caller = self
            .change(id, |entry| {
                entry.give_up = now + entry.attempt.ttl * UNDO_FOR;
                entry.caller.take()
            })
            .flatten();
        let mut actions: Vec<_> = self.leave(id).into_iter().collect();
        actions.extend(caller.map(|caller| Action::Finish(caller, verdict)));
        actions
    }

    /// Asks again under a new owner, after a verdict on the old one.
    fn ask_anew(&mut self, id: AttemptId, now: Moment) -> Vec<Action<C>> {
        let Some(entry) = self.entries.get(id) else {
            return Vec::new();
        };
        let old = entry.attempt.owner;
        if entry.caller.is_none() {
            self.remove(id);
            return vec![Action::DropTicket(old)];
        }
        let (was, doubtful) = (entry.attempt.clone(), entry.unknown && !self.doubtful.contains(&old));
        self.by_owner.remove(&old);
        let anew = Arc::new(was.renewed());
        self.by_owner.insert(anew.owner, id);
        self.change(id, |entry| {
            entry.attempt = anew;
            entry.has_waited = true;
            entry.sends = 0;
            entry.unknown = false;
            entry.hurry = false;
            entry.gone = None;
        });
        let mut actions = vec![Action::DropTicket(old)];
        actions.extend(self.ask(id, now));
        if doubtful {
            actions.extend(self.undo_late_arrival(was, now));
        }
        actions
    }

    /// Makes sure that a send of this attempt, which is over, does nothing when it arrives.
    fn undo_late_arrival(&mut self, attempt: Arc<Attempt>, now: Moment) -> Option<Action<C>> {
        let id = self.next_undo;
        self.next_undo += 1;
        let give_up = now + attempt.ttl * UNDO_FOR;
        let entry = Entry { unknown: true, ..Entry::without_caller(attempt, Phase::Leaving, give_up) };
        self.insert(id, entry);
        self.leave(id)
    }

    fn ask(&mut self, id: AttemptId, now: Moment) -> Option<Action<C>> {
        self.change(id, |entry| {
            entry.phase = Phase::Asking { sent: now };
            entry.sends += 1;
            Action::Ask(id, entry.attempt.clone(), entry.queue)
        })
    }

    fn leave(&mut self, id: AttemptId) -> Option<Action<C>> {
        self.change(id, |entry| {
            entry.phase = Phase::Leaving;
            Action::Leave(id, entry.attempt.clone())
        })
    }

    fn finish(&mut self, id: AttemptId, verdict: Verdict) -> Vec<Action<C>> {
        let caller = self.remove(id).and_then(|entry| entry.caller);
        caller.map(|caller| Action::Finish(caller, verdict)).into_iter().collect()
    }

    fn is_awaited(&self, id: AttemptId) -> bool {
        self.entries.get(id).is_some_and(|entry| entry.caller.is_some())
    }

    fn insert(&mut self, id: AttemptId, entry: Entry<C>) {
        self.by_owner.insert(entry.attempt.owner, id);
        self.entries.insert(id, entry);
    }

    fn remove(&mut self, id: AttemptId) -> Option<Entry<C>> {
        let entry = self.entries.remove(id)?;
        self.by_owner.remove(&entry.attempt.owner);
        Some(entry)
    }

    fn change<T>(&mut self, id: AttemptId, act: impl FnOnce(&mut Entry<C>) -> T) -> Option<T> {
        self.entries.change(id, act)
    }
}

#[cfg(test)]
mod tests;
