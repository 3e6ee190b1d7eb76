//! Replaces a lease when the leader that granted it was replaced, and moves its keys. A former leader whose disk hung still
//! counts down its leases, and when it recovers, the new leader executes its revocations although the leases were renewed
//! meanwhile (etcd issues 12528 and 15247). It cannot revoke a lease that it never knew.

use std::time::Duration;

use fencepost_core::{LostReason, Owner, Result, request_timeout};

use crate::cluster::{MAX_NESTED_TXNS, READ_TIMEOUT, batches};
use crate::error::Failure;
use crate::leases::{ExtendedLease, Extension};
use crate::proto::KeyValue;
use crate::request::{get, keys_only, move_to_lease, nested, nested_response, next_kvs, unconditional};
use crate::state::{ClientState, Entry, State};

impl State {
    /// Assigns the keys of one lease to another. Keys that a late request may still create on the first stay there.
    fn reassign(&mut self, from: i64, to: i64) {
        self.for_each_entry(|entry| {
            if entry.lease_id == from && entry.create_revision.is_some() && !entry.is_ending {
                entry.moving_from = Some(entry.proven_lease_id());
                entry.lease_id = to;
            }
        });
        if let Some(lease) = self.leases.get_mut(to) {
            lease.has_pending_moves = true;
        }
    }
}

/// An attempt whose keys may be attached to another lease than the one they belong to.
struct PendingMove {
    owner: Owner,
    create_revision: i64,
    keys: Vec<Vec<u8>>,
}

impl ClientState {
    /// Keeps a lease alive, or replaces it if the leader has changed since it was granted: its keys are moved to a new
    /// lease, and the returned extension is of that one. Returns `None` if the lease does not exist any more.
    pub(crate) async fn keep_alive_or_replace(&self, id: i64) -> Result<Option<Extension>> {
        let Some(mut extension) = self.keep_alive(id).await? else { return Ok(None) };
        let lease = self.state().leases.get(id);
        if let Some(lease) = lease.filter(|lease| lease.term != extension.term) {
            let Some(replacement) = self.replace_lease(id, lease.requested_secs).await? else {
                return Ok(None);
            };
            extension = replacement;
        }
        let has_pending_moves =
            self.state().leases.get(extension.lease_id).is_some_and(|lease| lease.has_pending_moves);
        if has_pending_moves {
            self.move_keys(extension.lease_id).await?;
        }
        Ok(Some(extension))
    }

    /// Replaces a lease by another one.
    async fn replace_lease(&self, id: i64, requested_secs: i64) -> Result<Option<Extension>> {
        let started_at = self.clock.now();
        self.state().leases.retire(id);
        let ttl = Duration::from_secs(requested_secs.unsigned_abs());
        let ExtendedLease { lease, extension } = self.lease_for(ttl).await?;
        self.state().reassign(id, lease.id);
        match extension {
            Some(extension) => Ok(Some(extension)),
            // Its last confirmation is older than this request.
            None if lease.confirmed_at < started_at => self.keep_alive(lease.id).await,
            None => Ok(Some(Extension { lease_id: lease.id, sent_at: lease.confirmed_at, term: lease.term })),
        }
    }

    /// Moves the keys that belong to this lease and may be attached to another. The create revision of a key does not
    /// change, nor do its token and its position.
    async fn move_keys(&self, lease_id: i64) -> Result<()> {
        loop {
            // Meanwhile the same lease may replace another one, and a key may be modified before it is moved.
            let pending = self.pending_moves(lease_id);
            if pending.is_empty() {
                return Ok(());
            }
            for batch in batches(&pending, MAX_NESTED_TXNS, |pending| pending.keys.len()) {
                self.move_batch(lease_id, batch).await?;
            }
        }
    }

    async fn move_batch(&self, lease_id: i64, batch: &[PendingMove]) -> Result<()> {
        let timeout =
            self.state().leases.get(lease_id).map_or(READ_TIMEOUT, |lease| request_timeout(lease.ttl));
        let cluster = &self.cluster;
        let keys = batch.iter().flat_map(|pending| &pending.keys);
        let reads = keys.map(|key| get(keys_only(key.clone()))).collect();
        let read = cluster.link.txn(unconditional(reads), timeout).await;
        let read = read.map_err(|failure| cluster.partially_applied(failure))?;
        let mut reads = read.responses.iter();
        let (mut present, mut missing) = (Vec::new(), Vec::new());
        for pending in batch {
            let keys = pending.keys.iter().filter_map(|_| next_kvs(&mut reads).first());
            let keys: Vec<&KeyValue> =
                keys.filter(|key| key.create_revision == pending.create_revision).collect();
            if keys.len() == pending.keys.len() {
                present.push((pending, keys));
            } else {
                missing.push(pending.owner);
            }
        }
        let keys = present.iter().flat_map(|(_, keys)| keys);
        let moves = keys.map(|key| nested(move_to_lease(key, lease_id))).collect();
        match cluster.link.txn(unconditional(moves), timeout).await {
            Ok(response) => {
                let mut results = response.responses.into_iter();
                for (pending, keys) in &present {
                    let results = results.by_ref().take(keys.len()).filter_map(nested_response);
                    if results.filter(|nested| nested.succeeded).count() == keys.len() {
                        self.state().record_move(lease_id, pending);
                    }
                }
            }
            Err(Failure::NoLease) => {
                self.lose_lease(lease_id, LostReason::NotHeld);
                return Err(cluster.to_error(Failure::NoLease));
            }
            Err(failure) => return Err(cluster.partially_applied(failure)),
        }
        for owner in missing {
            self.lose(owner, LostReason::NotHeld).await;
        }
        Ok(())
    }

