//! One process: the machine of its client, the guards of its callers, and its own clock.

use std::collections::{HashMap, HashSet};
use std::time::Duration;

use fencepost_core::backend::Op;
use fencepost_core::clock::Moment;
use fencepost_core::machine::{AcquireOutcome, Input, Machine, Output, RenewalOutcome, Request, RequestKind};
use fencepost_core::{Grant, LostReason, Owner, Want};

use super::skewed_clock::SkewedClock;

/// What a caller holds, as its guard reports it.
pub(super) struct Guard {
    pub(super) caller: usize,
    pub(super) grant: Grant,
    valid_until: Moment,
    hold_until: Moment,
    lost: Option<LostReason>,
}

impl Guard {
    /// Returns whether the guard is valid at this moment of its clock.
    fn is_valid(&self, now: Moment) -> bool {
        self.lost.is_none() && self.valid_until > now
    }
}

#[derive(Default)]
pub(super) struct Process {
    machine: Machine<usize, usize>,
    guards: HashMap<Owner, Guard>,
    pub(super) clock: SkewedClock,
    pub(super) next_tick: Option<Moment>,
    /// What it sends until then is lost.
    pub(super) cut_until: Option<Moment>,
    pub(super) paused_until: Option<Moment>,
    pub(super) is_dead: bool,
    /// Requests without a reply that were not given up.
    pub(super) open: HashMap<u64, Request>,
    is_closing: bool,
    /// A caller that was given a grant after its deadline.
    too_late: Option<usize>,
    /// The owners of the attempts, as their callers know them.
    pub(super) attempts: HashMap<usize, Owner>,
    /// The operations to send.
    pub(super) outbox: Vec<(Request, Op)>,
    /// The outcomes for callers.
    pub(super) outcomes: Vec<(usize, bool)>,
}

impl Process {
    pub(super) fn new(clock: SkewedClock) -> Self {
        Self { clock, ..Self::default() }
    }

    /// Passes an input to the machine, and its outputs to the outbox, the callers and the guards.
    pub(super) fn feed(&mut self, input: Input<usize, usize>, now: Moment) {
        self.is_closing |= matches!(input, Input::Close);
        for output in self.machine.on(input, now) {
            match output {
                Output::Send(request, op) => self.outbox.push((request, op)),
                Output::Outcome(caller, AcquireOutcome::Granted { grant, valid_until, hold_until }) => {
                    let owner = grant.attempt.owner;
                    self.too_late = (valid_until <= now).then_some(caller);
                    self.guards.insert(owner, Guard { caller, grant, valid_until, hold_until, lost: None });
                    self.outcomes.push((caller, true));
                }
                Output::Outcome(caller, _) => self.outcomes.push((caller, false)),
                Output::Renewal(owner, RenewalOutcome::Done(until)) => {
                    if let Some(guard) = self.guards.get_mut(&owner) {
                        guard.valid_until = until;
                    }
                }
                Output::Lost(owner, why) => {
                    if let Some(guard) = self.guards.get_mut(&owner) {
                        guard.lost.get_or_insert(why);
                    }
                }
                Output::Renewal(..) | Output::Released(..) => {}
            }
        }
    }

    pub(super) fn release(&mut self, caller: usize, now: Moment) {
        let owner = self.guards.iter().find(|(_, guard)| guard.caller == caller).map(|(owner, _)| *owner);
        if let Some(guard) = owner.and_then(|owner| self.guards.remove(&owner)) {
            let owner = guard.grant.attempt.owner;
            self.feed(Input::Release { owner, lost: guard.lost, responder: Some(caller) }, now);
        }
    }

    /// The valid guards of this process.
    pub(super) fn beliefs(&self, now: Moment) -> impl Iterator<Item = (&Want, &Guard)> {
        let valid = self.guards.values().filter(move |guard| guard.is_valid(now));
        valid.flat_map(|guard| guard.grant.held().iter().map(move |want| (want, guard)))
    }

    /// A guard that is valid for longer than its caller may hold the lock.
    pub(super) fn held_too_long(&self, now: Moment, longest: Duration) -> Option<&Guard> {
        let is_bounded = |guard: &&Guard| guard.hold_until != Moment::NEVER && guard.is_valid(now);
        let mut bounded = self.guards.values().filter(is_bounded);
        bounded.find(|guard| guard.valid_until > guard.hold_until || guard.hold_until > now + longest)
    }

    /// A rule that the machine has just broken.
    pub(super) fn complaint(&self, now: Moment) -> Option<String> {
        let is_over = |owner| self.guards.get(owner).is_some_and(|guard| !guard.is_valid(now));
        let late = self
            .outbox
            .iter()
            .find(|(request, _)| request.kind == RequestKind::Renew && is_over(&request.owner));
        let late =
            late.map(|(request, _)| format!("{:?} is renewed although its lease is over", request.owner));
        late.or_else(|| {
            self.too_late.map(|caller| format!("caller {caller} is shown a grant whose lease is over"))
        })
        .or_else(|| self.second_request())
    }

    /// At most one request about an owner has no reply, renewals apart, unless the client closes.
    fn second_request(&self) -> Option<String> {
        let is_counted = |request: &&Request| request.kind != RequestKind::Renew;
        let mut unanswered: HashSet<Owner> =
            self.open.values().filter(is_counted).map(|open| open.owner).collect();
        let mut sent = self.outbox.iter().map(|(request, _)| request).filter(is_counted);
        let second = sent.find(|request| !unanswered.insert(request.owner)).filter(|_| !self.is_closing);
        second.map(|second| format!("{second:?} is sent while another request is unanswered"))
    }

    pub(super) fn knows(&self, owner: Owner) -> bool {
        self.machine.contains(owner)
    }

    pub(super) fn is_idle(&self) -> bool {
        self.machine.is_idle()
    }

    pub(super) fn next(&self) -> Moment {
        self.machine.next_due()
    }
}
