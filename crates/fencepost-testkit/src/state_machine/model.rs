//! The lock as it should be, as simple as possible: one list of grants, one queue of tickets, time as a number.
//!
//! Where backends may differ (which of several free names is taken, whether an expired ticket is removed before its owner
//! asks again) the model follows every possibility: a [`World`] each. The observations tell which of them are true.

use std::collections::BTreeMap;
use std::time::Duration;

use fencepost_core::backend::OnBusy;
use fencepost_core::{Keep, Mode, Rule};

use super::step::{Ask, Cell, ExpectedReply, Grant, NAMES, Step};

#[derive(Clone, Debug, PartialEq)]
struct Ticket {
    id: usize,
    until: Duration,
    /// Its attempt is not decided yet: it blocks others, and is granted nothing.
    is_undecided: bool,
}

/// One possible state of the backend.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct World {
    pub(crate) now: Duration,
    pub(crate) grants: Vec<Grant>,
    queue: Vec<Ticket>,
    tombstones: BTreeMap<usize, Duration>,
    pub(crate) cells: [Option<Cell>; NAMES.len()],
    /// How often each attempt was granted.
    times: BTreeMap<usize, usize>,
    /// The observed tokens, by attempt and number of its grant.
    pub(crate) tokens: BTreeMap<(usize, usize), u64>,
    /// The largest observed token of each name.
    pub(crate) newest: [u64; NAMES.len()],
}

type Outcome = (World, ExpectedReply);

impl World {
    /// Returns every state and reply that this step may lead to.
    pub(crate) fn after(&self, asks: &[Ask], step: &Step) -> Vec<Outcome> {
        let mut world = self.clone();
        match step {
            Step::CreateEntry(id) => {
                if !world.is_known(*id) {
                    world.queue.push(Ticket { id: *id, until: Duration::MAX, is_undecided: true });
                }
                world.with(ExpectedReply::Nothing)
            }
            Step::Acquire { id, on_busy } => world.acquire(asks, *id, *on_busy),
            Step::Check(id) => world.check(asks, *id),
            Step::Leave(id) => world.leave(asks, *id),
            Step::Renew { id, token } => match world.held_by(*id, *token) {
                None => world.with(ExpectedReply::NotHeld),
                Some(at) => {
                    world.grants[at].until = world.now + asks[*id].ttl;
                    world.with(ExpectedReply::Renewed)
                }
            },
            Step::Release { id, token } => {
                let held = world.held_by(*id, *token);
                world.end(asks, held)
            }
            Step::Break { name, token } => {
                let token_of = |grant: &Grant| self.tokens.get(&(grant.id, grant.nth));
                let broken = |grant: &Grant| grant.names.contains(name) && token_of(grant) == Some(token);
                let held = world.grants.iter().position(broken);
                world.end(asks, held)
            }
            Step::Write { id, token, name, value, keep } => match world.held_by(*id, *token) {
                Some(at) if world.grants[at].names.contains(name) => {
                    let until = if let Keep::For(time) = keep { world.now + *time } else { Duration::MAX };
                    let by = (*id, world.grants[at].nth);
                    world.cells[*name] = Some(Cell { by, value: *value, keep: *keep, until });
                    world.with(ExpectedReply::Written)
                }
                _ => world.with(ExpectedReply::NotHeld),
            },
            Step::Read { name } => {
                let cell = world.cells[*name].clone();
                world.with(ExpectedReply::Cell(cell))
            }
            Step::Pass(time) => {
                world.now += *time;
                world.settled_with(asks, &ExpectedReply::NoTicket)
            }
        }
    }

    /// Returns the same state in a canonical form: entries whose order has no effect are sorted by number.
    pub(crate) fn normal(mut self, asks: &[Ask]) -> Self {
        self.grants.sort_by_key(|grant| grant.id);
        let meet = |one: &Ticket, other: &Ticket| {
            asks[one.id].wants.iter().any(|name| asks[other.id].wants.contains(name))
        };
        let mut rest = std::mem::take(&mut self.queue);
        let may_be_next =
            |rest: &[Ticket], at: &usize| !rest[..*at].iter().any(|ahead| meet(ahead, &rest[*at]));
        while let Some(at) = (0..rest.len()).filter(|at| may_be_next(&rest, at)).min_by_key(|at| rest[*at].id)
        {
            self.queue.push(rest.remove(at));
        }
        self
    }

    /// Returns the live waiters of this name, in queue order.
    pub(crate) fn line_of(&self, asks: &[Ask], name: usize) -> Vec<usize> {
        let here =
            self.queue.iter().filter(|ticket| self.is_live(ticket) && asks[ticket.id].wants.contains(&name));
        here.map(|ticket| ticket.id).collect()
    }

