//! Whose turn it is: which waiters are first in all their lines, what a release hands on, and when a turn may come.

use std::ops::Range;
use std::time::Duration;

use super::step::Step;
use super::{Context, Decision, Needs};
use crate::backend::Wakeup;
use crate::clock::StorageTime;
use crate::grant::{Attempt, Mode, Rule, Want};
use crate::name::LockName;
use crate::record::Ticket;
use crate::token::Owner;

/// How many of the waiters ahead count for the time of a turn.
const LOOK_AHEAD: usize = 16;
/// The shortest time until a turn: a waiter is never told to look again now.
const SHORTEST_TURN: Duration = Duration::from_millis(1);

impl Step<'_, '_> {
    /// Ends everything that has ended in this line, also behind a head that lives.
    pub(super) fn sweep(&mut self, name: &LockName) -> Decision<()> {
        self.need([name].into_iter())?;
        let places: Vec<_> = self.places(name, 0..u64::MAX).collect::<Decision<_>>()?;
        for (_, owner) in places {
            if let Some(over) = self.ticket(owner).filter(|ticket| ticket.until <= self.now).cloned() {
                self.remove_ticket(&over)?;
            }
        }
        self.settle(vec![name.clone()])
    }

    /// Ends what has ended in these lines and hands on what is free, and so in the lines that become free by it: any operation is
    /// a claim for the first in line.
    pub(super) fn settle(&mut self, mut names: Vec<LockName>) -> Decision<()> {
        while let Some(name) = names.pop() {
            self.expire(&name);
            let mut from = 0;
            while let Some((seq, ticket)) = self.next_in_line(&name, from)? {
                from = seq;
                if ticket.until <= self.now {
                    self.remove_ticket(&ticket)?;
                } else {
                    let Some(chosen) = self.turn_of(&ticket, &name)? else { break };
                    self.hand_over(&ticket, chosen)?;
                }
                let others =
                    ticket.attempt.wants.iter().map(|want| &want.name).filter(|other| **other != name);
                names.extend(others.cloned());
            }
        }
        Ok(())
    }

    /// Returns the first ticket from this place on that is over or can be reached. The others are passed over, even if they are
    /// first: they keep their places and block no other waiter.
    fn next_in_line(&self, name: &LockName, from: u64) -> Decision<Option<(u64, Ticket)>> {
        for place in self.places(name, from..u64::MAX) {
            let (seq, owner) = place?;
            let ticket = self.ticket(owner);
            if let Some(ticket) =
                ticket.filter(|ticket| ticket.until <= self.now || self.is_reachable(ticket))
            {
                return Ok(Some((seq, ticket.clone())));
            }
        }
        Ok(None)
    }

    fn hand_over(&mut self, ticket: &Ticket, chosen: usize) -> Decision<()> {
        self.remove_ticket(ticket)?;
        let attempt = ticket.attempt.clone();
        let award = self.grant(&attempt, ticket.client, chosen)?;
        self.table.pushes.push((ticket.client, Wakeup::Granted { attempt, award }));
        Ok(())
    }

    /// Returns which wants of this ticket, which is the first in the line of `name`, may be granted, if any: 0 for all.
    fn turn_of(&mut self, ticket: &Ticket, name: &LockName) -> Decision<Option<usize>> {
        let Attempt { wants, rule, .. } = &*ticket.attempt;
        let here = wants.iter().position(|want| want.name == *name);
        let here = here.filter(|here| self.line(name).admits(wants[*here].mode));
        if *rule == Rule::Any || here.is_none() {
            return Ok(here);
        }
        self.need(wants.iter().map(|want| &want.name))?;
        for want in wants {
            self.expire(&want.name);
            if !self.is_free(want, ticket.seq)? {
                return Ok(None);
            }
        }
        Ok(Some(0))
    }

    /// Returns which of the wants, or 0 for all, may be granted without overtaking a waiter.
    pub(super) fn free_for(&self, attempt: &Attempt) -> Decision<Option<usize>> {
        let free = attempt.wants.iter().map(|want| self.is_free(want, u64::MAX));
        let free: Vec<bool> = free.collect::<Decision<_>>()?;
        Ok(match attempt.rule {
            Rule::All => free.iter().all(|free| *free).then_some(0),
            Rule::Any => free.iter().position(|free| *free),
        })
    }

    /// Returns whether a lock has room, and no waiter that is present stands before this place.
    fn is_free(&self, want: &Want, place: u64) -> Decision<bool> {
        if !self.line(&want.name).admits(want.mode) {
            return Ok(false);
        }
        for ahead in self.places(&want.name, 0..place) {
            if self
                .ticket(ahead?.1)
                .is_some_and(|ticket| ticket.until > self.now && self.is_reachable(ticket))
            {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Returns when all leases ahead will have ended, should none be renewed.
    pub(super) fn check_after(&self, attempt: &Attempt, place: u64) -> Decision<Duration> {
        let ends = attempt.wants.iter().map(|want| self.last_end(want, place));
        let ends: Vec<Option<StorageTime>> = ends.collect::<Decision<_>>()?;
        let ends = ends.into_iter().flatten();
        let turn = match attempt.rule {
            Rule::All => ends.max(),
            Rule::Any => ends.min(),
        };
        Ok(turn.unwrap_or(self.now).since(self.now).max(SHORTEST_TURN))
    }

    fn last_end(&self, want: &Want, place: u64) -> Decision<Option<StorageTime>> {
        let holders = &self.line(&want.name).holders;
        let mut last = match want.mode {
            // One slot that becomes free is enough.
            Mode::Semaphore { .. } => holders.first_end().map(|(end, _)| end),
            Mode::Exclusive | Mode::Shared => holders.last_end(),
        };
        for ahead in self.places(&want.name, 0..place).take(LOOK_AHEAD) {
            last = last.max(self.ticket(ahead?.1).map(|ticket| ticket.until));
        }
        Ok(last)
    }

    /// Returns the modes that this lock is used in: that of its holders, and that of the first waiter.
    pub(super) fn modes_of(&self, name: &LockName) -> Decision<Vec<Mode>> {
        let first = self.places(name, 0..u64::MAX).next().transpose()?;
        let wants = first.and_then(|(_, owner)| self.ticket(owner)).map(|ticket| &ticket.attempt.wants);
        let waiting = wants.into_iter().flatten().find(|want| want.name == *name).map(|want| want.mode);
        let held = self.line(name).holders.any().map(|holder| holder.mode);
        Ok(held.into_iter().chain(waiting).collect())
    }

    /// Iterates over the places in this range; needs the whole line where the part that was fetched ends.
    fn places(&self, name: &LockName, places: Range<u64>) -> impl Iterator<Item = Decision<(u64, Owner)>> {
        let line = self.line(name);
        line.places(places).map(|place| place.ok_or_else(|| Needs::Lines(vec![name.clone()])))
    }

    fn ticket(&self, owner: Owner) -> Option<&Ticket> {
        self.table.tickets.get(&owner)
    }

    fn is_reachable(&self, ticket: &Ticket) -> bool {
        let Context { client, reachable, .. } = &*self.context;
        let mut probed = self.probed.borrow_mut();
        ticket.client == *client || *probed.entry(ticket.client).or_insert_with(|| reachable(ticket.client))
    }
}
