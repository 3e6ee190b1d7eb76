//! The waiting line: every attempt from its first request to its verdict, and the undoing of those whose caller has
//! gone. A state machine without I/O: it is told what happened and says what to do.
//!
//! `C` is whoever waits for the verdict; the machine hands it back with [`Action::Finish`] and never looks inside.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use crate::backend::{Queue, Reply};
use crate::clock::{Moment, valid_until};
use crate::error::{Error, ErrorKind, Result};
use crate::grant::{Attempt, Award, Grant, LostReason};
use crate::token::Owner;

/// How often a request whose outcome is unknown is sent in all.
const SENDS: u32 = 3;

/// For how many ttls an undo is tried: a ticket that cannot be given up may be granted at the end of its lease, and that
/// grant has a lease too.
const UNDO_FOR: u32 = 2;

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
        /// Whether the storage has been told by us since it granted, or handed the lock over on its own.
        by: GrantedBy,
    },
    /// Somebody else has it, and the attempt was not to wait.
    Busy,
    /// It did not come to its turn in time.
    WaitedOut,
    /// It failed.
    Failed(Error),
}

/// How a grant reached us.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GrantedBy {
    /// As the answer to a request: the lease counts from its sending.
    Answer,
    /// By a push: the lease is to be renewed at once.
    HandOver,
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
    /// The outcome of an acquire is unknown; it is sent again later.
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
    /// When to send again, in the phases that do.
    again: Moment,
    /// When an undo is no longer needed: whatever it would undo has ended by itself.
    give_up: Moment,
}

