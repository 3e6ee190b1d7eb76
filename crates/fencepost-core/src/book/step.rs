//! One operation on its way through the book: who may enter, whose turn it is, what a release hands on.

use std::collections::HashMap;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use super::{Book, Shelf};
use crate::backend::{Cell, Keep, Op, Queue, Reply, Wakeup};
use crate::clock::{Moment, wall_time};
use crate::error::Result;
use crate::grant::{Attempt, Award, Grant, LostReason, Mode, Rule, Want};
use crate::line::{ClientId, Holder, Line, StoredCell, Ticket};
use crate::name::LockName;
use crate::token::{FencingToken, Owner};

/// How many of those ahead a waiter asks about.
const LOOK_AHEAD: usize = 16;
/// Never answer "look again now".
const SHORTEST_TURN: Duration = Duration::from_millis(1);

/// One operation on its way through the book.
pub(super) struct Step<'a, S> {
    pub(super) book: &'a mut Book,
    pub(super) shelf: &'a mut S,
    pub(super) client: ClientId,
    pub(super) now: Moment,
    /// Who was found to be reachable or not: a process that died with many waiters is asked about once.
    pub(super) probed: HashMap<ClientId, bool>,
}

impl<S: Shelf> Step<'_, S> {
    pub(super) fn execute(&mut self, op: &Op) -> Result<Reply> {
        match op {
            Op::Acquire { attempt, queue } => self.acquire(attempt, *queue),
            Op::Check(attempt) => self.check(attempt),
            Op::Leave(attempt) => self.leave(attempt),
            Op::Renew(grant) => self.renew(grant),
            Op::Release(grant) => self.release(grant),
            Op::ReadCell(name) => self.read_cell(name),
            Op::WriteCell { grant, name, bytes, keep } => self.write_cell(grant, name, bytes, *keep),
            Op::Break { name, token } => self.break_lock(name, *token),
        }
    }

    fn acquire(&mut self, attempt: &Arc<Attempt>, queue: Queue) -> Result<Reply> {
        if self.book.departed.get(&attempt.owner).is_some_and(|until| *until > self.now) {
            return Ok(Reply::Busy);
        }
        self.open_all(&attempt.wants)?;
        if let Some(reply) = self.known(attempt) {
            return Ok(reply);
        }
        for want in &attempt.wants {
            self.agree(want)?;
        }
        if let Some(chosen) = self.free_for(attempt) {
            return Ok(Reply::Granted(self.grant(attempt, self.client, chosen)?));
        }
        if queue == Queue::Never {
            return Ok(Reply::Busy);
        }
        self.join(attempt)?;
        self.settle(names(&attempt.wants))?;
        Ok(self.known(attempt).unwrap_or(Reply::NoTicket))
    }

    fn check(&mut self, attempt: &Arc<Attempt>) -> Result<Reply> {
        // The ticket lives again before anybody looks whether it does: whoever asks is alive.
        for want in &attempt.wants {
            self.load(&want.name)?;
        }
        self.touch_ticket(attempt.owner);
        self.settle(names(&attempt.wants))?;
        Ok(self.known(attempt).unwrap_or(Reply::NoTicket))
    }

    fn leave(&mut self, attempt: &Arc<Attempt>) -> Result<Reply> {
        self.open_all(&attempt.wants)?;
        if let Some(award) = self.award_of(attempt) {
            return Ok(Reply::HadBeenGranted(award));
        }
        for want in &attempt.wants {
            self.remove_holder(&want.name, attempt.owner);
        }
        if !self.remove_ticket(attempt.owner)? {
            self.book.departed.insert(attempt.owner, self.now + attempt.ttl);
        }
        self.settle(names(&attempt.wants))?;
        Ok(Reply::Left)
    }

    fn renew(&mut self, grant: &Grant) -> Result<Reply> {
        let wants = grant.held();
        self.open_all(wants)?;
        if !wants.iter().all(|want| self.holds(&want.name, grant)) {
            // Of several names some may be left, if others were taken away behind our back.
            self.release(grant)?;
            return Ok(Reply::NotHeld);
        }
        Ok(Reply::Renewed { ttl: self.extend(wants, grant.attempt.owner) })
    }

    fn release(&mut self, grant: &Grant) -> Result<Reply> {
        let wants = grant.held();
        for want in wants {
            self.load(&want.name)?;
            self.expire(&want.name);
        }
        let mut held = false;
        for want in wants {
            if self.holds(&want.name, grant) {
                self.remove_holder(&want.name, grant.attempt.owner);
                held = true;
            }
        }
        self.settle(names(wants))?;
        Ok(if held { Reply::Released } else { Reply::NotHeld })
    }

    fn break_lock(&mut self, name: &LockName, token: FencingToken) -> Result<Reply> {
        self.open(name)?;
        let Some(holder) = self.line(name).holders.with_token(token).cloned() else {
            return Ok(Reply::NotHeld);
        };
        let broken = holder.names.map_or_else(|| vec![name.clone()], |names| names.to_vec());
        for name in &broken {
            self.load(name)?;
            self.remove_holder(name, holder.owner);
        }
        self.book.pushes.push((holder.client, Wakeup::Gone { owner: holder.owner, why: LostReason::Broken }));
        self.settle(broken)?;
        Ok(Reply::Released)
    }

    fn read_cell(&mut self, name: &LockName) -> Result<Reply> {
        self.load(name)?;
        let now = self.now;
        Ok(Reply::Cell(self.line(name).live_cell(now)))
    }

    fn write_cell(&mut self, grant: &Grant, name: &LockName, bytes: &Arc<[u8]>, keep: Keep) -> Result<Reply> {
        self.open(name)?;
        if !self.holds(name, grant) {
            return Ok(Reply::NotHeld);
        }
        let until = match keep {
            Keep::For(duration) => self.now + duration,
            Keep::Always | Keep::WhileHeld => Moment::NEVER,
        };
        let cell = Cell { token: grant.award.token, bytes: bytes.clone() };
        self.line(name).cell = Some(StoredCell { cell, keep, until });
        self.book.touched.cells.push(name.clone());
        Ok(Reply::Written)
    }

    /// What this attempt has already: a grant, which is renewed, or a place in line.
    fn known(&mut self, attempt: &Arc<Attempt>) -> Option<Reply> {
        if let Some(award) = self.award_of(attempt) {
            let grant = Grant { attempt: attempt.clone(), award };
            self.extend(grant.held(), attempt.owner);
            let owner = attempt.owner;
            self.book.pushes.retain(
                |(_, push)| !matches!(push, Wakeup::Granted { attempt, .. } if attempt.owner == owner),
            );
            return Some(Reply::Granted(award));
        }
        if self.touch_ticket(attempt.owner) {
            return Some(Reply::Waiting { turn_in: self.turn_in(attempt) });
        }
        None
    }

    /// When all leases ahead will have ended, should nobody renew them.
    fn turn_in(&mut self, attempt: &Attempt) -> Duration {
        let book = &*self.book;
        let seq = book.tickets.get(&attempt.owner).map_or(u64::MAX, |ticket| ticket.seq);
        let last_in = |want: &Want| {
            let line = book.lines.get(&want.name)?;
            let ahead = line.queue.range(..seq).take(LOOK_AHEAD);
            let tickets = ahead.filter_map(|(_, owner)| book.tickets.get(owner)).map(|ticket| ticket.until);
            let room = match want.mode {
                // One slot that becomes free is enough.
                Mode::Slots { .. } => line.holders.first_end().map(|(end, _)| end),
                Mode::Exclusive | Mode::Shared => line.holders.last_end(),
            };
            room.into_iter().chain(tickets).max()
        };
        let ends = attempt.wants.iter().filter_map(last_in);
        let turn = match attempt.rule {
            Rule::All => ends.max(),
            Rule::Any => ends.min(),
        };
        turn.unwrap_or(self.now).since(self.now).max(SHORTEST_TURN)
    }

    /// Which of the wants, or 0 for all, may be granted without overtaking anybody.
    fn free_for(&mut self, attempt: &Attempt) -> Option<usize> {
        let free: Vec<bool> = attempt.wants.iter().map(|want| self.is_free(want)).collect();
        match attempt.rule {
            Rule::All => free.iter().all(|free| *free).then_some(0),
            Rule::Any => free.iter().position(|free| *free),
        }
    }

    fn is_free(&mut self, want: &Want) -> bool {
        self.line(&want.name).admits(want.mode) && self.is_first(&want.name, u64::MAX)
    }

    fn is_present(&mut self, owner: Owner) -> bool {
        let Some(ticket) = self.book.tickets.get(&owner) else {
            return false;
        };
        let client = ticket.client;
        ticket.until > self.now && self.reachable(client)
    }

    fn reachable(&mut self, client: ClientId) -> bool {
        let Self { shelf, probed, .. } = self;
        client == self.client || *probed.entry(client).or_insert_with(|| shelf.reachable(client))
    }

    /// Refuses a mode that contradicts those who are there.
    fn agree(&mut self, want: &Want) -> Result<()> {
        let line = self.line(&want.name);
        let holders = line.holders.any().map(|holder| holder.mode);
        let first = line.queue.values().next().copied();
        let waiting = first.and_then(|owner| self.book.tickets.get(&owner)).and_then(|ticket| {
            ticket.attempt.wants.iter().find(|there| there.name == want.name).map(|there| there.mode)
        });
        want.agree(holders.into_iter().chain(waiting))
    }

    /// Ends everything that has ended in this line, also behind a head that lives.
    pub(super) fn sweep(&mut self, name: &LockName) -> Result<()> {
        self.load(name)?;
        let (now, tickets) = (self.now, &self.book.tickets);
        let is_over = |owner: &Owner| tickets.get(owner).is_none_or(|ticket| ticket.until <= now);
        let line = self.book.lines.get(name);
        let over: Vec<Owner> =
            line.into_iter().flat_map(|line| line.queue.values().copied()).filter(is_over).collect();
        for owner in over {
            self.remove_ticket(owner)?;
        }
        self.settle(vec![name.clone()])
    }

    /// Hands on everything that is free in these lines, and in those that become free by it.
    fn settle(&mut self, mut names: Vec<LockName>) -> Result<()> {
        while let Some(name) = names.pop() {
            self.load(&name)?;
            self.expire(&name);
            let mut from = 0;
            while let Some((seq, owner)) = self.next_place(&name, from..u64::MAX) {
                let Some(ticket) = self.book.tickets.get(&owner).cloned() else {
                    self.line(&name).queue.remove(&seq);
                    continue;
                };
                if ticket.until <= self.now {
                    self.remove_ticket(owner)?;
                    names.extend(others(&ticket.attempt.wants, &name));
                    continue;
                }
                if !self.reachable(ticket.client) {
                    // Passed over, whether or not it is its turn: it keeps its place and stands in nobody's way.
                    from = seq + 1;
                    continue;
                }
                let Some(chosen) = self.turn_of(&ticket, &name)? else {
                    break;
                };
                self.remove_ticket(owner)?;
                let award = self.grant(&ticket.attempt, ticket.client, chosen)?;
                let attempt = ticket.attempt.clone();
                self.book.pushes.push((ticket.client, Wakeup::Granted { attempt, award }));
                names.extend(others(&ticket.attempt.wants, &name));
            }
        }
        Ok(())
    }

    /// Whether this ticket, which is the first in the line of `name`, may be granted; which of its wants, if so.
    fn turn_of(&mut self, ticket: &Ticket, name: &LockName) -> Result<Option<usize>> {
        let wants = &ticket.attempt.wants;
        if ticket.attempt.rule == Rule::Any {
            let chosen = wants.iter().position(|want| want.name == *name);
            return Ok(chosen.filter(|chosen| self.line(name).admits(wants[*chosen].mode)));
        }
        for want in wants {
            self.load(&want.name)?;
            self.expire(&want.name);
            if !self.line(&want.name).admits(want.mode) || !self.is_first(&want.name, ticket.seq) {
                return Ok(None);
            }
        }
        Ok(Some(0))
    }

    /// Whether nobody who is present stands before this place.
    fn is_first(&mut self, name: &LockName, place: u64) -> bool {
        let mut from = 0;
        while let Some((seq, owner)) = self.next_place(name, from..place) {
            if self.is_present(owner) {
                return false;
            }
            from = seq + 1;
        }
        true
    }

    fn next_place(&mut self, name: &LockName, places: Range<u64>) -> Option<(u64, Owner)> {
        self.line(name).queue.range(places).next().map(|(seq, owner)| (*seq, *owner))
    }

    fn grant(&mut self, attempt: &Arc<Attempt>, client: ClientId, chosen: usize) -> Result<Award> {
        let award = Award {
            token: FencingToken::new(self.shelf.mint()?),
            ttl: attempt.ttl,
            chosen,
            spent: Duration::ZERO,
        };
        let grant = Grant { attempt: attempt.clone(), award };
        let wants = grant.held();
        let all = (wants.len() > 1).then(|| wants.iter().map(|want| want.name.clone()).collect::<Arc<[_]>>());
        for want in wants {
            let holder = Holder {
                owner: attempt.owner,
                token: award.token,
                mode: want.mode,
                ttl: attempt.ttl,
                until: self.now + attempt.ttl,
                since: wall_time(),
                client,
                names: all.clone(),
                chosen,
                label: attempt.label.clone(),
                meta: attempt.meta.clone(),
            };
            self.line(&want.name).holders.insert(holder);
            self.book.touched.holders.push((want.name.clone(), attempt.owner));
        }
        Ok(award)
    }

    fn join(&mut self, attempt: &Arc<Attempt>) -> Result<()> {
        let seq = self.shelf.mint()?;
        let ticket = Ticket {
            attempt: attempt.clone(),
            seq,
            until: self.now + attempt.ttl,
            since: wall_time(),
            client: self.client,
        };
        for want in &attempt.wants {
            self.line(&want.name).queue.insert(seq, attempt.owner);
            self.book.touched.tickets.push((want.name.clone(), seq, attempt.owner));
        }
        self.book.tickets.insert(attempt.owner, ticket);
        Ok(())
    }

    fn award_of(&self, attempt: &Attempt) -> Option<Award> {
        let now = self.now;
        let in_line =
            |want: &Want| self.book.lines.get(&want.name)?.holder(attempt.owner).filter(|h| h.until > now);
        let mut held = attempt.wants.iter().filter_map(in_line);
        let first = held.next()?.award();
        // Of several names all must be held: one may have been taken away behind our back.
        let whole = attempt.rule == Rule::Any || held.count() + 1 == attempt.wants.len();
        whole.then_some(first)
    }

    fn holds(&mut self, name: &LockName, grant: &Grant) -> bool {
        self.line(name).holder(grant.attempt.owner).is_some_and(|holder| holder.token == grant.award.token)
    }

    fn extend(&mut self, wants: &[Want], owner: Owner) -> Duration {
        let now = self.now;
        let mut ttl = Duration::ZERO;
        for want in wants {
            if let Some(holder) = self.line(&want.name).holders.extend(owner, now) {
                ttl = holder.ttl;
            }
            self.book.touched.holders.push((want.name.clone(), owner));
        }
        ttl
    }

    fn touch_ticket(&mut self, owner: Owner) -> bool {
        let (now, client) = (self.now, self.client);
        let Some(ticket) = self.book.tickets.get_mut(&owner) else {
            return false;
        };
        ticket.until = now + ticket.attempt.ttl;
        ticket.client = client;
        let seq = ticket.seq;
        let places = ticket.attempt.wants.iter().map(|want| (want.name.clone(), seq, owner));
        self.book.touched.tickets.extend(places);
        true
    }

    fn remove_ticket(&mut self, owner: Owner) -> Result<bool> {
        let Some(ticket) = self.book.tickets.get(&owner).cloned() else {
            return Ok(false);
        };
        for want in &ticket.attempt.wants {
            // A line that is loaded only afterwards would bring the ticket back.
            self.load(&want.name)?;
            self.line(&want.name).queue.remove(&ticket.seq);
            self.book.touched.tickets.push((want.name.clone(), ticket.seq, owner));
        }
        self.book.tickets.remove(&owner);
        Ok(true)
    }

    fn remove_holder(&mut self, name: &LockName, owner: Owner) {
        let Some(holder) = self.line(name).holders.remove(owner) else {
            return;
        };
        self.book.touched.holders.push((name.clone(), owner));
        self.end_cell(name, holder.token);
    }

    /// Ends the leases of this line that are over.
    fn expire(&mut self, name: &LockName) {
        let now = self.now;
        let line = self.line(name);
        if line.cell.as_ref().is_some_and(|stored| matches!(stored.keep, Keep::For(_)) && stored.until <= now)
        {
            line.cell = None;
            self.book.touched.cells.push(name.clone());
        }
        while let Some((end, owner)) = self.line(name).holders.first_end() {
            if end > now {
                break;
            }
            self.remove_holder(name, owner);
        }
    }

    fn end_cell(&mut self, name: &LockName, token: FencingToken) {
        let line = self.line(name);
        let ends = |stored: &StoredCell| stored.keep == Keep::WhileHeld && stored.cell.token == token;
        if line.cell.as_ref().is_some_and(ends) {
            line.cell = None;
            self.book.touched.cells.push(name.clone());
        }
    }

    fn open_all(&mut self, wants: &[Want]) -> Result<()> {
        wants.iter().try_for_each(|want| self.open(&want.name))
    }

    /// Loads a line, ends what has ended, and hands on what is free: any call is a claim for the first in line.
    fn open(&mut self, name: &LockName) -> Result<()> {
        self.load(name)?;
        let line = self.line(name);
        if line.queue.is_empty() {
            self.expire(name);
            return Ok(());
        }
        self.settle(vec![name.clone()])
    }

    fn load(&mut self, name: &LockName) -> Result<()> {
        if self.book.lines.contains_key(name) {
            return Ok(());
        }
        let (line, tickets) = self.shelf.load(name)?.unwrap_or_default();
        for ticket in tickets {
            // A ticket in several lines is loaded with each of them, and may have changed since the first.
            self.book.tickets.entry(ticket.attempt.owner).or_insert(ticket);
        }
        self.book.lines.insert(name.clone(), line);
        Ok(())
    }

    fn line(&mut self, name: &LockName) -> &mut Line {
        self.book.lines.get_mut(name).expect("a line is loaded before anybody looks at it")
    }
}

fn names(wants: &[Want]) -> Vec<LockName> {
    wants.iter().map(|want| want.name.clone()).collect()
}

fn others<'a>(wants: &'a [Want], name: &'a LockName) -> impl Iterator<Item = LockName> + 'a {
    wants.iter().map(|want| &want.name).filter(move |other| *other != name).cloned()
}
