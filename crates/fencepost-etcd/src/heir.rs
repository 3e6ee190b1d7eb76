//! Handing over within a process: the transaction of a release also looks whether whoever of ours waits for it is next now,
//! and that its key is there. Waiters of other processes hear of it by their watches.

use fencepost_core::backend::{Reply, Wakeup};
use fencepost_core::{Attempt, Grant, Mode};
use std::sync::Arc;

use crate::enter::Before;
use crate::home::Home;
use crate::proto::{RangeRequest, RequestOp, TxnResponse};
use crate::request::{found, get, latest};

/// Who of ours comes after a grant that is given back.
pub(crate) struct Heir {
    attempt: Arc<Attempt>,
    /// The revision that made its key.
    revision: i64,
}

impl Home {
    /// Who of ours waits for the end of this grant, and for nothing else.
    pub(crate) fn heir(&self, grant: &Grant) -> Option<Heir> {
        let [want] = grant.held() else { return None };
        let state = self.state();
        let owner = state.watches.heir(&self.keys.seat(want, grant.attempt.owner))?;
        let place = state.places.get(owner)?;
        let is_plain = matches!(place.attempt.wants.as_slice(), [want] if want.mode == Mode::Exclusive);
        let revision = place.entry.revision.filter(|_| is_plain)?;
        Some(Heir { attempt: place.attempt.clone(), revision })
    }

    /// What tells whether the heir is next: its own key, and whatever is before it.
    pub(crate) fn succession(&self, heir: &Heir) -> [RequestOp; 2] {
        let want = &heir.attempt.wants[0];
        let before = latest(self.keys.line(&want.name), 1);
        [
            get(self.seat(want, heir.attempt.owner)),
            get(RangeRequest { max_create_revision: heir.revision - 1, ..before }),
        ]
    }

    /// Tells the heir if the transaction that ended the grant has found that it holds now.
    pub(crate) fn hand_over(&self, grant: &Grant, answer: &TxnResponse) {
        let (true, [_, own, before]) = (answer.succeeded, answer.responses.as_slice()) else { return };
        let Some(heir) = self.heir(grant) else { return };
        let Heir { attempt, revision } = heir;
        let is_there = found(own).first().is_some_and(|key| key.create_revision == revision);
        if !is_there || !found(before).is_empty() {
            return;
        }
        // What is known of its lease is counted from when somebody last cared for it: that is what the engine counts from.
        let Some(kept) = self.state().places.get(attempt.owner).map(|place| place.kept) else { return };
        let seen = answer.header.map_or(0, |header| header.revision);
        if let Reply::Granted(award) = self.stands(&attempt, &[Before::Nobody], revision, seen, kept) {
            self.push(Wakeup::Granted { owner: attempt.owner, award });
        }
    }
}
