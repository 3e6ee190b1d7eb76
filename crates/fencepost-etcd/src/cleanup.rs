//! Leaving, and removing what is left of attempts that have ended: their keys, and requests that may still arrive.

use std::collections::{BTreeSet, HashSet};
use std::sync::Arc;
use std::time::Duration;

use fencepost_core::backend::{Reply, Wakeup};
use fencepost_core::clock::Moment;
use fencepost_core::{Attempt, LostReason, Owner, Result, request_timeout};
use futures_util::future::join_all;

use crate::client_state::{ClientState, State};
use crate::error::Failure;
use crate::flight::Flight;
use crate::keys::is_own;
use crate::look::Found;
use crate::proto::KeyValue;
use crate::request::{all, all_gone, found, get, one, put};
use crate::watching::BROKEN;

/// How often places that no operation cares for are looked for.
const SWEEP: Duration = Duration::from_millis(100);
/// How long the end of a lease is waited for when a client closes.
const CLOSING: Duration = Duration::from_secs(1);

/// An attempt that no operation has cared for during a ttl, its lease, and when that is given up.
type Lapsed = (Arc<Attempt>, i64, Moment);

impl State {
    /// Ends the attempt of this owner if no operation has cared for it while its lease lasts. That may be longer than was asked
    /// for.
    fn lapsed(&mut self, owner: Owner, now: Moment) -> Option<Lapsed> {
        let place = self.places.get_mut(owner)?;
        let (attempt, lease) = (place.attempt.clone(), place.entry.lease);
        let ttl = self.leases.get(lease).map_or(attempt.ttl, |given| given.ttl.max(attempt.ttl));
        place.entry.ending |= place.kept_at + ttl < now;
        (place.kept_at + ttl < now).then_some((attempt, lease, place.kept_at + ttl * 2))
    }

    /// Forgets retired leases that have ended by themselves. They are not revoked: an acquire that was given one before it was
    /// retired may be under way.
    fn forget_ended_leases(&mut self, now: Moment) {
        let mut ended = self.leases.retired();
        ended.retain(|id| self.leases.get(*id).is_some_and(|it| it.confirmed + it.ttl * 3 < now));
        if ended.is_empty() {
            return;
        }
        let entries = self.places.iter().map(|(_, place)| &place.entry);
        let used: HashSet<i64> = entries.flat_map(|entry| [entry.lease, entry.proven_lease()]).collect();
        for id in ended.into_iter().filter(|id| !used.contains(id)) {
            self.leases.forget(id);
        }
    }
}

impl Flight<'_> {
    /// Leaves the line, or defeats an acquire that may still arrive.
    pub(crate) async fn leave(self, attempt: &Arc<Attempt>) -> Result<Reply> {
        let (client, owner) = (self.client, attempt.owner);
        let was_seen = {
            let mut state = client.state();
            if state.places.remove_local_waiter(owner) {
                state.watches.end(&client.store.link, owner);
                client.wake_next(&state, attempt);
                return Ok(Reply::Left);
            }
            state.departed.insert(owner, self.asked + attempt.ttl);
            let Some(place) = state.live(owner) else { return Ok(Reply::Left) };
            place.entry.revision.is_some()
        };
        let found = self.look(std::slice::from_ref(attempt)).await.pop().transpose();
        let found = found.map_err(|failure| client.store.failed(failure))?;
        if let Some((Found::There { revision, seen, lines }, _)) = found {
            if let Some(reply) = client.stands(attempt, &lines, revision, seen, self.asked)
                && let Reply::Granted(award) = self.settled(attempt, reply).await?
            {
                client.state().departed.remove(&owner);
                return Ok(Reply::AlreadyGranted(award));
            }
            if was_seen {
                // Nothing of it can still arrive.
                client.state().departed.remove(&owner);
            }
        }
        client.ends(owner);
        Ok(Reply::Left)
    }
}

impl ClientState {
    pub(crate) fn is_ending(&self, owner: Owner) -> bool {
        self.state().places.get(owner).is_some_and(|place| place.entry.ending)
    }

    /// Loses an attempt of which a key was removed. Without a place it is awarded nothing, whatever was read before.
    pub(crate) async fn lose(&self, owner: Owner, why: LostReason) {
        let place = self.state().places.get(owner).map(|it| (it.attempt.clone(), it.entry.is_held()));
        let Some((attempt, is_held)) = place else { return };
        // Of several names the others go too; and the client that has marked a key may not come to remove it.
        let is_some_left = why == LostReason::Broken || attempt.wants.len() > 1;
        if is_some_left {
            self.ends(owner);
        } else {
            self.forget(owner);
        }
        self.push.push(if is_held { Wakeup::Lost { owner, reason: why } } else { Wakeup::Check { owner } });
        if is_some_left {
            // If it fails, the next operation of this owner does it, or the sweep.
            let _ = self.clear_away(&attempt).await;
        }
    }

