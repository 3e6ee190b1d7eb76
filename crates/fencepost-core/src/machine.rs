//! The state of a client's attempts and grants: one state machine without I/O. Its inputs are events, its outputs what to do
//! ([`Machine::on`]). The engine moves them; the simulation of the test kit drives the same machine.
//!
//! Every owner has one entry in one phase: acquiring (requested, or in the queue), held, releasing, or leaving (its ticket or grant
//! is undone). At most one request of an owner is unanswered, renewals excepted: a request that becomes due while another is in
//! flight is sent after the reply. Only a client that closes does not wait.
//!
//! `C` is the receiver of an acquire's outcome, `T` that of a release; the machine returns them with its outputs and never
//! inspects them.

mod acquire;
mod acquiring;
mod entry;
mod held;
mod leaving;
mod releasing;
#[cfg(test)]
mod tests;

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

pub use self::acquiring::AcquireOutcome;
pub use self::held::RenewalOutcome;

use self::acquiring::Acquiring;
use self::entry::{Entry, Phase};
use self::held::Held;
use crate::backend::{OnBusy, Op, Reply, Wakeup};
use crate::clock::Moment;
use crate::delay_queue::DelayQueue;
use crate::error::{Error, Result};
use crate::grant::{Attempt, LostReason};
use crate::token::Owner;

/// A request to the backend, identified by its owner and kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Request {
    /// The owner.
    pub owner: Owner,
    /// The kind of request.
    pub kind: RequestKind,
}

/// The operation of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RequestKind {
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

/// An event.
#[derive(Debug)]
pub enum Input<C, T> {
    /// A caller acquires a lock. From now on it refers to the attempt by this owner.
    Acquire {
        /// The attempt.
        attempt: Arc<Attempt>,
        /// Whether to wait in the queue.
        on_busy: OnBusy,
        /// When the wait ends.
        until: Moment,
        /// The longest time to hold the lock.
        max_hold: Option<Duration>,
        /// The receiver of the outcome.
        caller: C,
    },
    /// The caller of this attempt was dropped.
    Abandon(Owner),
    /// The guard of this grant was dropped or released.
    Release {
        /// The grant's owner.
        owner: Owner,
        /// Why the guard was lost before, if it was.
        lost: Option<LostReason>,
        /// The receiver of the outcome.
        responder: Option<T>,
    },
    /// The guard has seen its deadline pass before the machine did: the grant is no longer renewed.
    Forfeit(Owner),
    /// The request of an [`Output::Send`] is sent now.
    Sent(Request),
    /// The backend has replied to a request that was sent at `sent`, or the request was given up.
    Replied {
        /// The request.
        request: Request,
        /// When it was sent.
        sent: Moment,
        /// The reply.
        reply: Result<Reply>,
    },
    /// The backend has pushed a wake-up.
    Pushed(Wakeup),
    /// The client closes: new attempts are rejected and grants released.
    Close,
    /// Time has passed; see [`Machine::next_due`].
    Tick,
}

/// What to do.
#[derive(Debug)]
pub enum Output<C, T> {
    /// Send this operation, and report when it is sent and when its reply arrives.
    Send(Request, Op),
    /// Report the outcome to the caller of an attempt.
    Outcome(C, AcquireOutcome),
    /// Report the outcome of a renewal to the guard.
    Renewal(Owner, RenewalOutcome),
    /// Tell the guard that the lock is lost.
    Lost(Owner, LostReason),
    /// Report the outcome to the caller of a release.
    Released(T, Result<()>),
}

/// The attempts and grants of one client.
#[derive(Debug)]
pub struct Machine<C, T> {
    entries: DelayQueue<Owner, Entry<C, T>>,
    /// The current owner of attempts that continue under another owner than the one their callers refer to.
    current_owners: HashMap<Owner, Owner>,
    is_closing: bool,
    outputs: Vec<Output<C, T>>,
}

impl<C, T> Default for Machine<C, T> {
    fn default() -> Self {
        Self {
            entries: DelayQueue::default(),
            current_owners: HashMap::new(),
            is_closing: false,
            outputs: Vec::new(),
        }
    }
}

impl<C, T> Machine<C, T> {
    /// Processes an event and returns what to do.
    pub fn on(&mut self, input: Input<C, T>, now: Moment) -> Vec<Output<C, T>> {
        match input {
            Input::Acquire { attempt, on_busy, until, max_hold, caller } => {
                self.acquire(attempt, Acquiring::new(on_busy, until, max_hold, caller, now), now);
            }
            Input::Abandon(owner) => self.abandon(owner, now),
            Input::Release { owner, lost, responder } => self.release(owner, lost, responder, now),
            Input::Forfeit(owner) => self.forfeit(owner),
            Input::Sent(request) => self.sent(request, now),
            Input::Replied { request, sent, reply } => self.on_reply(request, sent, reply, now),
            Input::Pushed(wakeup) => self.on_push(&wakeup, now),
            Input::Close => self.close(now),
            Input::Tick => self.tick(now),
        }
        std::mem::take(&mut self.outputs)
    }

    /// Returns when [`Input::Tick`] is due.
    pub fn next_due(&self) -> Moment {
        self.entries.next_due()
    }

    /// Returns whether no owner is acquiring, held, releasing or leaving. Lost grants do not count.
    pub fn is_idle(&self) -> bool {
        self.entries.iter().all(|(_, entry)| entry.is_lost())
    }

    /// Returns whether this owner has an entry.
    pub fn contains(&self, owner: Owner) -> bool {
        self.entries.get(owner).is_some()
    }

