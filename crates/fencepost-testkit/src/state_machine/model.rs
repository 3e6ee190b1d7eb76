//! The lock as it should be, in the simplest words: one list of grants, one line of tickets, time as a number.
//!
//! Where storages may differ (which of several free names is taken, whether a ticket that has ended is swept before
//! its owner asks again) the model follows every possibility: a [`World`] each. What is seen of the storage tells
//! which of them are true.

use std::collections::BTreeMap;
use std::time::Duration;

use fencepost_core::backend::OnBusy;
use fencepost_core::{Keep, Mode, Rule};

use super::step::{Answer, Ask, Cell, Grant, NAMES, Step};

#[derive(Clone, Debug, PartialEq)]
struct Ticket {
    who: usize,
    until: Duration,
    /// Its attempt has not looked yet: it keeps others out, and is granted nothing.
    is_undecided: bool,
}

/// One possible state of the storage.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct World {
    pub(crate) now: Duration,
    pub(crate) grants: Vec<Grant>,
    line: Vec<Ticket>,
    departed: BTreeMap<usize, Duration>,
    pub(crate) cells: [Option<Cell>; NAMES.len()],
    /// How often each attempt was granted.
    times: BTreeMap<usize, usize>,
    /// The tokens that were seen, by attempt and number of its grant.
    pub(crate) tokens: BTreeMap<(usize, usize), u64>,
    /// The largest token that was seen on each name.
    pub(crate) newest: [u64; NAMES.len()],
}

type Outcome = (World, Answer);

impl World {
    /// Every state and answer that this step may lead to.
    pub(crate) fn after(&self, asks: &[Ask], step: &Step) -> Vec<Outcome> {
        let mut world = self.clone();
        match step {
            Step::Enter(who) => {
                if !world.is_known(*who) {
                    world.line.push(Ticket { who: *who, until: Duration::MAX, is_undecided: true });
                }
                world.with(Answer::Nothing)
            }
            Step::Acquire { who, on_busy } => world.acquire(asks, *who, *on_busy),
            Step::Check(who) => world.check(asks, *who),
            Step::Leave(who) => world.leave(asks, *who),
            Step::Renew { who, token } => match world.held_by(*who, *token) {
                None => world.with(Answer::NotHeld),
                Some(at) => {
                    world.grants[at].until = world.now + asks[*who].ttl;
                    world.with(Answer::Renewed)
                }
            },
            Step::Release { who, token } => {
                let held = world.held_by(*who, *token);
                world.end(asks, held)
            }
            Step::Break { name, token } => {
                let token_of = |grant: &Grant| self.tokens.get(&(grant.who, grant.nth));
                let broken = |grant: &Grant| grant.names.contains(name) && token_of(grant) == Some(token);
                let held = world.grants.iter().position(broken);
                world.end(asks, held)
            }
            Step::Write { who, token, name, value, keep } => match world.held_by(*who, *token) {
                Some(at) if world.grants[at].names.contains(name) => {
                    let until = if let Keep::For(time) = keep { world.now + *time } else { Duration::MAX };
                    let by = (*who, world.grants[at].nth);
                    world.cells[*name] = Some(Cell { by, value: *value, keep: *keep, until });
                    world.with(Answer::Written)
                }
                _ => world.with(Answer::NotHeld),
            },
            Step::Read { name } => {
                let cell = world.cells[*name].clone();
                world.with(Answer::Cell(cell))
            }
            Step::Pass(time) => {
                world.now += *time;
                world.settled_with(asks, &Answer::NoTicket)
            }
        }
    }

    /// Returns the same state in one form: what came in another order to no effect stands in the order of its numbers.
    pub(crate) fn normal(mut self, asks: &[Ask]) -> Self {
        self.grants.sort_by_key(|grant| grant.who);
        let meet = |one: &Ticket, other: &Ticket| {
            asks[one.who].wants.iter().any(|name| asks[other.who].wants.contains(name))
        };
        let mut rest = std::mem::take(&mut self.line);
        let may_be_next =
            |rest: &[Ticket], at: &usize| !rest[..*at].iter().any(|ahead| meet(ahead, &rest[*at]));
        while let Some(at) =
            (0..rest.len()).filter(|at| may_be_next(&rest, at)).min_by_key(|at| rest[*at].who)
        {
            self.line.push(rest.remove(at));
        }
        self
    }

