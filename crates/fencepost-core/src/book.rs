//! The rules of the lock as a pure decision: given the lines that a storage keeps and an operation, what the answer is,
//! what changes, and whom to tell.
//!
//! Storages that let the client decide inside a transaction share this: they load lines from a [`Shelf`], execute
//! operations on the [`Book`], and write back what was touched. First come, first served: a place in line is the same
//! in all lines of an attempt, so several names are granted without a deadlock, and nobody overtakes.

mod step;
#[cfg(test)]
mod tests;

use std::collections::HashMap;

use crate::backend::{Op, Reply, Wakeup};
use crate::clock::Moment;
use crate::error::Result;
use crate::line::{ClientId, Line, Ticket};
use crate::name::LockName;
use crate::token::Owner;
use step::Step;

/// Where lines are kept between operations.
pub trait Shelf {
    /// The line of this name and the tickets in it, if there is anything to remember.
    fn load(&mut self, name: &LockName) -> Result<Option<(Line, Vec<Ticket>)>>;
    /// A number larger than every one before.
    fn mint(&mut self) -> Result<u64>;
    /// Whether a push to this client would arrive, as far as can be told. A waiter that cannot be reached is passed over
    /// but keeps its place.
    fn reachable(&mut self, client: ClientId) -> bool;
}

/// What an operation has changed.
#[derive(Debug, Default)]
pub struct Touched {
    /// Holders that came, changed or went.
    pub holders: Vec<(LockName, Owner)>,
    /// Places in line that came, changed or went.
    pub tickets: Vec<(LockName, u64, Owner)>,
    /// Cells that came, changed or went.
    pub cells: Vec<LockName>,
}

impl Touched {
    /// Whether nothing was.
    pub fn is_empty(&self) -> bool {
        self.holders.is_empty() && self.tickets.is_empty() && self.cells.is_empty()
    }
}

/// The lines that are in use, and what is to be done about them.
#[derive(Debug, Default)]
pub struct Book {
    lines: HashMap<LockName, Line>,
    tickets: HashMap<Owner, Ticket>,
    departed: HashMap<Owner, Moment>,
    /// What changed since it was last taken.
    pub touched: Touched,
    /// Whom to tell what, once the changes are safe.
    pub pushes: Vec<(ClientId, Wakeup)>,
}

impl Book {
    /// The line of this name, if it is in use.
    pub fn line(&self, name: &LockName) -> Option<&Line> {
        self.lines.get(name)
    }

    /// All lines in use.
    pub fn lines(&self) -> impl Iterator<Item = (&LockName, &Line)> {
        self.lines.iter()
    }

    /// The tickets in those lines.
    pub fn tickets(&self) -> &HashMap<Owner, Ticket> {
        &self.tickets
    }

    /// How many owners are remembered that have left before they came.
    pub fn departures(&self) -> usize {
        self.departed.len()
    }

    /// Forgets who holds this lock, as if somebody had deleted it from the storage: for tests.
    pub fn forget_holders(&mut self, name: &LockName) {
        if let Some(line) = self.lines.get_mut(name) {
            line.holders.clear();
        }
    }

    /// How many lines are in use.
    pub fn len(&self) -> usize {
        self.lines.len()
    }

    /// Whether no line is in use.
    pub fn is_empty(&self) -> bool {
        self.lines.is_empty()
    }

    /// Forgets all lines, because they may have changed on their shelf. Departures are remembered.
    pub fn forget_lines(&mut self) {
        self.lines.clear();
        self.tickets.clear();
    }

    /// Drops lines with nothing in them and departures that have ended.
    pub fn tidy(&mut self, now: Moment) {
        self.lines.retain(|_, line| !line.is_empty());
        self.departed.retain(|_, until| *until > now);
    }

    /// Drops this line if there is nothing in it.
    pub fn tidy_line(&mut self, name: &LockName) {
        if self.lines.get(name).is_some_and(Line::is_empty) {
            self.lines.remove(name);
        }
    }

    /// Executes one operation for `client`.
    ///
    /// # Errors
    /// [`crate::ErrorKind::Conflict`], or what the shelf says. Nothing has changed then, unless it was the shelf.
    pub fn execute(
        &mut self,
        source: &mut impl Shelf,
        client: ClientId,
        op: &Op,
        now: Moment,
    ) -> Result<Reply> {
        Step { book: self, shelf: source, client, now, probed: HashMap::new() }.execute(op)
    }

    /// Ends everything that has ended in this line, and hands on what became free.
    ///
    /// # Errors
    /// What the shelf says.
    pub fn sweep(&mut self, source: &mut impl Shelf, name: &LockName, now: Moment) -> Result<()> {
        let mut step = Step { book: self, shelf: source, client: ClientId(0), now, probed: HashMap::new() };
        step.sweep(name)
    }
}
