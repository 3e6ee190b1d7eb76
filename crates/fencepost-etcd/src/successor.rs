//! Handing over within a process: the transaction of a release also looks whether the waiter of this process that waits for
//! it is next now, and that its key is there. Waiters of other processes hear of it by their watches.

use std::sync::Arc;

use fencepost_core::backend::{Reply, Wakeup};
use fencepost_core::{Attempt, Grant, Mode};

use crate::client_state::{ClientState, State};
use crate::proto::{RangeRequest, RequestOp, TxnResponse};
use crate::request::{found, get, latest, mere};
use crate::standing::Before;

/// The waiter of this process that comes after a grant which is given back. It is told by the answer to the release, or, if
/// there is none, that it should look for itself.
pub(crate) struct Successor<'a> {
    client: &'a ClientState,
    attempt: Arc<Attempt>,
    seat: Vec<u8>,
    /// The revision that created its key.
    revision: i64,
    is_told: bool,
}

impl<'a> Successor<'a> {
    /// Returns the waiter of this process that waits for the end of this grant, and for nothing else. Until it is told, its
    /// watch does not wake it.
    pub(crate) fn of(client: &'a ClientState, state: &mut State, grant: &Grant) -> Option<Self> {
        let [want] = grant.held() else { return None };
        let ending = state.seat(&client.store, want, grant.attempt.owner);
        let owner = state.watches.waits_for(&ending)?;
        let place = state.places.get(owner)?;
        let is_plain = matches!(place.attempt.wants.as_slice(), [want] if want.mode == Mode::Exclusive);
        let revision = place.entry.revision.filter(|_| is_plain)?;
        let attempt = place.attempt.clone();
        let seat = state.seat(&client.store, &attempt.wants[0], owner);
        state.successors.insert(owner).then(|| Self { client, attempt, seat, revision, is_told: false })
    }

    /// Returns what tells whether it is next: its own key, and what is before it.
    pub(crate) fn questions(&self) -> [RequestOp; 2] {
        let want = &self.attempt.wants[0];
        let before = latest(self.client.store.keys.line(&want.name), 1);
        [get(mere(self.seat.clone())), get(RangeRequest { max_create_revision: self.revision - 1, ..before })]
    }

    /// Tells it if the transaction that ended the grant has found that it holds now.
    pub(crate) fn on_response(mut self, answer: &TxnResponse) {
        let (true, [_, own, before]) = (answer.succeeded, answer.responses.as_slice()) else { return };
        let is_there = found(own).first().is_some_and(|key| key.create_revision == self.revision);
        if !is_there || !found(before).is_empty() {
            return;
        }
        // What is known of its lease is counted from the newest operation of it: that is what the engine counts from.
        let kept = {
            let state = self.client.state();
            let place = state.places.get(self.attempt.owner);
            place.filter(|place| place.entry.revision == Some(self.revision)).map(|place| place.kept_at)
        };
        let Some(kept) = kept else { return };
        let seen = answer.header.map_or(0, |header| header.revision);
        let stands = self.client.stands(&self.attempt, &[Before::Free], self.revision, seen, kept);
        if let Some(Reply::Granted(award)) = stands {
            self.is_told = true;
            self.client.push.push(Wakeup::Granted { attempt: self.attempt.clone(), award });
        }
    }
}

impl Drop for Successor<'_> {
    fn drop(&mut self) {
        self.client.state().successors.remove(&self.attempt.owner);
        if !self.is_told {
            self.client.wake(self.attempt.owner);
        }
    }
}
