//! What a client does about its attempts and grants: one state machine without I/O. It is told what happened and answers
//! with what to do ([`Machine::on`]). The engine only carries its outputs; the simulation of the test kit drives the very
//! same machine.
//!
//! Every owner has one entry, which is in one phase: wanted (asked for, or waiting in line), held, being released, or
//! leaving (whatever of it may be in the storage is undone). At most one request about an owner is unanswered, renewals
//! apart: what is due while another request is in flight leaves after its answer. Only a client that closes does not wait.
//!
//! `C` is what waits for the verdict on an attempt, `T` what waits for the outcome of a release; the machine hands them back
//! with its outputs and never looks inside.

mod asking;
mod entry;
mod held;
mod leaving;
mod releasing;
#[cfg(test)]
mod tests;
mod wanted;

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

pub use self::held::RenewalOutcome;
pub use self::wanted::Verdict;

use self::entry::{Entry, Phase};
use self::held::Held;
use self::wanted::Wanted;
use crate::backend::{OnBusy, Op, Reply, Wakeup};
use crate::clock::Moment;
use crate::delay_queue::DelayQueue;
use crate::error::{Error, Result};
use crate::grant::{Attempt, LostReason};
use crate::token::Owner;

/// One request that the machine sends: about which owner, and what it asks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Request {
    /// The owner.
    pub owner: Owner,
    /// What is asked.
    pub asked: Asked,
}

/// What a request asks of the storage.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Asked {
    /// [`Op::Acquire`].
    Acquire,
    /// [`Op::Check`].
    Check,
    /// [`Op::Leave`].
    Leave,
    /// [`Op::Renew`].
    Renew,
    /// [`Op::Release`].
    Release,
}

/// What happened.
#[derive(Debug)]
pub enum Input<C, T> {
    /// A caller wants a lock. It knows its attempt by this owner from now on.
    Acquire {
        /// What it wants.
        attempt: Arc<Attempt>,
        /// Whether it waits in line.
        on_busy: OnBusy,
        /// Until when it waits.
        until: Moment,
        /// How long it may hold the lock.
        max_hold: Option<Duration>,
        /// The caller.
        caller: C,
    },
    /// The caller of this attempt has gone.
    Abandon(Owner),
    /// The guard of this grant was dropped or released.
    Release {
        /// The grant's owner.
        owner: Owner,
        /// Why the guard was lost before, if it was.
        lost: Option<LostReason>,
        /// What waits for the outcome.
        told: Option<T>,
    },
    /// The guard has seen its deadline pass, whatever the machine knew: the grant is not renewed any more.
    Forfeit(Owner),
    /// The request that [`Output::Send`] asked for leaves now.
    Sent(Request),
    /// The storage has answered a request that left at `sent`, or it was given up.
    Answered {
        /// The request.
        request: Request,
        /// When it left.
        sent: Moment,
        /// The answer.
        reply: Result<Reply>,
    },
    /// The storage has pushed something.
    Pushed(Wakeup),
    /// The client closes: nothing new is taken, and what is held is given back.
    Close,
    /// Time has passed; see [`Machine::next`].
    Tick,
}

/// What to do.
#[derive(Debug)]
pub enum Output<C, T> {
    /// Send this operation, and report when it leaves and when it is answered.
    Send(Request, Op),
    /// Tell the caller of an attempt.
    Verdict(C, Verdict),
    /// Tell the guard how a renewal went.
    Renewal(Owner, RenewalOutcome),
    /// Tell the guard that it no longer holds the lock.
    Lost(Owner, LostReason),
    /// Tell the caller of a release.
    Released(T, Result<()>),
}

/// The attempts and grants of one client.
#[derive(Debug)]
pub struct Machine<C, T> {
    entries: DelayQueue<Owner, Entry<C, T>>,
    /// The present owner of attempts that go on under another one than their callers know.
    renamed: HashMap<Owner, Owner>,
    is_closing: bool,
    outputs: Vec<Output<C, T>>,
}