impl<C> Entry<C> {
    fn next(&self) -> Moment {
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
    entries: HashMap<AttemptId, Entry<C>>,
    by_owner: HashMap<Owner, AttemptId>,
    agenda: BTreeSet<(Moment, AttemptId)>,
    /// Owners that hold a grant, and of which a send may still arrive.
    doubtful: HashSet<Owner>,
    /// Undos of attempts that go on under another owner have ids of their own.
    next_undo: AttemptId,
}

impl<C> Default for Waiting<C> {
    fn default() -> Self {
        Self {
            entries: HashMap::new(),
            by_owner: HashMap::new(),
            agenda: BTreeSet::new(),
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
        self.insert(
            id,
            Entry {
                attempt,
                queue,
                until,
                caller: Some(caller),
                phase: Phase::Asking { sent: now },
                sends: 1,
                unknown: false,
                again: Moment::NEVER,
                give_up: Moment::NEVER,
            },
        );
        ask
    }

    /// The request that was to be sent by [`Action::Ask`] has left just now.
    pub fn sent(&mut self, id: AttemptId, now: Moment) {
        if let Some(entry) = self.entries.get_mut(&id)
            && let Phase::Asking { sent } = &mut entry.phase
        {
            *sent = now;
        }
    }

    /// The attempt that waits under this owner.
    pub fn find(&self, owner: Owner) -> Option<(AttemptId, &Arc<Attempt>)> {
        let id = *self.by_owner.get(&owner)?;
        Some((id, &self.entries.get(&id)?.attempt))
    }

    /// Whether every attempt is over and undone.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// The attempts that somebody still waits for.
    pub fn awaited(&self) -> Vec<AttemptId> {
        self.entries.iter().filter(|(_, entry)| entry.caller.is_some()).map(|(id, _)| *id).collect()
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
        let Some(entry) = self.entries.get(&id) else {
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
        let Some(entry) = self.entries.get(&id) else {
            return Vec::new();
        };
        match entry.phase {
            // This owner may have been granted before its newest request was sent, by one that was thought lost, or
            // may even have lost that grant again: a push proves nothing then, and the storage is asked.
            Phase::Queued { confirmed } if entry.unknown => {
                vec![Action::KeepTicket(entry.attempt.clone(), confirmed, Duration::ZERO)]
            }
            Phase::Asking { .. } if entry.unknown => Vec::new(),
            // The grant came after the newest request that did not know of it yet.
            Phase::Asking { sent: counted_from } | Phase::Queued { confirmed: counted_from } => {
                self.granted(id, award, counted_from, GrantedBy::HandOver, now)
            }
            Phase::AskAgain | Phase::Leaving | Phase::LeaveAgain => Vec::new(),
        }
    }

    /// A grant is over. If a send of its attempt may still arrive, it would find the lock free: that is undone.
    pub fn over(&mut self, grant: &Grant, now: Moment) -> Option<Action<C>> {
        self.doubtful.remove(&grant.attempt.owner).then(|| self.undo_late_arrival(grant.attempt.clone(), now))
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
        self.agenda.first().map_or(Moment::NEVER, |(at, _)| *at)
    }

    /// What is to be done now.
    pub fn tick(&mut self, now: Moment) -> Vec<Action<C>> {
        let mut actions = Vec::new();
        while let Some((_, id)) = self.agenda.first().copied().filter(|(at, _)| *at <= now) {
            let Some(entry) = self.entries.get(&id) else { break };
            match entry.phase {
                Phase::LeaveAgain => actions.push(self.leave(id)),
                _ if entry.caller.is_some() && entry.until <= now => {
                    actions.extend(self.refuse(id, Verdict::WaitedOut, now));
                }
                _ => actions.push(self.ask(id, now)),
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
        let Some(entry) = self.entries.get_mut(&id) else {
            return Vec::new();
        };
        match reply {
            Ok(Reply::Granted(award)) => self.granted(id, award, sent, GrantedBy::Answer, now),
            Ok(Reply::Waiting { turn_in, .. }) => {
                let ticket = Action::KeepTicket(entry.attempt.clone(), sent, turn_in);
                self.change(id, |entry| entry.phase = Phase::Queued { confirmed: sent });
                if self.is_awaited(id) { vec![ticket] } else { self.leave_line(id, now) }
            }
            // An earlier send may still arrive, when the lock is free.
            Ok(_) if entry.unknown => self.undo(id, Verdict::Busy, now),
            Ok(_) => self.finish(id, Verdict::Busy),
            Err(error) => {
                entry.unknown |= error.kind() == ErrorKind::OutcomeUnknown;
                if entry.caller.is_some() && error.kind() == ErrorKind::OutcomeUnknown && entry.sends < SENDS
                {
                    self.change(id, |entry| {
                        entry.again = now + entry.attempt.ttl / 12;
                        entry.phase = Phase::AskAgain;
                    });
                    return Vec::new();
                }
                let verdict = Verdict::Failed(
                    error.while_doing(format_args!("could not acquire {}", entry.attempt.describe())),
                );
                if entry.unknown { self.undo(id, verdict, now) } else { self.finish(id, verdict) }
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
            Ok(Reply::Granted(award)) => self.granted(id, award, sent, GrantedBy::Answer, now),
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
        let Some(entry) = self.entries.get(&id) else {
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

    fn granted(
        &mut self,
        id: AttemptId,
        award: Award,
        counted_from: Moment,
        by: GrantedBy,
        now: Moment,
    ) -> Vec<Action<C>> {
        let Some(entry) = self.entries.get(&id) else {
            return Vec::new();
        };
        let attempt = entry.attempt.clone();
        let queued = matches!(entry.phase, Phase::Queued { .. });
        let grant = Grant { attempt: attempt.clone(), award };
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
        } else if valid_until(counted_from, award.ttl) > now {
            actions.extend(self.finish(id, Verdict::Granted { grant, counted_from, by }));
        } else {
            // This process was stopped for longer than the lease: the grant is given back and never shown.
            actions.push(Action::GiveBack(grant));
            if entry.queue == Queue::Join {
                actions.extend(self.ask_anew(id, now));
            } else {
                let late = Error::lost(&attempt.describe(), LostReason::Expired);
                actions.extend(self.finish(id, Verdict::Failed(late)));
            }
        }
        actions
    }

    /// The caller goes; what was asked for is undone if need be.
    fn dismiss(&mut self, id: AttemptId, now: Moment) -> (Option<C>, Vec<Action<C>>) {
        let Some(entry) = self.entries.get(&id) else {
            return (None, Vec::new());
        };
        let phase = entry.phase;
        let caller = self.change(id, |entry| entry.caller.take()).flatten();
        let actions = match phase {
            Phase::Queued { .. } => self.leave_line(id, now),
            Phase::AskAgain => {
                self.change(id, |entry| entry.give_up = now + entry.attempt.ttl * UNDO_FOR);
                vec![self.leave(id)]
            }
            // The answer to the request that is under way decides what there is to undo.
            Phase::Asking { .. } | Phase::Leaving | Phase::LeaveAgain => Vec::new(),
        };
        (caller, actions)
    }

    fn leave_line(&mut self, id: AttemptId, now: Moment) -> Vec<Action<C>> {
        let Some(owner) = self.entries.get(&id).map(|entry| entry.attempt.owner) else {
            return Vec::new();
        };
        self.change(id, |entry| entry.give_up = now + entry.attempt.ttl * UNDO_FOR);
        vec![Action::DropTicket(owner), self.leave(id)]
    }

    fn undo(&mut self, id: AttemptId, verdict: Verdict, now: Moment) -> Vec<Action<C>> {
        let caller = self
            .change(id, |entry| {
                entry.give_up = now + entry.attempt.ttl * UNDO_FOR;
                entry.caller.take()
            })
            .flatten();
        let mut actions = vec![self.leave(id)];
        actions.extend(caller.map(|caller| Action::Finish(caller, verdict)));
        actions
    }

    /// Asks again under a new owner, after a verdict on the old one.
    fn ask_anew(&mut self, id: AttemptId, now: Moment) -> Vec<Action<C>> {
        let Some(entry) = self.entries.get(&id) else {
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
            entry.sends = 0;
            entry.unknown = false;
        });
        let mut actions = vec![Action::DropTicket(old), self.ask(id, now)];
        if doubtful {
            actions.push(self.undo_late_arrival(was, now));
        }
        actions
    }

    /// Makes sure that a send of this attempt, which is over, does nothing when it arrives.
    fn undo_late_arrival(&mut self, attempt: Arc<Attempt>, now: Moment) -> Action<C> {
        let id = self.next_undo;
        self.next_undo += 1;
        let give_up = now + attempt.ttl;
        let entry = Entry {
            attempt,
            queue: Queue::Never,
            until: Moment::NEVER,
            caller: None,
            phase: Phase::Leaving,
            sends: 0,
            unknown: true,
            again: Moment::NEVER,
            give_up,
        };
        self.insert(id, entry);
        self.leave(id)
    }

    fn ask(&mut self, id: AttemptId, now: Moment) -> Action<C> {
        self.change(id, |entry| {
            entry.phase = Phase::Asking { sent: now };
            entry.sends += 1;
        });
        let entry = &self.entries[&id];
        Action::Ask(id, entry.attempt.clone(), entry.queue)
    }

    fn leave(&mut self, id: AttemptId) -> Action<C> {
        self.change(id, |entry| entry.phase = Phase::Leaving);
        Action::Leave(id, self.entries[&id].attempt.clone())
    }

    fn finish(&mut self, id: AttemptId, verdict: Verdict) -> Vec<Action<C>> {
        let caller = self.remove(id).and_then(|entry| entry.caller);
        caller.map(|caller| Action::Finish(caller, verdict)).into_iter().collect()
    }

    fn is_awaited(&self, id: AttemptId) -> bool {
        self.entries.get(&id).is_some_and(|entry| entry.caller.is_some())
    }

    fn insert(&mut self, id: AttemptId, entry: Entry<C>) {
        self.by_owner.insert(entry.attempt.owner, id);
        self.agenda.insert((entry.next(), id));
        self.entries.insert(id, entry);
    }

    fn remove(&mut self, id: AttemptId) -> Option<Entry<C>> {
        let entry = self.entries.remove(&id)?;
        self.by_owner.remove(&entry.attempt.owner);
        self.agenda.remove(&(entry.next(), id));
        Some(entry)
    }

    fn change<T>(&mut self, id: AttemptId, act: impl FnOnce(&mut Entry<C>) -> T) -> Option<T> {
        let entry = self.entries.get_mut(&id)?;
        let before = entry.next();
        let out = act(entry);
        let after = entry.next();
        if before != after {
            self.agenda.remove(&(before, id));
            self.agenda.insert((after, id));
        }
        Some(out)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::grant::{Mode, Rule, Want};
    use crate::name::LockName;
    use crate::token::FencingToken;

    const TTL: Duration = Duration::from_secs(12);
    const ID: AttemptId = 7;

    fn at(seconds: u64) -> Moment {
        Moment::START + Duration::from_secs(1000 + seconds)
    }

    fn granted(token: u64) -> Reply {
        Reply::Granted(award(token))
    }

    fn award(token: u64) -> Award {
        Award { token: FencingToken::new(token), ttl: TTL, chosen: 0 }
    }

    fn still_waiting() -> Reply {
        Reply::Waiting { turn_in: TTL }
    }

    fn failure(kind: ErrorKind) -> Result<Reply> {
        Err(Error::new(kind, "told to fail"))
    }

    /// An attempt that began at second 0; its caller is called "caller".
    fn started(queue: Queue, until: Moment) -> (Waiting<&'static str>, Owner) {
        let attempt = Arc::new(Attempt {
            owner: Owner::random(),
            wants: vec![Want { name: LockName::new("a").unwrap(), mode: Mode::Exclusive }],
            rule: Rule::All,
            ttl: TTL,
            label: "test".into(),
            meta: [].into(),
        });
        let owner = attempt.owner;
        let mut waiting = Waiting::default();
        let ask = waiting.start(ID, attempt, queue, until, "caller", at(0));
        assert_eq!(brief(&[ask]), "ask");
        (waiting, owner)
    }

    /// One that stands in line since second 0.
    fn in_line() -> (Waiting<&'static str>, Owner) {
        let (mut waiting, owner) = started(Queue::Join, Moment::NEVER);
        let actions = waiting.replied(ID, owner, Asked::Ask, at(0), Ok(still_waiting()), at(0));
        assert_eq!(brief(&actions), "keep ticket");
        (waiting, owner)
    }

    /// The actions in words.
    fn brief(actions: &[Action<&'static str>]) -> String {
        let words = actions.iter().map(|action| match action {
            Action::Ask(..) => "ask".into(),
            Action::Leave(..) => "leave".into(),
            Action::GiveBack(grant) => format!("give back {}", grant.award.token),
            Action::KeepTicket(_, _, Duration::ZERO) => "look now".into(),
            Action::KeepTicket(..) => "keep ticket".into(),
            Action::DropTicket(_) => "drop ticket".into(),
            Action::Finish(caller, verdict) => format!("tell {caller} {}", verdict_in_words(verdict)),
        });
        words.collect::<Vec<String>>().join(", ")
    }

    fn verdict_in_words(verdict: &Verdict) -> String {
        match verdict {
            Verdict::Granted { counted_from, by, .. } => {
                format!("granted from {} by {by:?}", counted_from.since(at(0)).as_secs())
            }
            Verdict::Busy => "busy".into(),
            Verdict::WaitedOut => "waited out".into(),
            Verdict::Failed(error) => format!("failed {:?}", error.kind()),
        }
    }

    fn current_owner(waiting: &Waiting<&'static str>) -> Owner {
        waiting.entries[&ID].attempt.owner
    }

    #[test]
    fn a_grant_counts_from_its_sending() {
        let (mut waiting, owner) = started(Queue::Never, Moment::NEVER);
        waiting.sent(ID, at(1));
        let actions = waiting.replied(ID, owner, Asked::Ask, at(1), Ok(granted(1)), at(3));
        assert_eq!(brief(&actions), "tell caller granted from 1 by Answer");
        assert!(waiting.is_empty());
        assert_eq!(waiting.next(), Moment::NEVER);
    }

    /// Scenario 11: stopped between sending and reading for longer than the lease.
    #[test]
    fn a_grant_that_is_read_too_late_is_given_back() {
        let (mut waiting, owner) = started(Queue::Never, Moment::NEVER);
        let actions = waiting.replied(ID, owner, Asked::Ask, at(0), Ok(granted(1)), at(12));
        assert_eq!(brief(&actions), "give back 1, tell caller failed Lost");
        assert!(waiting.is_empty());
    }

    /// Scenario 12: the validity counts from the send that succeeded.
    #[test]
    fn a_grant_after_a_resend_counts_from_the_resend() {
        let (mut waiting, owner) = started(Queue::Never, Moment::NEVER);
        let lost = failure(ErrorKind::OutcomeUnknown);
        assert_eq!(brief(&waiting.replied(ID, owner, Asked::Ask, at(0), lost, at(2))), "");
        assert_eq!(waiting.next(), at(3));
        assert_eq!(brief(&waiting.tick(at(3))), "ask");
        let actions = waiting.replied(ID, owner, Asked::Ask, at(3), Ok(granted(1)), at(4));
        assert_eq!(brief(&actions), "tell caller granted from 3 by Answer");
    }

    #[test]
    fn an_unknown_outcome_is_undone_after_the_last_send() {
        let (mut waiting, owner) = started(Queue::Join, Moment::NEVER);
        for send in 1..SENDS {
            let lost = failure(ErrorKind::OutcomeUnknown);
            assert_eq!(brief(&waiting.replied(ID, owner, Asked::Ask, at(0), lost, at(0))), "");
            assert_eq!(brief(&waiting.tick(waiting.next())), "ask", "send {send}");
        }
        let lost = failure(ErrorKind::OutcomeUnknown);
        let actions = waiting.replied(ID, owner, Asked::Ask, at(0), lost, at(0));
        assert_eq!(brief(&actions), "leave, tell caller failed OutcomeUnknown");
        let actions = waiting.replied(ID, owner, Asked::Leave, at(0), Ok(Reply::Left), at(0));
        assert_eq!(brief(&actions), "");
        assert!(waiting.is_empty());
    }

    #[test]
    fn what_had_no_effect_needs_no_undoing() {
        let (mut waiting, owner) = started(Queue::Join, Moment::NEVER);
        let actions = waiting.replied(ID, owner, Asked::Ask, at(0), failure(ErrorKind::Unreachable), at(0));
        assert_eq!(brief(&actions), "tell caller failed Unreachable");
        assert!(waiting.is_empty());
    }

    /// Scenario 50: the first send may still arrive when the second was answered.
    #[test]
    fn busy_after_an_unknown_send_is_undone() {
        let (mut waiting, owner) = started(Queue::Never, Moment::NEVER);
        waiting.replied(ID, owner, Asked::Ask, at(0), failure(ErrorKind::OutcomeUnknown), at(0));
        waiting.tick(waiting.next());
        let actions = waiting.replied(ID, owner, Asked::Ask, at(1), Ok(Reply::Busy), at(1));
        assert_eq!(brief(&actions), "leave, tell caller busy");
    }

    #[test]
    fn a_handed_over_grant_counts_from_the_newest_heartbeat() {
        let (mut waiting, owner) = in_line();
        for sent in [4, 8] {
            assert_eq!(
                brief(&waiting.replied(ID, owner, Asked::Check, at(sent), Ok(still_waiting()), at(sent))),
                ""
            );
        }
        // An answer that was overtaken does not make it older again.
        waiting.replied(ID, owner, Asked::Check, at(6), Ok(still_waiting()), at(9));
        let actions = waiting.handed_over(owner, award(1), at(11));
        assert_eq!(brief(&actions), "drop ticket, tell caller granted from 8 by HandOver");
        assert_eq!(brief(&waiting.handed_over(owner, award(1), at(11))), "");
    }

    #[test]
    fn a_push_may_come_before_the_answer_that_says_wait() {
        let (mut waiting, owner) = started(Queue::Join, Moment::NEVER);
        let actions = waiting.handed_over(owner, award(1), at(2));
        assert_eq!(brief(&actions), "tell caller granted from 0 by HandOver");
        assert_eq!(brief(&waiting.replied(ID, owner, Asked::Ask, at(0), Ok(still_waiting()), at(3))), "");
    }

    /// Scenario 45: a waiter that was stopped reads a grant whose lease has ended.
    #[test]
    fn a_grant_that_is_handed_over_too_late_is_given_back_and_asked_for_anew() {
        let (mut waiting, owner) = in_line();
        let actions = waiting.handed_over(owner, award(1), at(12));
        assert_eq!(brief(&actions), "drop ticket, give back 1, drop ticket, ask");
        assert_ne!(current_owner(&waiting), owner);
    }

    /// The first send joined the line and was granted, but its answer got lost: the lease has run since before the
    /// second send, which does not count as its beginning.
    #[test]
    fn a_push_proves_nothing_while_an_earlier_send_is_in_doubt() {
        let (mut waiting, owner) = started(Queue::Join, Moment::NEVER);
        waiting.replied(ID, owner, Asked::Ask, at(0), failure(ErrorKind::OutcomeUnknown), at(5));
        assert_eq!(brief(&waiting.tick(at(6))), "ask");
        waiting.sent(ID, at(6));
        assert_eq!(brief(&waiting.handed_over(owner, award(1), at(6))), "");
        let actions = waiting.replied(ID, owner, Asked::Ask, at(6), Ok(granted(1)), at(7));
        assert_eq!(brief(&actions), "tell caller granted from 6 by Answer");
    }

    /// The grant of the first send came to its end unseen, the second send joined the line again, and only then the
    /// push of the first grant arrives.
    #[test]
    fn a_push_of_a_grant_that_has_ended_is_not_believed() {
        let (mut waiting, owner) = started(Queue::Join, Moment::NEVER);
        waiting.replied(ID, owner, Asked::Ask, at(0), failure(ErrorKind::OutcomeUnknown), at(12));
        assert_eq!(brief(&waiting.tick(at(13))), "ask");
        waiting.replied(ID, owner, Asked::Ask, at(13), Ok(still_waiting()), at(13));
        assert_eq!(brief(&waiting.handed_over(owner, award(1), at(14))), "look now");
        let actions = waiting.replied(ID, owner, Asked::Check, at(14), Ok(granted(2)), at(14));
        assert_eq!(brief(&actions), "drop ticket, tell caller granted from 14 by Answer");
    }

    #[test]
    fn whoever_waits_out_leaves_the_line() {
        let (mut waiting, owner) = started(Queue::Join, at(5));
        waiting.replied(ID, owner, Asked::Ask, at(0), Ok(still_waiting()), at(0));
        assert_eq!(waiting.next(), at(5));
        assert_eq!(brief(&waiting.tick(at(5))), "drop ticket, leave, tell caller waited out");
        waiting.replied(ID, owner, Asked::Leave, at(5), Ok(Reply::Left), at(5));
        assert!(waiting.is_empty());
    }

    #[test]
    fn whoever_waits_out_before_an_answer_is_told_at_once_and_undone_after_it() {
        let (mut waiting, owner) = started(Queue::Join, at(5));
        assert_eq!(brief(&waiting.tick(at(5))), "tell caller waited out");
        assert_eq!(waiting.next(), Moment::NEVER);
        let actions = waiting.replied(ID, owner, Asked::Ask, at(0), Ok(granted(1)), at(6));
        assert_eq!(brief(&actions), "give back 1");
        assert!(waiting.is_empty());
    }

    #[test]
    fn a_caller_that_goes_while_it_asks_is_undone_by_the_answer() {
        for (reply, undone) in [
            (Ok(granted(1)), "give back 1"),
            (Ok(still_waiting()), "drop ticket, leave"),
            (Ok(Reply::Busy), ""),
            (failure(ErrorKind::OutcomeUnknown), "leave"),
            (failure(ErrorKind::Unreachable), ""),
        ] {
            let (mut waiting, owner) = started(Queue::Join, Moment::NEVER);
            assert_eq!(brief(&waiting.abandon(ID, at(1))), "");
            let actions = waiting.replied(ID, owner, Asked::Ask, at(0), reply, at(2));
            assert_eq!(brief(&actions), undone);
        }
    }

    #[test]
    fn a_grant_that_comes_while_the_line_is_left_is_given_back() {
        let (mut waiting, owner) = in_line();
        assert_eq!(brief(&waiting.abandon(ID, at(1))), "drop ticket, leave");
        assert_eq!(brief(&waiting.handed_over(owner, award(1), at(1))), "");
        let had = Ok(Reply::HadBeenGranted(award(1)));
        assert_eq!(brief(&waiting.replied(ID, owner, Asked::Leave, at(1), had, at(1))), "give back 1");
        assert!(waiting.is_empty());
    }

    #[test]
    fn a_leaving_is_repeated_until_whatever_became_of_the_ticket_has_ended() {
        let (mut waiting, owner) = in_line();
        waiting.abandon(ID, at(0));
        let mut leavings = 1;
        let mut now = at(0);
        while !waiting.is_empty() {
            let lost = failure(ErrorKind::Unreachable);
            waiting.replied(ID, owner, Asked::Leave, now, lost, now);
            if !waiting.is_empty() {
                now = waiting.next();
                assert_eq!(brief(&waiting.tick(now)), "leave");
                leavings += 1;
            }
        }
        assert_eq!((leavings, now), (25, at(24)));
    }

    #[test]
    fn a_ticket_that_is_gone_is_asked_for_anew() {
        let (mut waiting, owner) = in_line();
        let actions = waiting.replied(ID, owner, Asked::Check, at(4), Ok(Reply::NoTicket), at(4));
        assert_eq!(brief(&actions), "drop ticket, ask");
        assert_ne!(current_owner(&waiting), owner);
        // What still comes for the old owner is of no interest.
        assert_eq!(brief(&waiting.handed_over(owner, award(1), at(4))), "");
    }

    #[test]
    fn a_check_that_fails_for_a_while_keeps_the_place() {
        let (mut waiting, owner) = in_line();
        for kind in [ErrorKind::Unreachable, ErrorKind::OutcomeUnknown] {
            assert_eq!(brief(&waiting.replied(ID, owner, Asked::Check, at(4), failure(kind), at(4))), "");
        }
        let denied = failure(ErrorKind::Denied);
        let actions = waiting.replied(ID, owner, Asked::Check, at(5), denied, at(5));
        assert_eq!(brief(&actions), "drop ticket, leave, tell caller failed Denied");
    }
}
