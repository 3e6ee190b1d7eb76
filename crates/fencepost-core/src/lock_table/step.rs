//! The decision of one operation: what the owner has already, what is granted, what is removed.

use std::cell::RefCell;
use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use super::changes::Change;
use super::{Context, Decision, LockTable, Needs};
use crate::backend::{Cell, Keep, OnBusy, Op, Reply, Wakeup};
use crate::clock::StorageTime;
use crate::error::Result;
use crate::grant::{Attempt, Award, Grant, LostReason, Rule, Want};
use crate::name::LockName;
use crate::record::{ClientId, Holder, LockRecord, StoredCell, Ticket};
use crate::token::{FencingToken, Owner};

/// The decision of one operation.
pub(super) struct Step<'a, 'c> {
    pub(super) table: &'a mut LockTable,
    pub(super) context: &'a mut Context<'c>,
    pub(super) now: StorageTime,
    /// Which clients are reachable: a process that died with many waiters is probed once.
    pub(super) probed: RefCell<HashMap<ClientId, bool>>,
}

impl<'a, 'c> Step<'a, 'c> {
    pub(super) fn new(table: &'a mut LockTable, context: &'a mut Context<'c>) -> Self {
        let now = context.now;
        Self { table, context, now, probed: RefCell::default() }
    }

    pub(super) fn execute(&mut self, op: &Op) -> Decision<Result<Reply>> {
        self.need(op.names())?;
        Ok(Ok(match op {
            Op::Acquire { attempt, on_busy } => return self.acquire(attempt, *on_busy),
            Op::Check(attempt) => self.check(attempt)?,
            Op::Leave(attempt) => self.leave(attempt)?,
            Op::Renew(grant) => self.renew(grant)?,
            Op::Release(grant) => self.release(grant)?,
            Op::ReadCell(name) => Reply::Cell(self.record(name).live_cell(self.now)),
            Op::WriteCell { grant, name, bytes, keep } => self.write_cell(grant, name, bytes, *keep)?,
            Op::Break { name, token } => self.break_lock(name, *token)?,
        }))
    }

    fn acquire(&mut self, attempt: &Arc<Attempt>, on_busy: OnBusy) -> Decision<Result<Reply>> {
        if self.table.tombstones.get(&attempt.owner).is_some_and(|until| *until > self.now) {
            return Ok(Ok(Reply::Busy));
        }
        self.grant_waiters(names(&attempt.wants))?;
        if let Some(reply) = self.current_reply(attempt)? {
            return Ok(Ok(reply));
        }
        for want in &attempt.wants {
            if let Err(conflict) = want.agree(self.modes_of(&want.name)?) {
                return Ok(Err(conflict));
            }
        }
        if let Some(chosen) = self.free_for(attempt)? {
            return Ok(Ok(Reply::Granted(self.grant(attempt, self.context.client, chosen)?)));
        }
        if on_busy == OnBusy::Return {
            return Ok(Ok(Reply::Busy));
        }
        self.join(attempt)?;
        self.grant_waiters(names(&attempt.wants))?;
        Ok(Ok(self.current_reply(attempt)?.unwrap_or(Reply::NoTicket)))
    }

    fn check(&mut self, attempt: &Arc<Attempt>) -> Decision<Reply> {
        // The ticket is extended before its expiry is checked: the waiter that sends this is alive.
        self.extend_ticket(attempt)?;
        self.grant_waiters(names(&attempt.wants))?;
        Ok(self.current_reply(attempt)?.unwrap_or(Reply::NoTicket))
    }

    fn leave(&mut self, attempt: &Arc<Attempt>) -> Decision<Reply> {
        self.grant_waiters(names(&attempt.wants))?;
        if let Some(award) = self.award_of(attempt) {
            return Ok(Reply::AlreadyGranted(award));
        }
        for want in &attempt.wants {
            self.remove_holder(&want.name, attempt.owner);
        }
        let ticket = self.ticket_of(attempt)?;
        if let Some(ticket) = &ticket {
            self.remove_ticket(ticket)?;
        }
        self.grant_waiters(names(&attempt.wants))?;
        if ticket.is_none() {
            // The last step, because it is not undone if more is needed.
            self.table.tombstones.insert(attempt.owner, self.now + attempt.ttl);
        }
        Ok(Reply::Left)
    }

