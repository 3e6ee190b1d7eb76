//! The rules of the lock as a pure decision over records that were fetched before, for backends whose client decides inside a
//! transaction.
//!
//! A backend asks a [`LockTable`] to decide an operation. The result is a reply, or [`Needs`]: what has to be fetched before the
//! next try. Changes are written row by row ([`LockTable::changed`]), and pushes are sent once they are committed. The position
//! of an attempt is the same in the queues of all its names, so several names are granted without a deadlock and no waiter
//! overtakes another.

mod changes;
mod queue;
mod step;
#[cfg(test)]
mod tests;

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

/// The number of waiters to fetch at first: most decisions need no more, unless many of them have expired.
pub const FIRST_WAITERS: usize = 32;

/// The input of a decision besides the records.
pub struct Context<'a> {
    /// The client of the operation.
    pub client: ClientId,
    /// The time on the backend's clock.
    pub now: StorageTime,
    /// The time on the wall clock: for display only.
    pub wall: Duration,
    /// Numbers for tokens and positions, each larger than every one used before. Numbers taken by a decision that then needs more
    /// are skipped.
    pub numbers: &'a mut dyn Iterator<Item = u64>,
    /// Returns whether a push to a client would arrive, as far as is known; it must not block. An unreachable waiter is passed
    /// over but keeps its position.
    pub reachable: &'a dyn Fn(ClientId) -> bool,
}

/// A decision, or what has to be fetched first; then nothing has changed.
pub type Decision<T> = std::result::Result<T, Needs>;

/// What has to be fetched before a decision.
#[derive(Debug, PartialEq, Eq)]
pub enum Needs {
    /// These records, sorted by name. A record that was fetched in part is needed as a whole.
    Records(Vec<LockName>),
    /// The ticket of this owner in this queue, which may be behind the part that was fetched.
    Ticket(LockName, Owner),
    /// More numbers.
    Numbers,
}

/// The records of many locks, in memory.
#[derive(Debug, Default)]
pub struct LockTable {
    records: HashMap<LockName, LockRecord>,
    tickets: HashMap<Owner, Ticket>,
    tombstones: HashMap<Owner, StorageTime>,
    /// The owner whose ticket was looked up last.
    looked_up: Option<Owner>,
    /// Whether the records are copies of rows: missing ones have to be fetched, and changes written.
    is_copy: bool,
    changes: Vec<Change>,
    pushes: Vec<(ClientId, Wakeup)>,
}

impl LockTable {
    /// Returns an empty table of copies of rows. A default table is the stored data itself: a lock that is not in it is free,
    /// nothing but numbers is ever needed, and no change has to be written.
    pub fn of_rows() -> Self {
        Self { is_copy: true, ..Self::default() }
    }

    /// Decides one operation.
    ///
    /// # Errors
    /// What it needs. A rejected operation is decided, with an error of kind [`crate::ErrorKind::Conflict`].
    pub fn decide(&mut self, op: &Op, context: &mut Context<'_>) -> Decision<Result<Reply>> {
        self.run(context, |step| step.execute(op))
    }

    /// Removes everything that has expired from this record, and grants what became free.
    ///
    /// # Errors
    /// What it needs.
    pub fn sweep(&mut self, name: &LockName, context: &mut Context<'_>) -> Decision<()> {
        self.run(context, |step| step.sweep(name))
    }

    /// Sweeps every record, and drops empty ones.
    ///
    /// # Errors
    /// What it needs.
    pub fn sweep_all(&mut self, context: &mut Context<'_>) -> Decision<()> {
        let names: Vec<LockName> = self.records.keys().cloned().collect();
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

    /// Inserts a fetched record with its tickets, replacing the old one. Changes to it must have been written before.
    pub fn insert(&mut self, name: LockName, record: LockRecord, tickets: Vec<Ticket>) {
        for ticket in tickets {
            self.tickets.entry(ticket.attempt.owner).or_insert(ticket);
        }
        self.records.insert(name, record);
    }

    /// Inserts the result of looking up the ticket of this owner. Changes must have been written before.
    pub fn insert_ticket(&mut self, owner: Owner, found: Option<Ticket>) {
        self.looked_up = Some(owner);
        self.swap(Change::Ticket(owner, found));
    }

    /// Returns the record of this name, if it was fetched.
    pub fn record(&self, name: &LockName) -> Option<&LockRecord> {
        self.records.get(name)
    }

    /// Iterates over the fetched records.
    pub fn records(&self) -> impl ExactSizeIterator<Item = (&LockName, &LockRecord)> {
        self.records.iter()
    }

    /// Returns the tickets in those records.
    pub fn tickets(&self) -> &HashMap<Owner, Ticket> {
        &self.tickets
    }

    /// Returns the number of tombstones.
    pub fn tombstone_count(&self) -> usize {
        self.tombstones.len()
    }

    /// Takes the pushes, to send after the changes were committed.
    pub fn take_pushes(&mut self) -> Vec<(ClientId, Wakeup)> {
        std::mem::take(&mut self.pushes)
    }

    /// Removes the holders of this lock, as if their rows had been deleted: for tests.
    pub fn forget_holders(&mut self, name: &LockName) {
        if let Some(record) = self.records.get_mut(name) {
            record.holders.clear();
        }
    }

    /// Drops all records, because their rows may have changed, and all pending changes and pushes. Tombstones are kept.
    pub fn forget_records(&mut self) {
        let tombstones = std::mem::take(&mut self.tombstones);
        *self = Self { tombstones, is_copy: self.is_copy, ..Self::default() };
    }

    /// Drops empty records and expired tombstones.
    pub fn tidy(&mut self, now: StorageTime) {
        self.records.retain(|_, record| !record.is_empty());
        self.tombstones.retain(|_, until| *until > now);
    }
}
