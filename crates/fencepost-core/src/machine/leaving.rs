//! Undoing: what may be in the storage of an owner that no caller waits for any more.

use std::time::Duration;

use super::Machine;
use super::entry::{Entry, Phase};
use crate::backend::{OnBusy, Reply};
use crate::clock::Moment;
use crate::error::{ErrorKind, Result};
use crate::token::Owner;

/// For how many ttls an undo is repeated: a ticket that cannot be given up may be granted at the end of its lease, and that
/// grant has a lease too.
const UNDO_FOR: u32 = 2;

#[derive(Debug)]
pub(super) struct Leaving {
    /// When to send the leave; never while it is in flight.
    pub(super) again: Moment,
    /// When an undo is no longer needed: whatever it would undo has ended by itself.
    give_up: Moment,
    /// The storage may have a ticket of it.
    may_be_in_line: bool,
}

impl Leaving {
    pub(super) fn new(ttl: Duration, may_be_in_line: bool, now: Moment) -> Self {
        Self { again: now, give_up: now + ttl * UNDO_FOR, may_be_in_line }
    }
}

impl<C, T> Machine<C, T> {
    /// Undoes whatever there may be of this owner.
    pub(super) fn leave(&mut self, owner: Owner, now: Moment) {
        self.entries.change(owner, |entry| {
            let may_be_in_line =
                matches!(&entry.phase, Phase::Wanted(wanted) if wanted.on_busy == OnBusy::Wait);
            entry.phase = Phase::Leaving(Leaving::new(entry.attempt.ttl, may_be_in_line, now));
        });
        self.send_what_is_due(owner, now);
    }

    pub(super) fn leave_answered(&mut self, owner: Owner, reply: Result<Reply>, now: Moment) {
        let Some(Entry { phase: Phase::Leaving(leaving), is_doubtful, attempt, .. }) =
            self.entries.get(owner)
        else {
            return;
        };
        let again = match reply {
            Ok(Reply::AlreadyGranted(award)) => return self.give_back(owner, award, None, now),
            // A storage remembers an owner that it did not know. If it had a ticket, a late send of the acquire would not be
            // defeated yet.
            Ok(_) if *is_doubtful && leaving.may_be_in_line => now,
            Err(error) if now < leaving.give_up && error.kind() != ErrorKind::Closed => {
                now + attempt.ttl / 12
            }
            Ok(_) | Err(_) => {
                self.entries.remove(owner);
                return;
            }
        };
        self.entries.change(owner, |entry| {
            entry.is_doubtful &= again > now;
            if let Phase::Leaving(leaving) = &mut entry.phase {
                leaving.again = again;
            }
        });
    }
}
