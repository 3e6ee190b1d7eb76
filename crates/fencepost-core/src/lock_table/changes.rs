//! How a table changes: every change is kept with what was there before, so that it can be undone, and written.

use std::collections::{BTreeMap, BTreeSet};
use std::mem;

use super::LockTable;
use crate::name::LockName;
use crate::record::{Holder, LockRecord, StoredCell, Ticket};
use crate::token::Owner;

type Queue = BTreeMap<u64, Owner>;

/// What is at a key, or was there before.
#[derive(Debug)]
pub(super) enum Change {
    Holder(LockName, Owner, Option<Holder>),
    /// In the lines of all its wants that are here.
    Ticket(Owner, Option<Ticket>),
    Cell(LockName, Option<StoredCell>),
}

/// The key of a row that has to be written as it is now in the table, or deleted if it is not there any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum RowKey<'a> {
    /// The holder of this lock with this owner.
    Holder(&'a LockName, Owner),
    /// The place in the line of this lock with this number and owner.
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

    /// Forgets the changes, because they were written.
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

    /// Makes a change and returns what was there before.
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
                self.each_place(before.as_ref(), |queue, seq| queue.remove(&seq));
                self.each_place(ticket.as_ref(), |queue, seq| queue.insert(seq, owner));
                self.tickets.extend(ticket.map(|ticket| (owner, ticket)));
                Change::Ticket(owner, before)
            }
            Change::Cell(name, cell) => {
                let before = mem::replace(&mut self.fetched(&name).cell, cell);
                Change::Cell(name, before)
            }
        }
    }

    fn each_place(&mut self, ticket: Option<&Ticket>, act: impl Fn(&mut Queue, u64) -> Option<Owner>) {
        let Some(Ticket { attempt, seq, .. }) = ticket else { return };
        for want in &attempt.wants {
            if let Some(line) = self.lines.get_mut(&want.name) {
                act(&mut line.queue, *seq);
            }
        }
    }

    fn fetched(&mut self, name: &LockName) -> &mut LockRecord {
        self.lines.get_mut(name).expect("a line is fetched before it is looked at")
    }
}