impl<C, T> Default for Machine<C, T> {
    fn default() -> Self {
        Self {
            entries: DelayQueue::default(),
            renamed: HashMap::new(),
            is_closing: false,
            outputs: Vec::new(),
        }
    }
}

impl<C, T> Machine<C, T> {
    /// Takes in what happened and returns what to do.
    pub fn on(&mut self, input: Input<C, T>, now: Moment) -> Vec<Output<C, T>> {
        match input {
            Input::Acquire { attempt, on_busy, until, max_hold, caller } => {
                self.acquire(attempt, Wanted::new(on_busy, until, max_hold, caller, now), now);
            }
            Input::Abandon(owner) => self.abandon(owner, now),
            Input::Release { owner, lost, told } => self.release(owner, lost, told, now),
            Input::Forfeit(owner) => self.forfeit(owner),
            Input::Sent(request) => self.sent(request, now),
            Input::Answered { request, sent, reply } => self.answered(request, sent, reply, now),
            Input::Pushed(wakeup) => self.pushed(&wakeup, now),
            Input::Close => self.close(now),
            Input::Tick => self.tick(now),
        }
        std::mem::take(&mut self.outputs)
    }

    /// Returns when to come back with [`Input::Tick`].
    pub fn next(&self) -> Moment {
        self.entries.next()
    }

    /// Returns whether nothing is wanted, held, being released or leaving. Grants that are lost do not count.
    pub fn is_idle(&self) -> bool {
        self.entries.iter().all(|(_, entry)| entry.is_lost())
    }

    /// Returns whether this owner is waited for, held, or on its way out.
    pub fn knows(&self, owner: Owner) -> bool {
        self.entries.get(owner).is_some()
    }

    /// What is due soon leaves together, so that ten thousand leases are a handful of calls. Deadlines are looked at before
    /// anything is renewed.
    fn tick(&mut self, now: Moment) {
        if self.next() > now {
            return;
        }
        let horizon = |owner| now + self.entries.get(owner).map_or(Duration::ZERO, Entry::slack);
        let due = self.entries.in_order().take_while(|(at, _)| *at <= now);
        let last = due.map(|(_, owner)| horizon(owner)).max().unwrap_or(now);
        let near = self.entries.in_order().take_while(|(at, _)| *at <= last);
        let near = near.map(|(at, owner)| (owner, at, horizon(owner))).filter(|(_, at, by)| at <= by);
        let near: Vec<(Owner, Moment)> = near.map(|(owner, _, by)| (owner, by)).collect();
        for (owner, by) in near {
            match self.entries.get(owner).map(|entry| &entry.phase) {
                Some(Phase::Wanted(wanted)) if wanted.until <= now => self.wait_is_over(owner, now),
                Some(Phase::Held(held)) if held.ends() <= now => self.lease_is_over(owner, now),
                Some(_) => self.send_what_is_due_by(owner, by, now),
                None => {}
            }
        }
    }

    fn sent(&mut self, request: Request, now: Moment) {
        self.entries.change(request.owner, |entry| match &mut entry.phase {
            Phase::Wanted(wanted) if request.asked == Asked::Acquire => wanted.left(now),
            _ => {}
        });
    }

    fn answered(&mut self, request: Request, sent: Moment, reply: Result<Reply>, now: Moment) {
        let Request { owner, asked } = request;
        self.entries.change(owner, |entry| entry.in_flight.take_if(|unanswered| *unanswered == asked));
        match (self.entries.get(owner).map(|entry| &entry.phase), asked) {
            (Some(Phase::Wanted(_)), Asked::Acquire) => self.acquire_answered(owner, sent, reply, now),
            (Some(Phase::Wanted(_)), Asked::Check) => self.check_answered(owner, sent, reply, now),
            (Some(Phase::Leaving(_)), Asked::Leave) => self.leave_answered(owner, reply, now),
            (Some(Phase::Held(_)), Asked::Renew) => self.renew_answered(owner, sent, reply, now),
            (Some(Phase::Releasing(_)), Asked::Release) => self.release_answered(owner, reply, now),
            // Overtaken: for example a check that was in flight when the line was left. What is sent next tells the truth.
            _ => {}
        }
        self.send_what_is_due(owner, now);
    }

