//! Interprets the responses to acquires: granted, waiting, busy, or to be sent again.

use std::sync::Arc;
use std::time::Duration;

use fencepost_core::backend::{OnBusy, Reply};
use fencepost_core::{Attempt, ErrorKind, LostReason, Mode, Result};

use crate::config::Layout;
use crate::error::Failure;
use crate::flight::Flight;
use crate::key_ops::{AcquireTxn, OpOutcome};
use crate::layout::is_owned_by;
use crate::leases::ExtendedLease;
use crate::position::Position;
use crate::proto::{ResponseOp, TxnResponse};
use crate::request::{kvs, raft_term, revision};
use crate::state::State;

impl Flight<'_> {
    /// Records the response to a request that creates keys.
    pub(crate) fn record_response(
        self,
        attempt: &Attempt,
        ExtendedLease { lease, extension }: ExtendedLease,
        response: Result<TxnResponse, Failure>,
    ) -> Result<TxnResponse, Failure> {
        let client = self.client;
        let is_known =
            !matches!(&response, Err(Failure::Failed(error)) if error.kind() == ErrorKind::OutcomeUnknown);
        if is_known {
            client.state().record_answered(attempt.owner, lease.id);
        }
        match (&response, extension) {
            (Ok(response), Some(extension)) => {
                client.state().leases.confirm(extension, raft_term(response));
            }
            (Ok(_), None) => {}
            (Err(failure), _) => {
                self.forget_unless_unanswered(attempt);
                if matches!(failure, Failure::NoLease) {
                    client.lose_lease(lease.id, LostReason::NotHeld);
                }
            }
        }
        response
    }

    /// Removes the entry of an attempt, unless one of its requests may still be applied.
    pub(crate) fn forget_unless_unanswered(self, attempt: &Attempt) {
        let is_unanswered = |state: &State| {
            let own = state.own_entries.get(attempt.owner);
            own.is_some_and(|own| !own.entry.unanswered.is_empty())
        };
        if !is_unanswered(&self.client.state()) {
            self.client.forget(attempt.owner);
        }
    }

    pub(crate) fn on_acquire_response(
        self,
        attempt: &Arc<Attempt>,
        on_busy: OnBusy,
        txn: AcquireTxn,
        response: &TxnResponse,
    ) -> OpOutcome {
        let (client, revision) = (self.client, revision(response));
        let is_full = txn == AcquireTxn::Full;
        if !is_full && !response.succeeded {
            client.state().set_contended(attempt, true);
            return OpOutcome::SendAgain;
        }
        if !response.succeeded {
            return self.on_rejected(attempt, on_busy, &response.responses, revision);
        }
        attempt.wants.iter().for_each(|want| client.observe_grant(&want.name));
        let cluster = &client.cluster;
        let mut queues = response.responses.iter().skip(attempt.wants.len());
        let mut is_alone = true;
        let positions = attempt.wants.iter().map(|want| {
            let is_read = !cluster.needs_free_lock(on_busy) || cluster.keys.blocking(want).is_none();
            let queue = if is_full && is_read { queues.next().map_or(&[][..], kvs) } else { &[] };
            // For a shared lock only exclusive entries are read: other shared ones may exist.
            is_alone &= queue.len() <= 1 && want.mode != Mode::Shared;
            cluster.position(want, queue, revision)
        });
        let positions: Vec<Position> = positions.collect();
        if is_full && is_alone {
            client.state().set_contended(attempt, false);
        }
        let reply = client.record_positions(attempt, &positions, revision, revision, self.sent_at);
        OpOutcome::Reply(reply.ok_or_else(|| client.cluster.undone_by_cleanup(attempt)))
    }

    /// Interprets the response to a full acquire whose comparisons failed. `reads` are its tombstone, its own keys, and
    /// entries that use the lock in an incompatible way.
    fn on_rejected(
        self,
        attempt: &Arc<Attempt>,
        on_busy: OnBusy,
        reads: &[ResponseOp],
        read_revision: i64,
    ) -> OpOutcome {
        let (client, owner) = (self.client, attempt.owner);
        let (wants, layout) = (&attempt.wants, client.cluster.keys.layout);
        let has_tombstone = reads.first().is_some_and(|tombstone| !kvs(tombstone).is_empty());
        let mut at_own_keys = reads.iter().skip(1).take(wants.len()).flat_map(kvs).peekable();
        let is_occupied = at_own_keys.peek().is_some() && layout != Layout::Single;
        if let (Layout::Single, Some(key)) = (layout, at_own_keys.peek()) {
            client.observe_holder(&wants[0].name, &key.value);
        }
        if !has_tombstone && at_own_keys.any(|key| is_owned_by(key, owner)) {
            return OpOutcome::AlreadyQueued;
        }
        // The key belongs to an earlier attempt of this client whose end has not reached the server yet, or to a foreign
        // client.
        if !has_tombstone && is_occupied && client.state().try_new_suffix(owner) {
            return OpOutcome::SendAgain;
        }
        client.forget(owner);
        if !has_tombstone && is_occupied {
            return OpOutcome::Reply(Err(client.cluster.undone_by_cleanup(attempt)));
        }
        let incompatible = reads.iter().skip(1 + wants.len()).flat_map(kvs);
        let incompatible: Vec<_> =
            incompatible.filter_map(|key| client.cluster.keys.parse_entry(&key.key)).collect();
        for want in wants.iter().filter(|_| !has_tombstone) {
            let modes = incompatible.iter().filter(|key| key.name == want.name).map(|key| key.mode);
            if let Err(conflict) = want.agree(modes) {
                return OpOutcome::Reply(Err(conflict));
            }
        }
        OpOutcome::Reply(Ok(match on_busy {
            OnBusy::Return => Reply::Busy,
            // The next check finds no ticket, and the engine retries with another owner.
            OnBusy::Wait if has_tombstone => Reply::Waiting { check_after: Duration::ZERO },
            OnBusy::Wait => client.wait_for_deletion(attempt, read_revision, self.sent_at),
        }))
    }
}