    fn acquire(mut self, asks: &[Ask], id: usize, on_busy: OnBusy) -> Vec<Outcome> {
        if let Some(at) = self.queue.iter().position(|ticket| ticket.id == id && ticket.is_undecided) {
            return self.decided(asks, id, on_busy, at);
        }
        if self.tombstones.get(&id).is_some_and(|until| *until > self.now) {
            return self.with(ExpectedReply::Busy);
        }
        if self.holds(id) || self.queue.iter().any(|ticket| ticket.id == id && self.is_live(ticket)) {
            return self.extended(asks, id);
        }
        let ask = &asks[id];
        let mut outcomes = Vec::new();
        if let Some(at) = self.queue.iter().position(|ticket| ticket.id == id) {
            outcomes.extend(self.clone().extended(asks, id));
            self.queue.remove(at);
        }
        if ask.wants.iter().any(|name| self.disagrees(asks, *name, ask.mode)) {
            outcomes.push((self, ExpectedReply::Conflict));
            return outcomes;
        }
        let free: Vec<Vec<usize>> = self.may_take(asks, id, self.queue.len());
        if !free.is_empty() {
            outcomes.extend(free.into_iter().map(|names| {
                let mut world = self.clone();
                let grant = world.grant(asks, id, names);
                (world, ExpectedReply::Granted(grant))
            }));
        } else if on_busy == OnBusy::Return {
            outcomes.push((self, ExpectedReply::Busy));
        } else {
            self.queue.push(Ticket { id, until: self.now + ask.ttl, is_undecided: false });
            outcomes.push((self, ExpectedReply::Waiting));
        }
        outcomes
    }

    /// Decides an attempt whose entry was created before it read the others. Entries that it does not keep unblock the
    /// waiters behind it.
    fn decided(mut self, asks: &[Ask], id: usize, on_busy: OnBusy, at: usize) -> Vec<Outcome> {
        let ask = &asks[id];
        let is_refused = ask.wants.iter().any(|name| self.disagrees(asks, *name, ask.mode));
        let free = self.may_take(asks, id, at);
        if !is_refused && free.is_empty() && on_busy == OnBusy::Wait {
            self.queue[at] = Ticket { id, until: self.now + ask.ttl, is_undecided: false };
            return self.with(ExpectedReply::Waiting);
        }
        self.queue.remove(at);
        if is_refused || free.is_empty() {
            return self.settled_with(
                asks,
                if is_refused { &ExpectedReply::Conflict } else { &ExpectedReply::Busy },
            );
        }
        let take = |names| {
            let mut world = self.clone();
            let grant = world.grant(asks, id, names);
            world.settled_with(asks, &ExpectedReply::Granted(grant))
        };
        free.into_iter().flat_map(take).collect()
    }

    /// Returns whether an attempt holds, waits or has left.
    fn is_known(&self, id: usize) -> bool {
        self.holds(id)
            || self.queue.iter().any(|ticket| ticket.id == id)
            || self.tombstones.get(&id).is_some_and(|until| *until > self.now)
    }

    fn check(mut self, asks: &[Ask], id: usize) -> Vec<Outcome> {
        if self.holds(id) {
            return self.extended(asks, id);
        }
        let Some(at) = self.queue.iter().position(|ticket| ticket.id == id) else {
            return self.with(ExpectedReply::NoTicket);
        };
        if self.is_live(&self.queue[at]) {
            return self.extended(asks, id);
        }
        let mut outcomes = self.clone().extended(asks, id);
        self.queue.remove(at);
        outcomes.push((self, ExpectedReply::NoTicket));
        outcomes
    }

    fn leave(mut self, asks: &[Ask], id: usize) -> Vec<Outcome> {
        if let Some(grant) = self.grants.iter().find(|grant| grant.id == id).cloned() {
            return self.with(ExpectedReply::AlreadyGranted(grant));
        }
        let Some(at) = self.queue.iter().position(|ticket| ticket.id == id) else {
            self.tombstones.insert(id, self.now + asks[id].ttl);
            return self.with(ExpectedReply::Left);
        };
        let ticket = self.queue.remove(at);
        let mut outcomes = self.clone().settled_with(asks, &ExpectedReply::Left);
        if !self.is_live(&ticket) {
            self.tombstones.insert(id, self.now + asks[id].ttl);
            outcomes.extend(self.settled_with(asks, &ExpectedReply::Left));
        }
        outcomes
    }

    /// Extends the lease of a holder or waiter.
    fn extended(mut self, asks: &[Ask], id: usize) -> Vec<Outcome> {
        let until = self.now + asks[id].ttl;
        self.queue.iter_mut().filter(|ticket| ticket.id == id).for_each(|ticket| ticket.until = until);
        let expected = |mut world: World| match world.grants.iter_mut().find(|grant| grant.id == id) {
            None => (world, ExpectedReply::Waiting),
            Some(grant) => {
                grant.until = until;
                let grant = grant.clone();
                (world, ExpectedReply::Granted(grant))
            }
        };
        self.settled(asks).into_iter().map(expected).collect()
    }