    /// The numbers of those who stand in line for this name and live, first come first.
    pub(crate) fn line_of(&self, asks: &[Ask], name: usize) -> Vec<usize> {
        let here =
            self.line.iter().filter(|ticket| self.is_live(ticket) && asks[ticket.who].wants.contains(&name));
        here.map(|ticket| ticket.who).collect()
    }

    fn acquire(mut self, asks: &[Ask], who: usize, on_busy: OnBusy) -> Vec<Outcome> {
        if let Some(at) = self.line.iter().position(|ticket| ticket.who == who && ticket.is_undecided) {
            return self.decided(asks, who, on_busy, at);
        }
        if self.departed.get(&who).is_some_and(|until| *until > self.now) {
            return self.with(Answer::Busy);
        }
        if self.holds(who) || self.line.iter().any(|ticket| ticket.who == who && self.is_live(ticket)) {
            return self.touched(asks, who);
        }
        let ask = &asks[who];
        let mut outcomes = Vec::new();
        if let Some(at) = self.line.iter().position(|ticket| ticket.who == who) {
            outcomes.extend(self.clone().touched(asks, who));
            self.line.remove(at);
        }
        if ask.wants.iter().any(|name| self.disagrees(asks, *name, ask.mode)) {
            outcomes.push((self, Answer::Conflict));
            return outcomes;
        }
        let free: Vec<Vec<usize>> = self.may_take(asks, who, self.line.len());
        if !free.is_empty() {
            outcomes.extend(free.into_iter().map(|names| {
                let mut world = self.clone();
                let grant = world.grant(asks, who, names);
                (world, Answer::Granted(grant))
            }));
        } else if on_busy == OnBusy::Return {
            outcomes.push((self, Answer::Busy));
        } else {
            self.line.push(Ticket { who, until: self.now + ask.ttl, is_undecided: false });
            outcomes.push((self, Answer::Waiting));
        }
        outcomes
    }

    /// Decides on an attempt that entered before it looked. What it does not keep makes room for those behind it.
    fn decided(mut self, asks: &[Ask], who: usize, on_busy: OnBusy, at: usize) -> Vec<Outcome> {
        let ask = &asks[who];
        let is_refused = ask.wants.iter().any(|name| self.disagrees(asks, *name, ask.mode));
        let free = self.may_take(asks, who, at);
        if !is_refused && free.is_empty() && on_busy == OnBusy::Wait {
            self.line[at] = Ticket { who, until: self.now + ask.ttl, is_undecided: false };
            return self.with(Answer::Waiting);
        }
        self.line.remove(at);
        if is_refused || free.is_empty() {
            return self.settled_with(asks, if is_refused { &Answer::Conflict } else { &Answer::Busy });
        }
        let take = |names| {
            let mut world = self.clone();
            let grant = world.grant(asks, who, names);
            world.settled_with(asks, &Answer::Granted(grant))
        };
        free.into_iter().flat_map(take).collect()
    }

    /// Whether an attempt holds, waits or has left.
    fn is_known(&self, who: usize) -> bool {
        self.holds(who)
            || self.line.iter().any(|ticket| ticket.who == who)
            || self.departed.get(&who).is_some_and(|until| *until > self.now)
    }

    fn check(mut self, asks: &[Ask], who: usize) -> Vec<Outcome> {
        if self.holds(who) {
            return self.touched(asks, who);
        }
        let Some(at) = self.line.iter().position(|ticket| ticket.who == who) else {
            return self.with(Answer::NoTicket);
        };
        if self.is_live(&self.line[at]) {
            return self.touched(asks, who);
        }
        let mut outcomes = self.clone().touched(asks, who);
        self.line.remove(at);
        outcomes.push((self, Answer::NoTicket));
        outcomes
    }

    fn leave(mut self, asks: &[Ask], who: usize) -> Vec<Outcome> {
        if let Some(grant) = self.grants.iter().find(|grant| grant.who == who).cloned() {
            return self.with(Answer::AlreadyGranted(grant));
        }
        let Some(at) = self.line.iter().position(|ticket| ticket.who == who) else {
            self.departed.insert(who, self.now + asks[who].ttl);
            return self.with(Answer::Left);
        };
        let ticket = self.line.remove(at);
        let mut outcomes = self.clone().settled_with(asks, &Answer::Left);
        if !self.is_live(&ticket) {
            self.departed.insert(who, self.now + asks[who].ttl);
            outcomes.extend(self.settled_with(asks, &Answer::Left));
        }
        outcomes
    }