    /// Requests that are due soon are sent together, so that ten thousand leases need a handful of calls. Deadlines are checked
    /// before anything is renewed.
    fn tick(&mut self, now: Moment) {
        if self.next_due() > now {
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
                Some(Phase::Acquiring(acquiring)) if acquiring.until <= now => {
                    self.on_wait_timeout(owner, now);
                }
                Some(Phase::Held(held)) if held.ends() <= now => self.on_lease_end(owner, now),
                Some(_) => self.send_due_by(owner, by, now),
                None => {}
            }
        }
    }

    fn sent(&mut self, request: Request, now: Moment) {
        self.entries.change(request.owner, |entry| match &mut entry.phase {
            Phase::Acquiring(acquiring) if request.kind == RequestKind::Acquire => acquiring.mark_sent(now),
            _ => {}
        });
    }

    fn on_reply(&mut self, request: Request, sent: Moment, reply: Result<Reply>, now: Moment) {
        let Request { owner, kind } = request;
        self.entries.change(owner, |entry| entry.in_flight.take_if(|unanswered| *unanswered == kind));
        match (self.entries.get(owner).map(|entry| &entry.phase), kind) {
            (Some(Phase::Acquiring(_)), RequestKind::Acquire) => {
                self.on_acquire_reply(owner, sent, reply, now);
            }
            (Some(Phase::Acquiring(_)), RequestKind::Check) => self.on_check_reply(owner, sent, reply, now),
            (Some(Phase::Leaving(_)), RequestKind::Leave) => self.on_leave_reply(owner, reply, now),
            (Some(Phase::Held(_)), RequestKind::Renew) => self.on_renew_reply(owner, sent, reply, now),
            (Some(Phase::Releasing(_)), RequestKind::Release) => self.on_release_reply(owner, reply, now),
            // Superseded, for example a check that was in flight when the attempt left the queue. The next reply counts.
            _ => {}
        }
        self.send_due(owner, now);
    }

    fn on_push(&mut self, wakeup: &Wakeup, now: Moment) {
        match *wakeup {
            Wakeup::Granted { ref attempt, award } => {
                self.adopt_unknown(attempt, now);
                self.on_pushed_grant(attempt.owner, award, now);
            }
            Wakeup::Offered { ref attempt } => {
                self.adopt_unknown(attempt, now);
                self.check_now(attempt.owner, now);
            }
            Wakeup::Check { owner } => self.check_now(owner, now),
            Wakeup::Lost { owner, reason } => self.on_lost(owner, reason, now),
            Wakeup::CheckAll => {
                let owners: Vec<Owner> = self.entries.iter().map(|(owner, _)| owner).collect();
                for owner in owners {
                    self.entries.change(owner, |entry| entry.make_due(now));
                }
                self.tick(now);
            }
        }
    }

    fn on_lost(&mut self, owner: Owner, reason: LostReason, now: Moment) {
        let was_held = self.entries.change(owner, |entry| match &mut entry.phase {
            Phase::Held(held) => held.lose(reason),
            Phase::Acquiring(acquiring) => {
                acquiring.reported_lost = Some((now, reason));
                false
            }
            Phase::Releasing(_) | Phase::Leaving(_) => false,
        });
        if was_held == Some(true) {
            self.outputs.push(Output::Lost(owner, reason));
        }
    }

    fn close(&mut self, now: Moment) {
        self.is_closing = true;
        let owners: Vec<Owner> = self.entries.iter().map(|(owner, _)| owner).collect();
        for owner in owners {
            match self.entries.get(owner).map(|entry| &entry.phase) {
                Some(Phase::Acquiring(acquiring)) if acquiring.caller.is_some() => {
                    self.finish_and_undo(owner, AcquireOutcome::Failed(Error::closed()), now);
                }
                // The backend has reported that there is nothing to release.
                Some(Phase::Held(Held { lost: Some(LostReason::NotHeld | LostReason::Broken), .. })) => {
                    self.remove_or_undo(owner, now);
                }
                Some(Phase::Held(Held { award, lost, .. })) => {
                    let (award, is_lost) = (*award, lost.is_some());
                    if !is_lost {
                        self.outputs.push(Output::Lost(owner, LostReason::Closed));
                    }
                    self.release_award(owner, award, None, now);
                }
                _ => self.send_due(owner, now),
            }
        }
    }

    /// Sends the request of this owner that is due, unless another one is in flight.
    fn send_due(&mut self, owner: Owner, now: Moment) {
        self.send_due_by(owner, now, now);
    }

    fn send_due_by(&mut self, owner: Owner, by: Moment, now: Moment) {
        let is_closing = self.is_closing;
        let sent = self.entries.change(owner, |entry| {
            let is_unanswered = entry.is_renewing();
            Some((entry.take_due(by, now, is_closing)?, is_unanswered))
        });
        if let Some(Some(((kind, op), is_unanswered))) = sent {
            if is_unanswered {
                self.outputs.push(Output::Renewal(owner, RenewalOutcome::Unanswered));
            }
            self.outputs.push(Output::Send(Request { owner, kind }, op));
        }
    }

    /// Removes the entry. If a send of its acquire may still arrive, it would find the lock free: then a leave is sent first.
    fn remove_or_undo(&mut self, owner: Owner, now: Moment) {
        if self.entries.get(owner).is_some_and(|entry| entry.outcome_unknown) {
            self.leave(owner, now);
        } else {
            self.entries.remove(owner);
        }
    }
}
