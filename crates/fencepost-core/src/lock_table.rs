//! The rules of the lock as a pure decision over lines that were fetched before, for backends whose client decides inside a
//! transaction.
//!
//! A backend asks a [`LockTable`] to decide about an operation. The answer is a reply, or [`Needs`]: what has to be fetched
//! before it asks again. What changed is written row by row ([`LockTable::changed`]), and the pushes are sent once that is
//! committed. First come, first served: a place in line is the same in all lines of an
//! attempt, so several names are granted without a deadlock, and no waiter overtakes another.

mod changes;
mod step;
#[cfg(test)]
mod tests;
mod turns;

use std::collections::HashMap;
use std::time::Duration;

use self::changes::Change;
pub use self::changes::RowKey;
use self::step::Step;
use crate::backend::{Op, Reply, Wakeup};
use crate::clock::StorageTime;
use crate::error::Result;
use crate::name::LockName;
use crate::record::{ClientId, LockRecord, Ticket};
use crate::token::Owner;

/// How many waiters of a line to fetch at first: most decisions need no more, unless many of them are gone.
pub const FIRST_WAITERS: usize = 32;

/// What a decision depends on besides the lines.
pub struct Context<'a> {
    /// The client that asks.
    pub client: ClientId,
    /// Now, on the storage's clock.
    pub now: StorageTime,
    /// Now, on the wall clock: for people.
    pub wall: Duration,
    /// Numbers for tokens and places, each larger than every one that was used before. Those that a decision took before it
    /// turned out to need more are skipped.
    pub numbers: &'a mut dyn Iterator<Item = u64>,
    /// Returns whether a push to a client would arrive, as far as is known; it must not block. A waiter that cannot be
    /// reached is passed over but keeps its place.
    pub reachable: &'a dyn Fn(ClientId) -> bool,
}

/// What was decided, or what has to be fetched first; nothing has changed then.
pub type Decision<T> = std::result::Result<T, Needs>;

/// What has to be fetched before a decision.
#[derive(Debug, PartialEq, Eq)]
pub enum Needs {
    /// These lines, which are in the order of their names. One that was fetched in part is needed as a whole.
    Lines(Vec<LockName>),
    /// The ticket of this owner in this line, which may be behind the part that was fetched.
    Ticket(LockName, Owner),
    /// More numbers.
    Numbers,
}

/// The lines of many locks, in memory.
#[derive(Debug, Default)]
pub struct LockTable {
    lines: HashMap<LockName, LockRecord>,
    tickets: HashMap<Owner, Ticket>,
    departed: HashMap<Owner, StorageTime>,
    /// The owner whose ticket was looked up last.
    looked_up: Option<Owner>,
    /// Whether the lines are copies of rows: what is not here has to be fetched, and what changes has to be written.
    is_copy: bool,
    changes: Vec<Change>,
    pushes: Vec<(ClientId, Wakeup)>,
}

impl LockTable {
    /// Returns an empty table of copies of rows. A default table, by contrast, is the storage itself: a lock that is not in it
    /// is free, nothing is ever needed but numbers, and no change has to be written.
    pub fn of_rows() -> Self {
        Self { is_copy: true, ..Self::default() }
    }

    /// Decides about one operation.
    ///
    /// # Errors
    /// What it needs. An operation that is refused is decided, with an error of kind [`crate::ErrorKind::Conflict`].
    pub fn decide(&mut self, op: &Op, context: &mut Context<'_>) -> Decision<Result<Reply>> {
        self.run(context, |step| step.execute(op))
    }

    /// Ends everything that has ended in this line, and hands on what became free.
    ///
    /// # Errors
    /// What it needs.
    pub fn sweep(&mut self, name: &LockName, context: &mut Context<'_>) -> Decision<()> {
        self.run(context, |step| step.sweep(name))
    }

    /// Sweeps every line, and drops what is empty.
    ///
    /// # Errors
    /// What it needs.
    pub fn sweep_all(&mut self, context: &mut Context<'_>) -> Decision<()> {
        let names: Vec<LockName> = self.lines.keys().cloned().collect();
        names.iter().try_for_each(|name| self.sweep(name, context))?;
        self.tidy(context.now);
        Ok(())
    }

    fn run<T>(
        &mut self,
        context: &mut Context<'_>,
        act: impl FnOnce(&mut Step<'_, '_>) -> Decision<T>,
    ) -> Decision<T> {
        if !self.is_copy {
            self.forget_changes();
        }
        let (changes, pushes) = (self.changes.len(), self.pushes.len());
        let decision = act(&mut Step::new(self, context));
        if decision.is_err() {
            self.undo(changes);
            self.pushes.truncate(pushes);
        }
        decision
    }

    /// Adds a line that was fetched, with its tickets, in place of what is known of it. What was changed in it must have been
    /// written before.
    pub fn insert(&mut self, name: LockName, line: LockRecord, tickets: Vec<Ticket>) {
        for ticket in tickets {
            self.tickets.entry(ticket.attempt.owner).or_insert(ticket);
        }
        self.lines.insert(name, line);
    }

    /// Adds what was found when the ticket of this owner was looked up, after what was changed had been written.
    pub fn insert_ticket(&mut self, owner: Owner, found: Option<Ticket>) {
        self.looked_up = Some(owner);
        self.swap(Change::Ticket(owner, found));
    }

    /// Returns the line of this name, if it is here.
    pub fn line(&self, name: &LockName) -> Option<&LockRecord> {
        self.lines.get(name)
    }

    /// Iterates over the lines that are here.
    pub fn lines(&self) -> impl ExactSizeIterator<Item = (&LockName, &LockRecord)> {
        self.lines.iter()
    }

    /// Returns the tickets in those lines.
    pub fn tickets(&self) -> &HashMap<Owner, Ticket> {
        &self.tickets
    }

    /// Returns how many owners are remembered that have left before they came.
    pub fn departures(&self) -> usize {
        self.departed.len()
    }

    /// Takes the pushes to send: after what changed was committed.
    pub fn take_pushes(&mut self) -> Vec<(ClientId, Wakeup)> {
        std::mem::take(&mut self.pushes)
    }

    /// Forgets who holds this lock, as if its rows had been deleted: for tests.
    pub fn forget_holders(&mut self, name: &LockName) {
        if let Some(line) = self.lines.get_mut(name) {
            line.holders.clear();
        }
    }

    /// Forgets all lines, because their rows may have changed, and what was to be written and pushed. Departures are
    /// remembered.
    pub fn forget_lines(&mut self) {
        let departed = std::mem::take(&mut self.departed);
        *self = Self { departed, is_copy: self.is_copy, ..Self::default() };
    }

    /// Drops lines with nothing in them and departures that have ended.
    pub fn tidy(&mut self, now: StorageTime) {
        self.lines.retain(|_, line| !line.is_empty());
        self.departed.retain(|_, until| *until > now);
    }
}