    /// Somebody who holds or waits is heard of: its lease runs anew.
    fn touched(mut self, asks: &[Ask], who: usize) -> Vec<Outcome> {
        let until = self.now + asks[who].ttl;
        self.line.iter_mut().filter(|ticket| ticket.who == who).for_each(|ticket| ticket.until = until);
        let answer = |mut world: World| match world.grants.iter_mut().find(|grant| grant.who == who) {
            None => (world, Answer::Waiting),
            Some(grant) => {
                grant.until = until;
                let grant = grant.clone();
                (world, Answer::Granted(grant))
            }
        };
        self.settled(asks).into_iter().map(answer).collect()
    }

    fn end(mut self, asks: &[Ask], held: Option<usize>) -> Vec<Outcome> {
        let Some(at) = held else { return self.with(Answer::NotHeld) };
        let grant = self.grants.remove(at);
        self.end_cells(&grant);
        self.settled_with(asks, &Answer::Released)
    }

    fn with(self, answer: Answer) -> Vec<Outcome> {
        vec![(self, answer)]
    }

    fn settled_with(self, asks: &[Ask], answer: &Answer) -> Vec<Outcome> {
        self.settled(asks).into_iter().map(|world| (world, answer.clone())).collect()
    }

    /// Ends what has ended and gives what is free to those whose turn it is, in every way in which that can go.
    fn settled(mut self, asks: &[Ask]) -> Vec<Self> {
        let now = self.now;
        for grant in self.grants.extract_if(.., |grant| grant.until <= now).collect::<Vec<_>>() {
            self.end_cells(&grant);
        }
        for cell in self.cells.iter_mut().filter(|cell| cell.as_ref().is_some_and(|cell| cell.until <= now)) {
            *cell = None;
        }
        for at in 0..self.line.len() {
            let who = self.line[at].who;
            let takes = self.may_take(asks, who, at);
            if !self.is_live(&self.line[at]) || self.line[at].is_undecided || takes.is_empty() {
                continue;
            }
            let enter = |names| {
                let mut world = self.clone();
                world.line.remove(at);
                world.grant(asks, who, names);
                world.settled(asks)
            };
            return takes.into_iter().flat_map(enter).collect();
        }
        vec![self]
    }

    /// What an attempt may take without overtaking those who stand before place `at` in line: nothing, or one of
    /// several choices.
    fn may_take(&self, asks: &[Ask], who: usize, at: usize) -> Vec<Vec<usize>> {
        let ask = &asks[who];
        let awaited = |name: &usize| {
            let ahead = self.line[..at].iter().filter(|ticket| self.is_live(ticket));
            ahead.into_iter().any(|ticket| asks[ticket.who].wants.contains(name))
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
        let holders: Vec<Mode> = self.on(name).map(|grant| asks[grant.who].mode).collect();
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
        let there = self.on(name).map(|grant| grant.who).chain(self.line_of(asks, name));
        there.into_iter().any(|who| kind(asks[who].mode) != kind(mode))
    }

    /// Who holds this name.
    pub(crate) fn on(&self, name: usize) -> impl Iterator<Item = &Grant> {
        self.grants.iter().filter(move |grant| grant.names.contains(&name))
    }

    fn grant(&mut self, asks: &[Ask], who: usize, names: Vec<usize>) -> Grant {
        let nth = self.times.entry(who).or_default();
        *nth += 1;
        let grant = Grant { who, nth: *nth, names, until: self.now + asks[who].ttl };
        self.grants.push(grant.clone());
        grant
    }

    fn end_cells(&mut self, grant: &Grant) {
        for name in &grant.names {
            let ends = |cell: &Cell| cell.keep == Keep::WhileHeld && cell.by == (grant.who, grant.nth);
            if self.cells[*name].as_ref().is_some_and(ends) {
                self.cells[*name] = None;
            }
        }
    }

    fn held_by(&self, who: usize, token: u64) -> Option<usize> {
        self.grants
            .iter()
            .position(|grant| grant.who == who && self.tokens.get(&(who, grant.nth)) == Some(&token))
    }

    fn holds(&self, who: usize) -> bool {
        self.grants.iter().any(|grant| grant.who == who)
    }

    fn is_live(&self, ticket: &Ticket) -> bool {
        ticket.until > self.now
    }
}
