//! Handing over within a process: the transaction of a release also looks whether whoever of ours waits for it is next now,
//! and that its key is there. Waiters of other processes hear of it by their watches.

use std::sync::Arc;

use fencepost_core::backend::{Reply, Wakeup};
use fencepost_core::{Attempt, Grant, Mode, Owner};

use crate::home::Home;
use crate::proto::{RangeRequest, RequestOp, TxnResponse};
use crate::request::{found, get, latest, mere};
use crate::standing::Before;

/// Who of ours comes after a grant that is given back. It is told by the answer to the release, or, if that does not come,
/// that it should look for itself.
pub(crate) struct Heir<'a> {
    home: &'a Home,
    attempt: Arc<Attempt>,
    seat: Vec<u8>,
    /// The revision that made its key.
    revision: i64,
    is_told: bool,
}

impl Home {
    /// Who of ours waits for the end of this grant, and for nothing else. Until it is told, what it hears by its watch does
    /// not count.
    pub(crate) fn heir(&self, grant: &Grant) -> Option<Heir<'_>> {
        let [want] = grant.held() else { return None };
        let mut state = self.state();
        let ending = self.keys.seat(want, state.seats.called(grant.attempt.owner));
        let owner = state.watches.heir(&ending)?;
        let place = state.places.get(owner)?;
        let is_plain = matches!(place.attempt.wants.as_slice(), [want] if want.mode == Mode::Exclusive);
        let revision = place.entry.revision.filter(|_| is_plain)?;
        let attempt = place.attempt.clone();
        let seat = self.keys.seat(&attempt.wants[0], state.seats.called(owner));
        state.heirs.insert(owner).then(|| Heir { home: self, attempt, seat, revision, is_told: false })
    }
}

impl Heir<'_> {
    fn owner(&self) -> Owner {
        self.attempt.owner
    }

    /// What tells whether it is next: its own key, and whatever is before it.
    pub(crate) fn succession(&self) -> [RequestOp; 2] {
        let want = &self.attempt.wants[0];
        let before = latest(self.home.keys.line(&want.name), 1);
        [get(mere(self.seat.clone())), get(RangeRequest { max_create_revision: self.revision - 1, ..before })]
    }

    /// Tells it if the transaction that ended the grant has found that it holds now.
    pub(crate) fn hear(mut self, answer: &TxnResponse) {
        let (true, [_, own, before]) = (answer.succeeded, answer.responses.as_slice()) else { return };
        let is_there = found(own).first().is_some_and(|key| key.create_revision == self.revision);
        if !is_there || !found(before).is_empty() {
            return;
        }
        // What is known of its lease is counted from when somebody last cared for it: that is what the engine counts from.
        let kept = self.home.state().places.get(self.owner()).map(|place| place.kept);
        let Some(kept) = kept else { return };
        let seen = answer.header.map_or(0, |header| header.revision);
        let stands = self.home.stands(&self.attempt, &[Before::Nobody], self.revision, seen, kept);
        if let Reply::Granted(award) = stands {
            self.is_told = true;
            self.home.push(Wakeup::Granted { attempt: self.attempt.clone(), award });
        }
    }
}

impl Drop for Heir<'_> {
    fn drop(&mut self) {
        let mut state = self.home.state();
        state.heirs.remove(&self.owner());
        if !self.is_told {
            self.home.push(Wakeup::Turn { owner: self.owner() });
        }
    }
}
