//! One process: the machine of its client, the guards of its callers, and its own clock.

use std::collections::{HashMap, HashSet};
use std::time::Duration;

use fencepost_core::backend::Op;
use fencepost_core::clock::Moment;
use fencepost_core::machine::{Asked, Input, Machine, Output, RenewalOutcome, Request, Verdict};
use fencepost_core::{Grant, LostReason, Owner, Want};

use super::skewed_clock::SkewedClock;

/// What a caller holds, as its guard shows it.
pub(super) struct Guard {
    pub(super) caller: usize,
    pub(super) grant: Grant,
    valid_until: Moment,
    hold_until: Moment,
    lost: Option<LostReason>,
}

impl Guard {
    /// Whether the caller believes that it holds the lock at this moment of its clock.
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
    /// What it sends until then gets lost.
    pub(super) cut_until: Option<Moment>,
    pub(super) stopped_until: Option<Moment>,
    pub(super) is_dead: bool,
    /// Requests that were neither answered nor given up.
    pub(super) open: HashSet<u64>,
    /// The owners of the attempts, as their callers know them.
    pub(super) attempts: HashMap<usize, Owner>,
    /// What is to be sent.
    pub(super) outbox: Vec<(Request, Op)>,
    /// What callers were told.
    pub(super) verdicts: Vec<(usize, bool)>,
}

impl Process {
    pub(super) fn new(clock: SkewedClock) -> Self {
        Self { clock, ..Self::default() }
    }

    /// Carries what happened to the machine, and what it wants to the outbox, the callers and the guards.
    pub(super) fn feed(&mut self, input: Input<usize, usize>, now: Moment) {
        for output in self.machine.on(input, now) {
            match output {
                Output::Send(request, op) => self.outbox.push((request, op)),
                Output::Verdict(caller, Verdict::Granted { grant, valid_until, hold_until }) => {
                    let owner = grant.attempt.owner;
                    self.guards.insert(owner, Guard { caller, grant, valid_until, hold_until, lost: None });
                    self.verdicts.push((caller, true));
                }
                Output::Verdict(caller, _) => self.verdicts.push((caller, false)),
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
            self.feed(Input::Release { owner, lost: guard.lost, told: Some(caller) }, now);
        }
    }

    /// What callers of this process believe they hold.
    pub(super) fn beliefs(&self, now: Moment) -> impl Iterator<Item = (&Want, &Guard)> {
        let valid = self.guards.values().filter(move |guard| guard.is_valid(now));
        valid.flat_map(|guard| guard.grant.held().iter().map(move |want| (want, guard)))
    }

    /// A guard that is valid for longer than its caller may hold the lock, from now on.
    pub(super) fn held_too_long(&self, now: Moment, longest: Duration) -> Option<&Guard> {
        let is_bounded = |guard: &&Guard| guard.hold_until != Moment::NEVER && guard.is_valid(now);
        let mut bounded = self.guards.values().filter(is_bounded);
        bounded.find(|guard| guard.valid_until > guard.hold_until || guard.hold_until > now + longest)
    }

    /// A grant that its guard has shown as lost and that is renewed all the same: it would block the lock.
    pub(super) fn renews_what_is_lost(&self) -> bool {
        let is_lost = |owner| self.guards.get(owner).is_some_and(|guard| guard.lost.is_some());
        self.outbox.iter().any(|(request, _)| request.asked == Asked::Renew && is_lost(&request.owner))
    }

    pub(super) fn knows(&self, owner: Owner) -> bool {
        self.machine.knows(owner)
    }

    pub(super) fn is_idle(&self) -> bool {
        self.machine.is_idle()
    }

    pub(super) fn next(&self) -> Moment {
        self.machine.next()
    }
}