    fn end(mut self, asks: &[Ask], held: Option<usize>) -> Vec<Outcome> {
        let Some(at) = held else { return self.with(ExpectedReply::NotHeld) };
        let grant = self.grants.remove(at);
        self.end_cells(&grant);
        self.settled_with(asks, &ExpectedReply::Released)
    }

    fn with(self, expected: ExpectedReply) -> Vec<Outcome> {
        vec![(self, expected)]
    }

    fn settled_with(self, asks: &[Ask], expected: &ExpectedReply) -> Vec<Outcome> {
        self.settled(asks).into_iter().map(|world| (world, expected.clone())).collect()
    }

    /// Removes what has expired and grants what is free, in every order that is possible.
    fn settled(mut self, asks: &[Ask]) -> Vec<Self> {
        let now = self.now;
        for grant in self.grants.extract_if(.., |grant| grant.until <= now).collect::<Vec<_>>() {
            self.end_cells(&grant);
        }
        for cell in self.cells.iter_mut().filter(|cell| cell.as_ref().is_some_and(|cell| cell.until <= now)) {
            *cell = None;
        }
        for at in 0..self.queue.len() {
            let id = self.queue[at].id;
            let takes = self.may_take(asks, id, at);
            if !self.is_live(&self.queue[at]) || self.queue[at].is_undecided || takes.is_empty() {
                continue;
            }
            let enter = |names| {
                let mut world = self.clone();
                world.queue.remove(at);
                world.grant(asks, id, names);
                world.settled(asks)
            };
            return takes.into_iter().flat_map(enter).collect();
        }
        vec![self]
    }

    /// Returns what an attempt may take without overtaking the waiters before position `at` of the queue: nothing, or one of
    /// several choices.
    fn may_take(&self, asks: &[Ask], id: usize, at: usize) -> Vec<Vec<usize>> {
        let ask = &asks[id];
        let awaited = |name: &usize| {
            let ahead = self.queue[..at].iter().filter(|ticket| self.is_live(ticket));
            ahead.into_iter().any(|ticket| asks[ticket.id].wants.contains(name))
        };
        let free = |name: &&usize| !awaited(name) && self.admits(asks, **name, ask.mode);
        let free: Vec<usize> = ask.wants.iter().filter(free).copied().collect();
        match ask.rule {
            Rule::All if free.len() == ask.wants.len() => vec![free],
            Rule::All => Vec::new(),
            Rule::Any => free.into_iter().map(|name| vec![name]).collect(),
        }
    }

    fn admits(&self, asks: &[Ask], name: usize, mode: Mode) -> bool {
        let holders: Vec<Mode> = self.on(name).map(|grant| asks[grant.id].mode).collect();
        match mode {
            Mode::Shared => holders.iter().all(|holder| *holder == Mode::Shared),
            Mode::Semaphore { permits } => {
                holders.len() < permits as usize && holders.iter().all(|holder| *holder == mode)
            }
            _ => holders.is_empty(),
        }
    }

    fn disagrees(&self, asks: &[Ask], name: usize, mode: Mode) -> bool {
        let kind = |mode: Mode| if let Mode::Semaphore { permits } = mode { permits } else { 0 };
        let there = self.on(name).map(|grant| grant.id).chain(self.line_of(asks, name));
        there.into_iter().any(|id| kind(asks[id].mode) != kind(mode))
    }

    /// Returns the holders of this name.
    pub(crate) fn on(&self, name: usize) -> impl Iterator<Item = &Grant> {
        self.grants.iter().filter(move |grant| grant.names.contains(&name))
    }

    fn grant(&mut self, asks: &[Ask], id: usize, names: Vec<usize>) -> Grant {
        let nth = self.times.entry(id).or_default();
        *nth += 1;
        let grant = Grant { id, nth: *nth, names, until: self.now + asks[id].ttl };
        self.grants.push(grant.clone());
        grant
    }

    fn end_cells(&mut self, grant: &Grant) {
        for name in &grant.names {
            let ends = |cell: &Cell| cell.keep == Keep::WhileHeld && cell.by == (grant.id, grant.nth);
            if self.cells[*name].as_ref().is_some_and(ends) {
                self.cells[*name] = None;
            }
        }
    }

    fn held_by(&self, id: usize, token: u64) -> Option<usize> {
        self.grants
            .iter()
            .position(|grant| grant.id == id && self.tokens.get(&(id, grant.nth)) == Some(&token))
    }

    fn holds(&self, id: usize) -> bool {
        self.grants.iter().any(|grant| grant.id == id)
    }

    fn is_live(&self, ticket: &Ticket) -> bool {
        ticket.until > self.now
    }
}
