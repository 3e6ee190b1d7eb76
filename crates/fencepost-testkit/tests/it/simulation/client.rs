//! One client without its thread: the state machines, and between them what the engine does in production.

use std::collections::HashMap;
use std::sync::Arc;

use fencepost_core::backend::{Op, Queue, Reply, Wakeup};
use fencepost_core::clock::{Moment, valid_until};
use fencepost_core::keeper::{self, Keeper, Kept};
use fencepost_core::releasing::Releasing;
use fencepost_core::waiting::{self, Asked, Verdict, Waiting};
use fencepost_core::{Attempt, Grant, LockName, Owner, Result};

/// Whom an answer belongs to.
#[derive(Clone, Copy, Debug)]
pub(super) enum Tag {
    Attempt(u64, Owner, Asked),
    Renew(Owner),
    Release(Owner),
}

impl Tag {
    pub(super) fn owner(&self) -> Owner {
        match self {
            Self::Attempt(_, owner, _) | Self::Renew(owner) | Self::Release(owner) => *owner,
        }
    }
}

/// Nobody wants to know how a release went.
pub(super) enum Nobody {}

/// What a caller holds.
pub(super) struct Hold {
    pub(super) caller: usize,
    grant: Grant,
    valid_until: Moment,
    lost: bool,
}

#[derive(Default)]
pub(super) struct Client {
    keeper: Keeper,
    waiting: Waiting<usize>,
    releasing: Releasing<Nobody>,
    held: HashMap<Owner, Hold>,
    /// What is to be sent.
    pub(super) outbox: Vec<(Op, Tag)>,
    /// What callers were told, and when.
    pub(super) verdicts: Vec<(usize, Verdict)>,
}

impl Client {
    pub(super) fn acquire(
        &mut self,
        caller: usize,
        attempt: Arc<Attempt>,
        queue: Queue,
        until: Moment,
        now: Moment,
    ) {
        let ask = self.waiting.start(caller as u64, attempt, queue, until, caller, now);
        self.act(vec![ask], now);
    }

    /// The acquire of this attempt has left.
    pub(super) fn sent(&mut self, id: u64, now: Moment) {
        self.waiting.sent(id, now);
    }

    pub(super) fn abandon(&mut self, caller: usize, now: Moment) {
        let actions = self.waiting.abandon(caller as u64, now);
        self.act(actions, now);
    }

    pub(super) fn release(&mut self, caller: usize, now: Moment) {
        let Some(owner) = self.held.iter().find(|(_, hold)| hold.caller == caller).map(|(owner, _)| *owner)
        else {
            return;
        };
        self.keeper.forget(owner);
        if let Some(hold) = self.held.remove(&owner) {
            self.give_back(hold.grant, now);
        }
    }

    /// The names that callers of this client believe they hold, and who they are.
    pub(super) fn beliefs(&self, now: Moment) -> impl Iterator<Item = (&LockName, &Hold)> {
        let held = self.held.values().filter(move |hold| !hold.lost && hold.valid_until > now);
        held.flat_map(|hold| hold.grant.held().iter().map(move |want| (&want.name, hold)))
    }

    /// Whether this owner is waited for, held or on its way back.
    pub(super) fn knows(&self, owner: Owner) -> bool {
        self.held.contains_key(&owner)
            || self.waiting.find(owner).is_some()
            || self.releasing.grant(owner).is_some()
    }

    pub(super) fn is_idle(&self) -> bool {
        self.waiting.is_empty() && self.releasing.is_empty() && self.held.is_empty() && self.keeper.is_empty()
    }

    pub(super) fn next(&self) -> Moment {
        self.keeper.next().min(self.waiting.next()).min(self.releasing.next())
    }

    pub(super) fn tick(&mut self, now: Moment) {
        for action in self.keeper.tick(now) {
            match action {
                keeper::Action::Renew(owner) => {
                    if let Some(hold) = self.held.get(&owner) {
                        self.outbox.push((Op::Renew(hold.grant.clone()), Tag::Renew(owner)));
                    }
                }
                keeper::Action::Check(owner) => {
                    if let Some((id, attempt)) = self.waiting.find(owner) {
                        self.outbox.push((Op::Check(attempt.clone()), Tag::Attempt(id, owner, Asked::Check)));
                    }
                }
                keeper::Action::Lose(owner, _) => self.lose(owner),
            }
        }
        let actions = self.waiting.tick(now);
        self.act(actions, now);
        for owner in self.releasing.tick(now) {
            if let Some(grant) = self.releasing.grant(owner) {
                self.outbox.push((Op::Release(grant.clone()), Tag::Release(owner)));
            }
        }
    }