    fn renew(&mut self, grant: &Grant) -> Decision<Reply> {
        let wants = grant.held();
        self.grant_waiters(names(wants))?;
        if !wants.iter().all(|want| self.holds(&want.name, grant)) {
            // Of several names some may still be held, if the rows of others were deleted.
            self.release(grant)?;
            return Ok(Reply::NotHeld);
        }
        Ok(Reply::Renewed { ttl: self.extend(wants, grant.attempt.owner) })
    }

    fn release(&mut self, grant: &Grant) -> Decision<Reply> {
        let wants = grant.held();
        let mut held = false;
        for want in wants {
            self.expire(&want.name);
            if self.holds(&want.name, grant) {
                self.remove_holder(&want.name, grant.attempt.owner);
                held = true;
            }
        }
        self.grant_waiters(names(wants))?;
        Ok(if held { Reply::Released } else { Reply::NotHeld })
    }

    fn break_lock(&mut self, name: &LockName, token: FencingToken) -> Decision<Reply> {
        self.grant_waiters(vec![name.clone()])?;
        let Some(holder) = self.record(name).holders.with_token(token).cloned() else {
            return Ok(Reply::NotHeld);
        };
        let broken = holder.names.map_or_else(|| vec![name.clone()], |names| names.to_vec());
        self.need(broken.iter())?;
        for name in &broken {
            self.remove_holder(name, holder.owner);
        }
        let lost = Wakeup::Lost { owner: holder.owner, reason: LostReason::Broken };
        self.table.pushes.push((holder.client, lost));
        self.grant_waiters(broken)?;
        Ok(Reply::Released)
    }

    fn write_cell(
        &mut self,
        grant: &Grant,
        name: &LockName,
        bytes: &Arc<[u8]>,
        keep: Keep,
    ) -> Decision<Reply> {
        self.grant_waiters(vec![name.clone()])?;
        if !self.holds(name, grant) {
            return Ok(Reply::NotHeld);
        }
        let until = match keep {
            Keep::For(duration) => self.now + duration,
            Keep::Always | Keep::WhileHeld => StorageTime::NEVER,
        };
        let cell = Cell { token: grant.award.token, bytes: bytes.clone() };
        self.table.change(Change::Cell(name.clone(), Some(StoredCell { cell, keep, until })));
        Ok(Reply::Written)
    }

    /// Returns what this attempt has already: a grant, which is renewed, or a queue position.
    fn current_reply(&mut self, attempt: &Arc<Attempt>) -> Decision<Option<Reply>> {
        if let Some(award) = self.award_of(attempt) {
            let grant = Grant { attempt: attempt.clone(), award };
            self.extend(grant.held(), attempt.owner);
            let is_own_grant = |push: &Wakeup| matches!(push, Wakeup::Granted { attempt: to, .. } if to.owner == attempt.owner);
            self.table.pushes.retain(|(_, push)| !is_own_grant(push));
            return Ok(Some(Reply::Granted(award)));
        }
        let seq = self.extend_ticket(attempt)?;
        seq.map(|seq| Ok(Reply::Waiting { check_after: self.check_after(attempt, seq)? })).transpose()
    }

    pub(super) fn grant(
        &mut self,
        attempt: &Arc<Attempt>,
        client: ClientId,
        chosen: usize,
    ) -> Decision<Award> {
        let token = FencingToken::new(self.number()?);
        let award = Award { token, ttl: attempt.ttl, chosen, elapsed: Duration::ZERO };
        let grant = Grant { attempt: attempt.clone(), award };
        let wants = grant.held();
        let all = (wants.len() > 1).then(|| names(wants).into());
        for want in wants {
            let holder = Holder {
                owner: attempt.owner,
                token,
                mode: want.mode,
                ttl: attempt.ttl,
                until: self.now + attempt.ttl,
                since: self.context.wall,
                client,
                names: all.clone(),
                chosen,
                label: attempt.label.clone(),
                meta: attempt.meta.clone(),
            };
            self.table.change(Change::Holder(want.name.clone(), attempt.owner, Some(holder)));
        }
        Ok(award)
    }

    fn join(&mut self, attempt: &Arc<Attempt>) -> Decision<()> {
        let ticket = Ticket {
            attempt: attempt.clone(),
            seq: self.number()?,
            until: self.now + attempt.ttl,
            since: self.context.wall,
            client: self.context.client,
        };
        self.table.change(Change::Ticket(attempt.owner, Some(ticket)));
        Ok(())
    }

