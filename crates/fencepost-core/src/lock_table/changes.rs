//! Changes of a table, recorded with the previous value so that they can be undone and written.

use std::collections::{BTreeMap, BTreeSet};
use std::mem;

use super::LockTable;
use crate::name::LockName;
use crate::record::{Holder, LockRecord, StoredCell, Ticket};
use crate::token::Owner;

type Queue = BTreeMap<u64, Owner>;

/// The new or the previous value of a key.
#[derive(Debug)]
pub(super) enum Change {
    Holder(LockName, Owner, Option<Holder>),
    /// In all fetched records of its wants.
    Ticket(Owner, Option<Ticket>),
    Cell(LockName, Option<StoredCell>),
}

/// The key of a row that has to be written with its present value, or deleted if it has none.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum RowKey<'a> {
    /// The holder of this lock with this owner.
    Holder(&'a LockName, Owner),
    /// The queue position of this lock with this number and owner.
    Ticket(&'a LockName, u64, Owner),
    /// The cell of this lock.
    Cell(&'a LockName),
}

impl LockTable {
    /// Returns the keys of the rows to write.
    pub fn changed(&self) -> BTreeSet<RowKey<'_>> {
        let mut keys = BTreeSet::new();
        for change in &self.changes {
            match change {
                Change::Holder(name, owner, _) => keys.extend([RowKey::Holder(name, *owner)]),
                Change::Cell(name, _) => keys.extend([RowKey::Cell(name)]),
                Change::Ticket(owner, before) => {
                    for ticket in before.iter().chain(self.tickets.get(owner)) {
                        let names = ticket.attempt.wants.iter().map(|want| &want.name);
                        keys.extend(names.map(|name| RowKey::Ticket(name, ticket.seq, *owner)));
                    }
                }
            }
        }
        keys
    }

    /// Clears the changes, after they were written.
    pub fn forget_changes(&mut self) {
        self.changes.clear();
    }

    pub(super) fn change(&mut self, change: Change) {
        let before = self.swap(change);
        self.changes.push(before);
    }

    /// Undoes all but this many changes.
    pub(super) fn undo(&mut self, keep: usize) {
        for before in self.changes.split_off(keep).into_iter().rev() {
            self.swap(before);
        }
    }

    /// Applies a change and returns its inverse.
    pub(super) fn swap(&mut self, change: Change) -> Change {
        match change {
            Change::Holder(name, owner, holder) => {
                let holders = &mut self.fetched(&name).holders;
                let before = holders.remove(owner);
                if let Some(holder) = holder {
                    holders.insert(holder);
                }
                Change::Holder(name, owner, before)
            }
            Change::Ticket(owner, ticket) => {
                let before = self.tickets.remove(&owner);
                self.each_queue(before.as_ref(), |queue, seq| queue.remove(&seq));
                self.each_queue(ticket.as_ref(), |queue, seq| queue.insert(seq, owner));
                self.tickets.extend(ticket.map(|ticket| (owner, ticket)));
                Change::Ticket(owner, before)
            }
            Change::Cell(name, cell) => {
                let before = mem::replace(&mut self.fetched(&name).cell, cell);
                Change::Cell(name, before)
            }
        }
    }

    fn each_queue(&mut self, ticket: Option<&Ticket>, act: impl Fn(&mut Queue, u64) -> Option<Owner>) {
        let Some(Ticket { attempt, seq, .. }) = ticket else { return };
        for want in &attempt.wants {
            if let Some(record) = self.records.get_mut(&want.name) {
                act(&mut record.queue, *seq);
            }
        }
    }

    fn fetched(&mut self, name: &LockName) -> &mut LockRecord {
        self.records.get_mut(name).expect("a record is fetched before it is read")
    }
}