    pub(super) fn answered(&mut self, tag: Tag, sent: Moment, reply: Result<Reply>, now: Moment) {
        match tag {
            Tag::Attempt(id, owner, asked) => {
                if asked == Asked::Check {
                    self.ticket_checked(owner, sent, &reply, now);
                }
                let actions = self.waiting.replied(id, owner, asked, sent, reply, now);
                self.act(actions, now);
            }
            Tag::Renew(owner) => self.renewed(owner, sent, &reply, now),
            Tag::Release(owner) => {
                if let Some(over) = self.releasing.replied(owner, reply, now) {
                    let undo = self.waiting.over(&over.grant, now);
                    self.act(undo.into_iter().collect(), now);
                }
            }
        }
    }

    pub(super) fn woken(&mut self, push: &Wakeup, now: Moment) {
        match *push {
            Wakeup::Granted { ref attempt, award } => {
                let actions = self.waiting.handed_over(attempt.owner, award, now);
                self.act(actions, now);
            }
            Wakeup::Offered { ref attempt } => self.turn(attempt.owner, now),
            Wakeup::Turn { owner } => self.turn(owner, now),
            Wakeup::Gone { owner, why } => {
                self.lose(owner);
                self.waiting.gone(owner, why, now);
            }
            Wakeup::Recheck => self.keeper.hurry(now),
        }
    }

    fn turn(&mut self, owner: Owner, now: Moment) {
        self.keeper.no_later_than(owner, now);
        self.waiting.turn(owner);
    }

    fn ticket_checked(&mut self, owner: Owner, sent: Moment, reply: &Result<Reply>, now: Moment) {
        match reply {
            Ok(Reply::Waiting { turn_in }) => {
                if let Some((_, attempt)) = self.waiting.find(owner) {
                    self.keeper.renewed(owner, sent, attempt.ttl);
                    self.keeper.no_later_than(owner, now + *turn_in);
                }
            }
            Ok(_) => {}
            Err(_) => self.keeper.failed(owner, now),
        }
    }

    fn renewed(&mut self, owner: Owner, sent: Moment, reply: &Result<Reply>, now: Moment) {
        match reply {
            Ok(Reply::Renewed { ttl }) => {
                let until = self.keeper.renewed(owner, sent, *ttl);
                if let (Some(until), Some(hold)) = (until, self.held.get_mut(&owner)) {
                    hold.valid_until = until;
                }
            }
            Ok(_) if self.keeper.holds(owner) => self.lose(owner),
            Ok(_) => {}
            Err(_) => self.keeper.failed(owner, now),
        }
    }

    fn lose(&mut self, owner: Owner) {
        self.keeper.forget(owner);
        if let Some(hold) = self.held.get_mut(&owner) {
            hold.lost = true;
        }
    }

    fn give_back(&mut self, grant: Grant, now: Moment) {
        self.outbox.push((Op::Release(grant.clone()), Tag::Release(grant.attempt.owner)));
        self.releasing.start(grant, None, now);
    }

    fn act(&mut self, actions: Vec<waiting::Action<usize>>, now: Moment) {
        for action in actions {
            match action {
                waiting::Action::Ask(id, attempt, queue) => {
                    let tag = Tag::Attempt(id, attempt.owner, Asked::Ask);
                    self.outbox.push((Op::Acquire { attempt, queue }, tag));
                }
                waiting::Action::Leave(id, attempt) => {
                    let tag = Tag::Attempt(id, attempt.owner, Asked::Leave);
                    self.outbox.push((Op::Leave(attempt), tag));
                }
                waiting::Action::GiveBack(grant) => self.give_back(grant, now),
                waiting::Action::KeepTicket(attempt, sent, turn_in) => {
                    let first = Keeper::first_renewal(sent, attempt.ttl).min(now + turn_in);
                    self.keeper.keep(attempt.owner, Kept::Ticket, sent, attempt.ttl, first, Moment::NEVER);
                }
                waiting::Action::DropTicket(owner) => self.keeper.forget(owner),
                waiting::Action::Finish(caller, verdict) => self.finish(caller, verdict),
            }
        }
    }

    fn finish(&mut self, caller: usize, verdict: Verdict) {
        if let Verdict::Granted { grant, counted_from } = &verdict {
            let (owner, ttl) = (grant.attempt.owner, grant.award.ttl);
            let first = Keeper::first_renewal(*counted_from, ttl);
            self.keeper.keep(owner, Kept::Grant, *counted_from, ttl, first, Moment::NEVER);
            let valid_until = valid_until(*counted_from, ttl);
            self.held.insert(owner, Hold { caller, grant: grant.clone(), valid_until, lost: false });
        }
        self.verdicts.push((caller, verdict));
    }
}
