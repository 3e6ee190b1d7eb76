//! Cleans up after attempts that have ended: deletes their keys, and prevents late requests from creating new ones.

use std::collections::{BTreeSet, HashSet};
use std::sync::Arc;
use std::time::Duration;

use fencepost_core::backend::Wakeup;
use fencepost_core::clock::Moment;
use fencepost_core::{Attempt, LostReason, Owner, Result, request_timeout};
use futures_util::future::join_all;

use crate::error::Failure;
use crate::layout::is_owned_by;
use crate::proto::KeyValue;
use crate::request::{delete_each, get, kvs, put, single_key, unconditional};
use crate::state::{ClientState, State};
use crate::watch_events::BROKEN;

/// The minimum time between two searches for expired entries.
const SWEEP_INTERVAL: Duration = Duration::from_millis(100);
/// The timeout of each lease revocation when a client closes.
const REVOKE_TIMEOUT: Duration = Duration::from_secs(1);

/// An attempt that no operation has kept for a ttl, its lease, and when that lease is abandoned.
type Expired = (Arc<Attempt>, i64, Moment);

impl State {
    /// Marks the attempt of this owner as ending if no operation has kept it for the ttl of its lease, which may be longer
    /// than requested.
    fn expire(&mut self, owner: Owner, now: Moment) -> Option<Expired> {
        let own = self.own_entries.get_mut(owner)?;
        let (attempt, lease_id) = (own.attempt.clone(), own.entry.lease_id);
        let ttl = self.leases.get(lease_id).map_or(attempt.ttl, |lease| lease.ttl.max(attempt.ttl));
        own.entry.is_ending |= own.kept_at + ttl < now;
        (own.kept_at + ttl < now).then_some((attempt, lease_id, own.kept_at + ttl * 2))
    }

    /// Removes retired leases that have expired. They are not revoked: an acquire that uses one may be in flight.
    fn remove_expired_leases(&mut self, now: Moment) {
        let mut expired = self.leases.retired();
        expired
            .retain(|id| self.leases.get(*id).is_some_and(|lease| lease.confirmed_at + lease.ttl * 3 < now));
        if expired.is_empty() {
            return;
        }
        let entries = self.own_entries.iter().map(|(_, own)| &own.entry);
        let used: HashSet<i64> =
            entries.flat_map(|entry| [entry.lease_id, entry.proven_lease_id()]).collect();
        for id in expired.into_iter().filter(|id| !used.contains(id)) {
            self.leases.remove(id);
        }
    }
}

impl ClientState {
    pub(crate) fn is_ending(&self, owner: Owner) -> bool {
        self.state().own_entries.get(owner).is_some_and(|own| own.entry.is_ending)
    }

    /// Ends an attempt after one of its keys was deleted or broken, and notifies its owner. Without an entry it is granted
    /// nothing, whatever was read before.
    pub(crate) async fn lose(&self, owner: Owner, why: LostReason) {
        let own = self.state().own_entries.get(owner).map(|own| (own.attempt.clone(), own.entry.is_held()));
        let Some((attempt, is_held)) = own else { return };
        // The other keys of several names are to be deleted too; and the client that marked a key as broken may fail before
        // it deletes the key.
        let has_keys = why == LostReason::Broken || attempt.wants.len() > 1;
        if has_keys {
            self.mark_ending(owner);
        } else {
            self.forget(owner);
        }
        self.pusher.push(if is_held { Wakeup::Lost { owner, reason: why } } else { Wakeup::Check { owner } });
        if has_keys {
            // After a failure, the next operation of this owner or the sweep repeats it.
            let _ = self.clean_up(&attempt).await;
        }
    }

    /// Deletes the keys of an attempt that is ending, and removes its entry: an unanswered request of it does nothing when
    /// it is applied late. Several cleanups may run concurrently, and the first that finishes allows the owner to acquire
    /// again; so keys that were found after that are not deleted.
    pub(crate) async fn clean_up(&self, attempt: &Attempt) -> Result<()> {
        let owner = attempt.owner;
        let (create_revision, unanswered) = {
            let state = self.state();
            let Some(own) = state.own_entries.get(owner).filter(|own| own.entry.is_ending) else {
                return Ok(());
            };
            (own.entry.create_revision, own.entry.unanswered.clone())
        };
        for lease_id in unanswered.iter().copied().collect::<BTreeSet<i64>>() {
            self.put_tombstone(attempt, lease_id).await?;
        }
        let keys = match create_revision.filter(|_| unanswered.is_empty()) {
            Some(create_revision) => {
                self.entry_keys(attempt).into_iter().map(|key| (key, create_revision)).collect()
            }
            None => self.find_keys(attempt).await?,
        };
        if !keys.is_empty() && self.is_ending(owner) {
            self.cluster.txn(delete_each(keys), request_timeout(attempt.ttl)).await?;
        }
        if self.is_ending(owner) {
            for lease_id in unanswered {
                self.state().record_answered(owner, lease_id);
            }
            self.forget(owner);
        }
        Ok(())
    }

