//! The queue: which waiter is granted next, and when a waiter should check again.

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

/// The number of waiters ahead whose leases count for the time of the next check.
const LOOK_AHEAD: usize = 16;
/// The least time until the next check: a waiter is never told to check at once.
const MIN_CHECK_AFTER: Duration = Duration::from_millis(1);

impl Step<'_, '_> {
    /// Removes everything that has expired from this record, also behind a live first waiter.
    pub(super) fn sweep(&mut self, name: &LockName) -> Decision<()> {
        self.need([name].into_iter())?;
        let positions: Vec<_> = self.positions(name, 0..u64::MAX).collect::<Decision<_>>()?;
        for (_, owner) in positions {
            if let Some(over) = self.ticket(owner).filter(|ticket| ticket.until <= self.now).cloned() {
                self.remove_ticket(&over)?;
            }
        }
        self.grant_waiters(vec![name.clone()])
    }

    /// Removes what has expired from these records and grants what is free, also in records that become free by it: every
    /// operation serves the first waiter.
    pub(super) fn grant_waiters(&mut self, mut names: Vec<LockName>) -> Decision<()> {
        while let Some(name) = names.pop() {
            self.expire(&name);
            let mut from = 0;
            while let Some((seq, ticket)) = self.next_waiter(&name, from)? {
                from = seq;
                if ticket.until <= self.now {
                    self.remove_ticket(&ticket)?;
                } else {
                    let Some(chosen) = self.grantable(&ticket, &name)? else { break };
                    self.hand_over(&ticket, chosen)?;
                }
                let others =
                    ticket.attempt.wants.iter().map(|want| &want.name).filter(|other| **other != name);
                names.extend(others.cloned());
            }
        }
        Ok(())
    }

    /// Returns the first ticket from this position on that has expired or is reachable. The others are passed over, even if they
    /// are first: they keep their positions and block no other waiter.
    fn next_waiter(&self, name: &LockName, from: u64) -> Decision<Option<(u64, Ticket)>> {
        for position in self.positions(name, from..u64::MAX) {
            let (seq, owner) = position?;
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

    /// Returns which want of this ticket, the first in the queue of `name`, can be granted, if any: 0 for all.
    fn grantable(&mut self, ticket: &Ticket, name: &LockName) -> Decision<Option<usize>> {
        let Attempt { wants, rule, .. } = &*ticket.attempt;
        let here = wants.iter().position(|want| want.name == *name);
        let here = here.filter(|here| self.record(name).admits(wants[*here].mode));
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

    /// Returns which want, or 0 for all, can be granted without overtaking a waiter.
    pub(super) fn free_for(&self, attempt: &Attempt) -> Decision<Option<usize>> {
        let free = attempt.wants.iter().map(|want| self.is_free(want, u64::MAX));
        let free: Vec<bool> = free.collect::<Decision<_>>()?;
        Ok(match attempt.rule {
            Rule::All => free.iter().all(|free| *free).then_some(0),
            Rule::Any => free.iter().position(|free| *free),
        })
    }

    /// Returns whether a lock admits this mode and has no live, reachable waiter before this position.
    fn is_free(&self, want: &Want, position: u64) -> Decision<bool> {
        if !self.record(&want.name).admits(want.mode) {
            return Ok(false);
        }
        for ahead in self.positions(&want.name, 0..position) {
            if self
                .ticket(ahead?.1)
                .is_some_and(|ticket| ticket.until > self.now && self.is_reachable(ticket))
            {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Returns the time until the lock may be free for this attempt, if no lease ahead is renewed.
    pub(super) fn check_after(&self, attempt: &Attempt, position: u64) -> Decision<Duration> {
        let ends = attempt.wants.iter().map(|want| self.last_end(want, position));
        let ends: Vec<Option<StorageTime>> = ends.collect::<Decision<_>>()?;
        let ends = ends.into_iter().flatten();
        let ends_at = match attempt.rule {
            Rule::All => ends.max(),
            Rule::Any => ends.min(),
        };
        Ok(ends_at.unwrap_or(self.now).since(self.now).max(MIN_CHECK_AFTER))
    }

    fn last_end(&self, want: &Want, position: u64) -> Decision<Option<StorageTime>> {
        let holders = &self.record(&want.name).holders;
        let mut last = match want.mode {
            // One free permit is enough.
            Mode::Semaphore { .. } => holders.first_end().map(|(end, _)| end),
            Mode::Exclusive | Mode::Shared => holders.last_end(),
        };
        for ahead in self.positions(&want.name, 0..position).take(LOOK_AHEAD) {
            last = last.max(self.ticket(ahead?.1).map(|ticket| ticket.until));
        }
        Ok(last)
    }

    /// Returns the modes in which this lock is used: that of its holders, and that of the first waiter.
    pub(super) fn modes_of(&self, name: &LockName) -> Decision<Vec<Mode>> {
        let first = self.positions(name, 0..u64::MAX).next().transpose()?;
        let wants = first.and_then(|(_, owner)| self.ticket(owner)).map(|ticket| &ticket.attempt.wants);
        let waiting = wants.into_iter().flatten().find(|want| want.name == *name).map(|want| want.mode);
        let held = self.record(name).holders.any().map(|holder| holder.mode);
        Ok(held.into_iter().chain(waiting).collect())
    }

    /// Iterates over the positions in this range; needs the whole record where the fetched part ends.
    fn positions(
        &self,
        name: &LockName,
        positions: Range<u64>,
    ) -> impl Iterator<Item = Decision<(u64, Owner)>> {
        let record = self.record(name);
        record.positions(positions).map(|position| position.ok_or_else(|| Needs::Records(vec![name.clone()])))
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