    fn pushed(&mut self, wakeup: &Wakeup, now: Moment) {
        match *wakeup {
            Wakeup::Granted { ref attempt, award } => {
                self.adopt_unknown(attempt, now);
                self.handed_over(attempt.owner, award, now);
            }
            Wakeup::Offered { ref attempt } => {
                self.adopt_unknown(attempt, now);
                self.turn(attempt.owner, now);
            }
            Wakeup::Check { owner } => self.turn(owner, now),
            Wakeup::Lost { owner, reason } => self.gone(owner, reason, now),
            Wakeup::CheckAll => {
                let owners: Vec<Owner> = self.entries.iter().map(|(owner, _)| owner).collect();
                for owner in owners {
                    self.entries.change(owner, |entry| entry.hurry(now));
                }
                self.tick(now);
            }
        }
    }

    fn gone(&mut self, owner: Owner, why: LostReason, now: Moment) {
        let was_held = self.entries.change(owner, |entry| match &mut entry.phase {
            Phase::Held(held) => held.lose(why),
            Phase::Wanted(wanted) => {
                wanted.gone = Some((now, why));
                false
            }
            Phase::Releasing(_) | Phase::Leaving(_) => false,
        });
        if was_held == Some(true) {
            self.outputs.push(Output::Lost(owner, why));
        }
    }

    fn close(&mut self, now: Moment) {
        self.is_closing = true;
        let owners: Vec<Owner> = self.entries.iter().map(|(owner, _)| owner).collect();
        for owner in owners {
            match self.entries.get(owner).map(|entry| &entry.phase) {
                Some(Phase::Wanted(wanted)) if wanted.caller.is_some() => {
                    self.refuse(owner, Verdict::Failed(Error::closed()), now);
                }
                // The storage has said that there is nothing to give back.
                Some(Phase::Held(Held { lost: Some(LostReason::NotHeld | LostReason::Broken), .. })) => {
                    self.over(owner, now);
                }
                Some(Phase::Held(Held { award, lost, .. })) => {
                    let (award, is_lost) = (*award, lost.is_some());
                    if !is_lost {
                        self.outputs.push(Output::Lost(owner, LostReason::Closed));
                    }
                    self.give_back(owner, award, None, now);
                }
                _ => self.send_what_is_due(owner, now),
            }
        }
    }

    /// Sends what is due about this owner, unless another request about it is in flight.
    fn send_what_is_due(&mut self, owner: Owner, now: Moment) {
        self.send_what_is_due_by(owner, now, now);
    }

    fn send_what_is_due_by(&mut self, owner: Owner, by: Moment, now: Moment) {
        let is_closing = self.is_closing;
        let sent = self.entries.change(owner, |entry| {
            let is_unanswered = entry.is_renewing();
            Some((entry.take_due(by, now, is_closing)?, is_unanswered))
        });
        if let Some(Some(((asked, op), is_unanswered))) = sent {
            if is_unanswered {
                self.outputs.push(Output::Renewal(owner, RenewalOutcome::Unanswered));
            }
            self.outputs.push(Output::Send(Request { owner, asked }, op));
        }
    }

    /// What there was of this owner is over. If a send of its acquire may still arrive, it would find the lock free: that is
    /// undone first.
    fn over(&mut self, owner: Owner, now: Moment) {
        if self.entries.get(owner).is_some_and(|entry| entry.is_doubtful) {
            self.leave(owner, now);
        } else {
            self.entries.remove(owner);
        }
    }
}
