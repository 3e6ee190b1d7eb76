//! Attempts that leave the queue.

use std::sync::Arc;

use fencepost_core::backend::Reply;
use fencepost_core::{Attempt, Result};

use crate::check::Lookup;
use crate::flight::Flight;

impl Flight<'_> {
    /// Removes an attempt from its queues, or prevents an acquire of it that may still be applied.
    pub(crate) async fn leave(self, attempt: &Arc<Attempt>) -> Result<Reply> {
        let (client, owner) = (self.client, attempt.owner);
        let had_keys = {
            let mut state = client.state();
            if state.own_entries.remove_local_waiter(owner) {
                state.watches.remove_owner(&client.cluster.link, owner);
                client.wake_unblocked(&state, attempt);
                return Ok(Reply::Left);
            }
            state.tombstones.insert(owner, self.sent_at + attempt.ttl);
            let Some(own) = state.live_entry(owner) else { return Ok(Reply::Left) };
            own.entry.create_revision.is_some()
        };
        let lookup = self.look_up(std::slice::from_ref(attempt)).await.pop().transpose();
        let lookup = lookup.map_err(|failure| client.cluster.to_error(failure))?;
        if let Some((Lookup::Present { create_revision, read_revision, positions }, _)) = lookup {
            let reply =
                client.record_positions(attempt, &positions, create_revision, read_revision, self.sent_at);
            if let Some(reply) = reply
                && let Reply::Granted(award) = self.leave_other_queues(attempt, reply).await?
            {
                client.state().tombstones.remove(&owner);
                return Ok(Reply::AlreadyGranted(award));
            }
            if had_keys {
                // No request of this attempt can still be applied.
                client.state().tombstones.remove(&owner);
            }
        }
        client.mark_ending(owner);
        Ok(Reply::Left)
    }
}
