//! Undoing an attempt that has no caller any more: its ticket or grant is removed from the backend.

use std::time::Duration;

use super::Machine;
use super::entry::{Entry, Phase};
use crate::backend::{OnBusy, Reply};
use crate::clock::Moment;
use crate::error::{ErrorKind, Result};
use crate::token::Owner;

/// The number of ttls for which an undo is retried: a ticket that could not be removed may be granted at the end of its lease,
/// and that grant has a lease too.
const UNDO_TTLS: u32 = 2;

#[derive(Debug)]
pub(super) struct Leaving {
    /// When to send the leave; never while it is in flight.
    pub(super) send_at: Moment,
    /// When an undo is no longer needed: the leases it would end have expired.
    give_up: Moment,
    /// The backend may have a ticket of it.
    may_be_queued: bool,
}

impl Leaving {
    pub(super) fn new(ttl: Duration, may_be_queued: bool, now: Moment) -> Self {
        Self { send_at: now, give_up: now + ttl * UNDO_TTLS, may_be_queued }
    }
}

impl<C, T> Machine<C, T> {
    /// Undoes the ticket or grant that this owner may have.
    pub(super) fn leave(&mut self, owner: Owner, now: Moment) {
        self.entries.change(owner, |entry| {
            let may_be_queued =
                matches!(&entry.phase, Phase::Acquiring(acquiring) if acquiring.on_busy == OnBusy::Wait);
            entry.phase = Phase::Leaving(Leaving::new(entry.attempt.ttl, may_be_queued, now));
        });
        self.send_due(owner, now);
    }

    pub(super) fn on_leave_reply(&mut self, owner: Owner, reply: Result<Reply>, now: Moment) {
        let Some(Entry { phase: Phase::Leaving(leaving), outcome_unknown, attempt, .. }) =
            self.entries.get(owner)
        else {
            return;
        };
        let send_at = match reply {
            Ok(Reply::AlreadyGranted(award)) => return self.release_award(owner, award, None, now),
            // A backend writes a tombstone only for an owner that it does not know. If it had a ticket, it has removed that and
            // written no tombstone, so a late send of the acquire would be applied: leave again.
            Ok(_) if *outcome_unknown && leaving.may_be_queued => now,
            Err(error) if now < leaving.give_up && error.kind() != ErrorKind::Closed => {
                now + attempt.ttl / 12
            }
            Ok(_) | Err(_) => {
                self.entries.remove(owner);
                return;
            }
        };
        self.entries.change(owner, |entry| {
            entry.outcome_unknown &= send_at > now;
            if let Phase::Leaving(leaving) = &mut entry.phase {
                leaving.send_at = send_at;
            }
        });
    }
}