    /// Returns the attempts whose keys belong to this lease and are not known to be attached to it.
    fn pending_moves(&self, lease_id: i64) -> Vec<PendingMove> {
        let mut state = self.state();
        let state = &mut *state;
        let own_entries = state.own_entries.iter().map(|(_, own)| own);
        let must_move =
            |entry: &Entry| entry.lease_id == lease_id && entry.moving_from.is_some() && !entry.is_ending;
        let pending = own_entries.filter(|own| must_move(&own.entry)).filter_map(|own| {
            let (attempt, entry) = (&own.attempt, &own.entry);
            let create_revision = entry.create_revision?;
            let key = |want| state.entry_key(&self.cluster, want, attempt.owner);
            let keys = entry.wants(attempt).iter().map(key).collect();
            Some(PendingMove { owner: attempt.owner, create_revision, keys })
        });
        let pending: Vec<PendingMove> = pending.collect();
        if let Some(lease) = state.leases.get_mut(lease_id) {
            lease.has_pending_moves = !pending.is_empty();
        }
        pending
    }
}

impl State {
    /// Records that the keys of this attempt, created by this revision, are attached to this lease.
    fn record_move(&mut self, lease_id: i64, moved: &PendingMove) {
        let own = self.own_entries.get_mut(moved.owner);
        let is_same = |entry: &Entry| {
            entry.lease_id == lease_id && entry.create_revision == Some(moved.create_revision)
        };
        if let Some(own) = own.filter(|own| is_same(&own.entry)) {
            own.entry.moving_from = None;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use fencepost_core::clock::Moment;
    use fencepost_core::{Attempt, LockName, Mode, Rule, Want};

    use super::*;
    use crate::proto::compare::TargetUnion;

    const NOW: Moment = Moment::from_nanos(1_000_000_000_000);

    /// Registers an attempt on lease 1, with keys created by this revision if it is known.
    fn register(state: &mut State, create_revision: Option<i64>) -> Owner {
        let attempt = Arc::new(Attempt {
            owner: Owner::random(),
            wants: vec![Want { name: LockName::new("a").unwrap(), mode: Mode::Exclusive }],
            rule: Rule::All,
            ttl: Duration::from_secs(10),
            label: "test".into(),
            meta: [].into(),
        });
        state.register(&attempt, 1, NOW);
        state.live_entry(attempt.owner).unwrap().entry.create_revision = create_revision;
        attempt.owner
    }

    fn leases(state: &State, owner: Owner) -> (i64, i64) {
        let entry = &state.own_entries.get(owner).unwrap().entry;
        (entry.lease_id, entry.proven_lease_id())
    }

    #[test]
    fn keys_count_on_the_old_lease_until_they_are_moved_to_the_new_one() {
        let mut state = State::default();
        let (present, unanswered) = (register(&mut state, Some(7)), register(&mut state, None));
        let ending = register(&mut state, Some(8));
        state.live_entry(ending).unwrap().entry.is_ending = true;
        state.reassign(1, 2);
        assert_eq!(leases(&state, present), (2, 1));
        assert_eq!((leases(&state, unanswered), leases(&state, ending)), ((1, 1), (1, 1)));
        state.reassign(2, 3);
        assert_eq!(leases(&state, present), (3, 1), "still attached to the first");
        let moved = |create_revision| PendingMove { owner: present, create_revision, keys: Vec::new() };
        state.record_move(2, &moved(7));
        state.record_move(3, &moved(6));
        assert_eq!(leases(&state, present), (3, 1), "another lease, or other keys");
        state.record_move(3, &moved(7));
        assert_eq!(leases(&state, present), (3, 3));
    }

    /// A move that is applied after a later one, or after the key was deleted and created again, does nothing.
    #[test]
    fn a_move_compares_the_revisions_that_were_read() {
        let read =
            KeyValue { key: b"a".to_vec(), create_revision: 7, mod_revision: 9, ..KeyValue::default() };
        let request = move_to_lease(&read, 2);
        let compared: Vec<_> =
            request.compare.into_iter().map(|compare| (compare.key, compare.target_union)).collect();
        let expected = [TargetUnion::CreateRevision(7), TargetUnion::ModRevision(9)];
        assert_eq!(compared, expected.map(|target| (b"a".to_vec(), Some(target))));
        assert!(request.failure.is_empty() && request.success.len() == 1);
    }
}
