//! What must be true at every moment, and at the end.

use std::collections::HashMap;

use fencepost_core::LockName;
use fencepost_core::clock::Moment;

use super::{Fate, Process, Simulation, TTL, start};

impl Simulation {
    /// At no time two callers believe that they hold the same lock.
    pub(super) fn check_beliefs(&self) -> Result<(), String> {
        let mut holders: HashMap<&LockName, usize> = HashMap::new();
        for process in self.processes.iter().filter(|process| !process.dead) {
            for (name, hold) in process.client.beliefs(process.clock.shows(self.now)) {
                if let Some(other) = holders.insert(name, hold.caller) {
                    let at = self.now.since(start());
                    return Err(format!("at {at:?} callers {other} and {} both hold {name:?}", hold.caller));
                }
            }
        }
        Ok(())
    }

    /// What stands in the storage and goes on is known to the client that it belongs to.
    pub(super) fn check_ghosts(&self) -> Result<(), String> {
        // A release that keeps failing is given up when the lease is about to end by itself.
        let leases = self.storage.leases().filter(|lease| lease.until > self.now + TTL / 6);
        let mut ghosts = leases.filter(|lease| {
            let process = &self.processes[lease.client];
            !process.dead && !process.client.knows(lease.owner)
        });
        match ghosts.next() {
            None => Ok(()),
            Some(ghost) => Err(format!("at {:?} nobody knows of {ghost:?}", self.now.since(start()))),
        }
    }

    pub(super) fn check_the_end(&mut self) -> Result<(), String> {
        if let Some(caller) = self.fates.iter().position(|fate| *fate == Fate::Waits) {
            return Err(format!("caller {caller} was never told anything"));
        }
        let alive = |process: &&Process| !process.dead;
        if let Some(at) = self.processes.iter().filter(alive).position(|process| !process.client.is_idle()) {
            return Err(format!("client {at} still has something to do"));
        }
        // What the dead and the late have left behind ends by itself, and costs nobody more than a lease.
        self.check_nothing_left(self.now + TTL)?;
        match self.storage.departures() {
            0 => Ok(()),
            left => Err(format!("{left} departures are remembered for ever")),
        }
    }

    fn check_nothing_left(&mut self, now: Moment) -> Result<(), String> {
        let left = self.storage.leftovers(now);
        if left.is_empty() { Ok(()) } else { Err(format!("something is left: {left:?}")) }
    }
}