    /// Removes what is left of an attempt that has ended, and frees its place: a request of it that was sent and not answered
    /// does nothing when it arrives. Several may do this at the same time, and the first that is done lets the owner come
    /// again; so nothing is removed that was found after that.
    pub(crate) async fn clear_away(&self, attempt: &Attempt) -> Result<()> {
        let owner = attempt.owner;
        let (revision, unanswered) = {
            let state = self.state();
            let Some(place) = state.places.get(owner).filter(|place| place.entry.ending) else {
                return Ok(());
            };
            (place.entry.revision, place.entry.unanswered.clone())
        };
        for lease in unanswered.iter().copied().collect::<BTreeSet<i64>>() {
            self.put_tombstone(attempt, lease).await?;
        }
        let made = match revision.filter(|_| unanswered.is_empty()) {
            Some(revision) => self.seats_of(attempt).into_iter().map(|seat| (seat, revision)).collect(),
            None => self.keys_of(attempt).await?,
        };
        if !made.is_empty() && self.is_ending(owner) {
            self.store.txn(all_gone(made), request_timeout(attempt.ttl)).await?;
        }
        if self.is_ending(owner) {
            for lease in unanswered {
                self.state().is_answered(owner, lease);
            }
            self.forget(owner);
        }
        Ok(())
    }

    fn seats_of(&self, attempt: &Attempt) -> Vec<Vec<u8>> {
        let state = self.state();
        attempt.wants.iter().map(|want| state.seat(&self.store, want, attempt.owner)).collect()
    }

    /// Returns the keys of an attempt, and what created them. What else is in its seats is another's.
    async fn keys_of(&self, attempt: &Attempt) -> Result<Vec<(Vec<u8>, i64)>> {
        let look = all(self.seats_of(attempt).into_iter().map(|seat| get(one(seat))).collect());
        let answer = self.store.txn(look, request_timeout(attempt.ttl)).await?;
        let state = self.state();
        let entry = state.places.get(attempt.owner).map(|place| &place.entry);
        let (revision, lease) = (entry.and_then(|it| it.revision), entry.map(|it| it.lease));
        // What was marked as broken does not say any more whose it is.
        let is_broken = |key: &KeyValue| key.value == BROKEN && Some(key.lease) == lease;
        let is_its = |key: &&KeyValue| {
            Some(key.create_revision) == revision || is_own(key, attempt.owner) || is_broken(key)
        };
        let keys = answer.responses.iter().flat_map(found).filter(is_its);
        Ok(keys.map(|key| (key.key.clone(), key.create_revision)).collect())
    }

    /// Defeats what an attempt has sent on this lease. The tombstone hangs on the same lease, and so lives for exactly as long
    /// as a late request could create keys.
    async fn put_tombstone(&self, attempt: &Attempt, lease: i64) -> Result<()> {
        let tombstone = put(self.store.keys.left(attempt.owner, lease), Vec::new(), lease);
        match self.store.link.txn(all(vec![tombstone]), request_timeout(attempt.ttl)).await {
            Ok(_) => {
                self.state().leases.has_tombstone(lease);
                Ok(())
            }
            // A late request fails as well.
            Err(Failure::NoLease) => Ok(()),
            Err(failure) => Err(self.store.failed(failure)),
        }
    }

    /// Removes what no operation has cared for during a ttl. If that fails for another ttl although the lease lives, the lease
    /// is given up with everything on it.
    pub(crate) async fn sweep(&self, now: Moment) {
        let lapsed: Vec<Lapsed> = {
            let mut state = self.state();
            if state.swept.is_some_and(|swept| now.since(swept) < SWEEP) {
                return;
            }
            state.swept = Some(now);
            state.departed.retain(|_, until| *until > now);
            state.forget_ended_leases(now);
            let lapsed = state.places.expire(now);
            lapsed.into_iter().filter_map(|owner| state.lapsed(owner, now)).collect()
        };
        let cleared = join_all(lapsed.iter().map(|(attempt, ..)| self.clear_away(attempt))).await;
        for ((_, lease, end), cleared) in lapsed.iter().zip(cleared) {
            if cleared.is_err() && *end < now {
                self.lose_lease(*lease, LostReason::Abandoned);
            }
        }
    }

    /// Ends all leases, and with them everything that this client still has.
    pub(crate) async fn revoke_all(&self) {
        let leases = self.state().leases.ids();
        for id in leases {
            match self.store.link.lease_revoke(id, CLOSING).await {
                Ok(_) | Err(Failure::NoLease) => {}
                // It ends by itself.
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
    fn an_attempt_that_no_operation_cares_for_ends_after_a_ttl() {
        let mut state = State::default();
        let attempt = Arc::new(Attempt {
            owner: Owner::random(),
            wants: vec![Want { name: LockName::new("a").unwrap(), mode: Mode::Exclusive }],
            rule: Rule::All,
            ttl: Duration::from_secs(10),
            label: "test".into(),
            meta: [].into(),
        });
        state.enters(&attempt, 1, NOW);
        assert!(state.lapsed(attempt.owner, NOW + attempt.ttl).is_none());
        assert!(state.live(attempt.owner).is_some());
        let (_, lease, end) = state.lapsed(attempt.owner, NOW + attempt.ttl * 11 / 10).unwrap();
        assert_eq!((lease, end), (1, NOW + attempt.ttl * 2));
        assert!(state.live(attempt.owner).is_none() && state.places.get(attempt.owner).is_some());
    }
}