    fn award_of(&self, attempt: &Attempt) -> Option<Award> {
        let holder = |want: &Want| self.record(&want.name).holders.get(attempt.owner);
        let mut held = attempt.wants.iter().filter_map(holder).filter(|holder| holder.until > self.now);
        let first = held.next()?.award();
        // Of several names all must be held: the row of one may have been deleted.
        let whole = attempt.rule == Rule::Any || held.count() + 1 == attempt.wants.len();
        whole.then_some(first)
    }

    fn holds(&self, name: &LockName, grant: &Grant) -> bool {
        self.record(name)
            .holders
            .get(grant.attempt.owner)
            .is_some_and(|holder| holder.token == grant.award.token)
    }

    /// Extends the lease of a holder and returns its length.
    fn extend(&mut self, wants: &[Want], owner: Owner) -> Duration {
        let mut ttl = Duration::ZERO;
        for want in wants {
            if let Some(holder) = self.record(&want.name).holders.get(owner) {
                ttl = holder.ttl;
                let extended = Holder { until: self.now + ttl, ..holder.clone() };
                self.table.change(Change::Holder(want.name.clone(), owner, Some(extended)));
            }
        }
        ttl
    }

    /// Extends the lease of a ticket and returns its position.
    fn extend_ticket(&mut self, attempt: &Attempt) -> Decision<Option<u64>> {
        let Some(ticket) = self.ticket_of(attempt)? else {
            return Ok(None);
        };
        let (seq, until) = (ticket.seq, self.now + ticket.attempt.ttl);
        let extended = Ticket { until, client: self.context.client, ..ticket };
        self.table.change(Change::Ticket(attempt.owner, Some(extended)));
        Ok(Some(seq))
    }

    fn ticket_of(&self, attempt: &Attempt) -> Decision<Option<Ticket>> {
        let found = self.table.tickets.get(&attempt.owner);
        if found.is_none() && self.table.looked_up != Some(attempt.owner) {
            let is_partial = |want: &&Want| self.record(&want.name).unknown_from.is_some();
            if let Some(partial) = attempt.wants.iter().find(is_partial) {
                return Err(Needs::Ticket(partial.name.clone(), attempt.owner));
            }
        }
        Ok(found.cloned())
    }

    pub(super) fn remove_ticket(&mut self, ticket: &Ticket) -> Decision<()> {
        self.need(ticket.attempt.wants.iter().map(|want| &want.name))?;
        self.table.change(Change::Ticket(ticket.attempt.owner, None));
        Ok(())
    }

    fn remove_holder(&mut self, name: &LockName, owner: Owner) {
        let record = self.record(name);
        let Some(holder) = record.holders.get(owner) else {
            return;
        };
        let ends = |stored: &StoredCell| stored.keep == Keep::WhileHeld && stored.cell.token == holder.token;
        let ends_cell = record.cell.as_ref().is_some_and(ends);
        self.table.change(Change::Holder(name.clone(), owner, None));
        if ends_cell {
            self.table.change(Change::Cell(name.clone(), None));
        }
    }

    /// Removes the holders and the cell of this record that have expired.
    pub(super) fn expire(&mut self, name: &LockName) {
        let over = |stored: &StoredCell| matches!(stored.keep, Keep::For(_)) && stored.until <= self.now;
        if self.record(name).cell.as_ref().is_some_and(over) {
            self.table.change(Change::Cell(name.clone(), None));
        }
        while let Some((end, owner)) = self.record(name).holders.first_end() {
            if end > self.now {
                break;
            }
            self.remove_holder(name, owner);
        }
    }

    fn number(&mut self) -> Decision<u64> {
        self.context.numbers.next().ok_or(Needs::Numbers)
    }

    /// Checks that these records have been fetched.
    pub(super) fn need<'n>(&mut self, names: impl Iterator<Item = &'n LockName>) -> Decision<()> {
        let missing = names.filter(|name| !self.table.records.contains_key(*name));
        let missing: Vec<LockName> = missing.cloned().collect();
        if self.table.is_copy && !missing.is_empty() {
            return Err(Needs::Records(missing));
        }
        self.table.records.extend(missing.into_iter().map(|name| (name, LockRecord::default())));
        Ok(())
    }

    pub(super) fn record(&self, name: &LockName) -> &LockRecord {
        self.table.records.get(name).expect("a record is fetched before it is read")
    }
}

fn names(wants: &[Want]) -> Vec<LockName> {
    wants.iter().map(|want| want.name.clone()).collect()
}