    fn entry_keys(&self, attempt: &Attempt) -> Vec<Vec<u8>> {
        let state = self.state();
        attempt.wants.iter().map(|want| state.entry_key(&self.cluster, want, attempt.owner)).collect()
    }

    /// Returns the existing keys of an attempt with their create revisions. A key with its suffix may belong to another
    /// attempt.
    async fn find_keys(&self, attempt: &Attempt) -> Result<Vec<(Vec<u8>, i64)>> {
        let reads = self.entry_keys(attempt).into_iter().map(|key| get(single_key(key))).collect();
        let response = self.cluster.txn(unconditional(reads), request_timeout(attempt.ttl)).await?;
        let state = self.state();
        let entry = state.own_entries.get(attempt.owner).map(|own| &own.entry);
        let (create_revision, lease_id) =
            (entry.and_then(|entry| entry.create_revision), entry.map(|entry| entry.lease_id));
        // The value of a key that was marked as broken does not name its owner any more.
        let is_broken = |key: &KeyValue| key.value == BROKEN && Some(key.lease) == lease_id;
        let is_own = |key: &&KeyValue| {
            Some(key.create_revision) == create_revision || is_owned_by(key, attempt.owner) || is_broken(key)
        };
        let keys = response.responses.iter().flat_map(kvs).filter(is_own);
        Ok(keys.map(|key| (key.key.clone(), key.create_revision)).collect())
    }

    /// Prevents unanswered requests of an attempt on this lease from taking effect. The tombstone is attached to the same
    /// lease, so it exists exactly as long as a late request could create keys.
    async fn put_tombstone(&self, attempt: &Attempt, lease_id: i64) -> Result<()> {
        let tombstone = put(self.cluster.keys.tombstone(attempt.owner, lease_id), Vec::new(), lease_id);
        match self.cluster.link.txn(unconditional(vec![tombstone]), request_timeout(attempt.ttl)).await {
            Ok(_) => {
                self.state().leases.count_tombstone(lease_id);
                Ok(())
            }
            // Without the lease, a late request fails as well.
            Err(Failure::NoLease) => Ok(()),
            Err(failure) => Err(self.cluster.to_error(failure)),
        }
    }

    /// Cleans up after attempts that no operation has kept for a ttl. If that fails for another ttl although the lease
    /// lives, the lease is abandoned with all attempts on it.
    pub(crate) async fn sweep(&self, now: Moment) {
        let expired: Vec<Expired> = {
            let mut state = self.state();
            if state.last_sweep.is_some_and(|last| now.since(last) < SWEEP_INTERVAL) {
                return;
            }
            state.last_sweep = Some(now);
            state.tombstones.retain(|_, until| *until > now);
            state.remove_expired_leases(now);
            let expired = state.own_entries.expire(now);
            expired.into_iter().filter_map(|owner| state.expire(owner, now)).collect()
        };
        let results = join_all(expired.iter().map(|(attempt, ..)| self.clean_up(attempt))).await;
        for ((_, lease_id, abandon_at), result) in expired.iter().zip(results) {
            if result.is_err() && *abandon_at < now {
                self.lose_lease(*lease_id, LostReason::Abandoned);
            }
        }
    }

    /// Revokes all leases, and with them all keys of this client.
    pub(crate) async fn revoke_all(&self) {
        let leases = self.state().leases.ids();
        for id in leases {
            match self.cluster.link.lease_revoke(id, REVOKE_TIMEOUT).await {
                Ok(_) | Err(Failure::NoLease) => {}
                // The leases expire by themselves.
                Err(Failure::Failed(_)) => return,
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use fencepost_core::{LockName, Mode, Rule, Want};

    use super::*;

    const NOW: Moment = Moment::from_nanos(1_000_000_000_000);

    #[test]
    fn an_attempt_that_no_operation_keeps_ends_after_a_ttl() {
        let mut state = State::default();
        let attempt = Arc::new(Attempt {
            owner: Owner::random(),
            wants: vec![Want { name: LockName::new("a").unwrap(), mode: Mode::Exclusive }],
            rule: Rule::All,
            ttl: Duration::from_secs(10),
            label: "test".into(),
            meta: [].into(),
        });
        state.register(&attempt, 1, NOW);
        assert!(state.expire(attempt.owner, NOW + attempt.ttl).is_none());
        assert!(state.live_entry(attempt.owner).is_some());
        let (_, lease_id, abandon_at) = state.expire(attempt.owner, NOW + attempt.ttl * 11 / 10).unwrap();
        assert_eq!((lease_id, abandon_at), (1, NOW + attempt.ttl * 2));
        assert!(state.live_entry(attempt.owner).is_none() && state.own_entries.get(attempt.owner).is_some());
    }
}
