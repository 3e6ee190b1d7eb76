//! What must be true at every moment, and at the end.

use std::collections::HashMap;

use fencepost_core::backend::Reply;
use fencepost_core::clock::Moment;
use fencepost_core::machine::{Request, RequestKind};
use fencepost_core::{LockName, Mode};

use super::{CallerState, MAX_HOLD, Process, Simulation, TTL, start};

impl Simulation {
    /// No two callers consider the same lock held in modes that exclude each other. Broken grants do not count: their
    /// holders learn of it later.
    pub(super) fn check_beliefs(&self) -> Result<(), String> {
        let mut holders: HashMap<&LockName, Vec<(Mode, usize)>> = HashMap::new();
        for process in self.processes.iter().filter(|process| !process.is_dead) {
            for (want, guard) in process.beliefs(process.clock.shows(self.now)) {
                if !self.broken.contains(&guard.grant.attempt.owner) {
                    holders.entry(&want.name).or_default().push((want.mode, guard.caller));
                }
            }
        }
        for (name, holders) in holders {
            if !may_hold_together(&holders) {
                let at = self.now.since(start());
                return Err(format!("at {at:?} these callers hold {name:?} together: {holders:?}"));
            }
        }
        Ok(())
    }

    /// No caller holds a lock for longer than its limit.
    pub(super) fn check_max_hold(&self) -> Result<(), String> {
        for process in self.processes.iter().filter(|process| !process.is_dead) {
            if let Some(guard) = process.held_too_long(process.clock.shows(self.now), MAX_HOLD) {
                return Err(format!("caller {} holds {:?} for too long", guard.caller, guard.grant.attempt));
            }
        }
        Ok(())
    }

    /// Every entry that is kept in the backend is known to the client that it belongs to.
    pub(super) fn check_orphans(&self) -> Result<(), String> {
        // A release that keeps failing is given up when the lease is about to expire.
        let leases = self.backend.leases().filter(|lease| lease.until > self.now + TTL / 6);
        let mut orphans = leases.filter(|lease| {
            let process = &self.processes[lease.client];
            !process.is_dead && !process.knows(lease.owner)
        });
        match orphans.next() {
            None => Ok(()),
            Some(orphan) => {
                Err(format!("at {:?} its client does not know of {orphan:?}", self.now.since(start())))
            }
        }
    }

    /// An acquire that arrives after its client has given up its owner does nothing, for as long as the tombstone is kept.
    pub(super) fn check_defeated(
        &self,
        from: usize,
        request: Request,
        reply: &fencepost_core::Result<Reply>,
    ) -> Result<(), String> {
        let process = &self.processes[from];
        let is_given_up = !process.is_dead && !process.knows(request.owner);
        let has_effect = matches!(reply, Ok(Reply::Granted(_) | Reply::Waiting { .. }));
        if self.conditions.late_by <= TTL && request.kind == RequestKind::Acquire && is_given_up && has_effect
        {
            return Err(format!("an acquire that was given up was answered with {reply:?}"));
        }
        Ok(())
    }

    pub(super) fn check_the_end(&mut self) -> Result<(), String> {
        if let Some(caller) =
            self.callers.iter().position(|caller_state| *caller_state == CallerState::Waiting)
        {
            return Err(format!("caller {caller} got no outcome"));
        }
        let alive = |process: &&Process| !process.is_dead;
        if let Some(at) = self.processes.iter().filter(alive).position(|process| !process.is_idle()) {
            return Err(format!("client {at} still has something to do"));
        }
        // What dead processes and late requests have left behind expires, after one lease at most.
        self.check_nothing_left(self.now + TTL)?;
        match self.backend.tombstones() {
            0 => Ok(()),
            left => Err(format!("{left} tombstones are kept for ever")),
        }
    }

    fn check_nothing_left(&mut self, now: Moment) -> Result<(), String> {
        let left = self.backend.remaining(now);
        if left.is_empty() { Ok(()) } else { Err(format!("something is left: {left:?}")) }
    }
}

/// Returns whether all of these may hold one lock at the same time.
fn may_hold_together(holders: &[(Mode, usize)]) -> bool {
    holders.iter().enumerate().all(|(at, (mode, _))| {
        let has_room = match mode {
            Mode::Semaphore { permits } => u32::try_from(holders.len()).is_ok_and(|count| count <= *permits),
            _ => true,
        };
        has_room && holders[..at].iter().all(|(other, _)| mode.is_compatible_with(*other))
    })
}
