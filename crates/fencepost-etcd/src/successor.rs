//! The hand-over within a process: the transaction of a release also reads whether the successor in the same process holds
//! now. Waiters of other processes are notified by their watches.

use std::sync::Arc;

use fencepost_core::backend::{Reply, Wakeup};
use fencepost_core::{Attempt, Grant, Mode};

use crate::position::Position;
use crate::proto::{RangeRequest, RequestOp, TxnResponse};
use crate::request::{get, keys_only, kvs, newest_first, revision};
use crate::state::{ClientState, State};

/// The waiter of this process that gets the lock after a release. The response to the release tells whether it holds;
/// otherwise it is woken and checks by itself.
pub(crate) struct Successor<'a> {
    client: &'a ClientState,
    attempt: Arc<Attempt>,
    key: Vec<u8>,
    /// The revision that created its key.
    create_revision: i64,
    is_granted: bool,
}

impl<'a> Successor<'a> {
    /// Returns the waiter of this process that waits for the end of this grant only. Its watch does not wake it while the
    /// release is in flight.
    pub(crate) fn find(client: &'a ClientState, state: &mut State, grant: &Grant) -> Option<Self> {
        let [want] = grant.held() else { return None };
        let released = state.entry_key(&client.cluster, want, grant.attempt.owner);
        let owner = state.watches.waiter_for(&released)?;
        let own = state.own_entries.get(owner)?;
        let is_exclusive = matches!(own.attempt.wants.as_slice(), [want] if want.mode == Mode::Exclusive);
        let create_revision = own.entry.create_revision.filter(|_| is_exclusive)?;
        let attempt = own.attempt.clone();
        let key = state.entry_key(&client.cluster, &attempt.wants[0], owner);
        state.successors.insert(owner).then(|| Self {
            client,
            attempt,
            key,
            create_revision,
            is_granted: false,
        })
    }

    /// Returns the reads that tell whether it holds: its own key, and what is ahead of it.
    pub(crate) fn reads(&self) -> [RequestOp; 2] {
        let want = &self.attempt.wants[0];
        let ahead = newest_first(self.client.cluster.keys.queue(&want.name), 1);
        let ahead = RangeRequest { max_create_revision: self.create_revision - 1, ..ahead };
        [get(keys_only(self.key.clone())), get(ahead)]
    }

    /// Grants it the lock if the transaction that released it has read that it holds now.
    pub(crate) fn on_response(mut self, response: &TxnResponse) {
        let (true, [_, own, ahead]) = (response.succeeded, response.responses.as_slice()) else { return };
        let exists = kvs(own).first().is_some_and(|key| key.create_revision == self.create_revision);
        if !exists || !kvs(ahead).is_empty() {
            return;
        }
        // The elapsed time of its lease is relative to its latest operation, which is what the engine counts from.
        let kept_at = {
            let state = self.client.state();
            let own = state.own_entries.get(self.attempt.owner);
            own.filter(|own| own.entry.create_revision == Some(self.create_revision)).map(|own| own.kept_at)
        };
        let Some(kept_at) = kept_at else { return };
        let (own, read) = (self.create_revision, revision(response));
        let reply = self.client.record_positions(&self.attempt, &[Position::Unblocked], own, read, kept_at);
        if let Some(Reply::Granted(award)) = reply {
            self.is_granted = true;
            self.client.pusher.push(Wakeup::Granted { attempt: self.attempt.clone(), award });
        }
    }
}

impl Drop for Successor<'_> {
    fn drop(&mut self) {
        self.client.state().successors.remove(&self.attempt.owner);
        if !self.is_granted {
            self.client.wake(self.attempt.owner);
        }
    }
}
