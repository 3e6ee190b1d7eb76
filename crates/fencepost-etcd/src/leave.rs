//! Leaving: the line, what nobody cares for, and in the end everything.

use std::collections::{BTreeSet, HashSet};
use std::sync::Arc;
use std::time::Duration;

use fencepost_core::backend::Reply;
use fencepost_core::clock::Moment;
use fencepost_core::{Attempt, LostReason, Owner, Result};
use futures_util::future::{join, join_all};

use crate::error::Failure;
use crate::home::{Home, State, UnderWay};
use crate::look::Standing;
use crate::proto::KeyValue;
use crate::request::{all, all_gone, found, get, one, put};
use crate::watching::BROKEN;

/// How often somebody looks for what nobody cares for.
const SWEEP: Duration = Duration::from_millis(100);

/// A place that nobody has cared for during a ttl.
struct Lapsed {
    attempt: Arc<Attempt>,
    lease: i64,
    /// When its lease is given up.
    end: Moment,
}

impl State {
    /// The place of this owner, if nobody has cared for it while its lease lasts. That may be longer than was asked for. From
    /// then on it counts no more, also if somebody cares again.
    fn lapsed(&mut self, owner: Owner, now: Moment) -> Option<Lapsed> {
        let place = self.places.get_mut(owner)?;
        let (attempt, lease) = (place.attempt.clone(), place.entry.lease);
        let ttl = self.leases.get(lease).map_or(attempt.ttl, |given| given.ttl.max(attempt.ttl));
        let lapsed = Lapsed { attempt, lease, end: place.kept + ttl * 2 };
        (place.kept + ttl < now).then(|| {
            place.entry.lapsed = true;
            lapsed
        })
    }

    /// Attempts that no caller asks about any more, and of which a request may still arrive.
    fn orphans(&self, now: Moment) -> Vec<Arc<Attempt>> {
        let is_orphan = |attempt: &&Arc<Attempt>| {
            self.places.get(attempt.owner).is_none() && !self.under_way.contains(&attempt.owner)
        };
        self.doubts.overdue(now).filter(is_orphan).cloned().collect()
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

impl Home {
    /// Leaves the line, or defeats an acquire that may still arrive.
    pub(crate) async fn leave(&self, attempt: &Arc<Attempt>, asked: Moment) -> Result<Reply> {
        let owner = attempt.owner;
        let is_known = {
            let mut state = self.state();
            if state.places.stop_waiting(owner) {
                state.watches.end(&self.link, owner);
                self.wake_next(&state, attempt);
                return Ok(Reply::Left);
            }
            let is_known = state.places.get(owner).map(|place| place.entry.revision.is_some());
            if is_known != Some(true) {
                // It may still arrive.
                state.departed.insert(owner, asked + attempt.ttl);
            }
            is_known
        };
        let Some(is_sure) = is_known else {
            self.bury_if_doubtful(attempt).await?;
            self.state().vacate(owner);
            return Ok(Reply::Left);
        };
        let looked = self.look(std::slice::from_ref(attempt)).await;
        let (standings, _) = looked.map_err(|failure| self.failed(failure))?;
        let mut was_there = false;
        if let Some(Standing::There { revision, seen, lines }) = standings.into_iter().next() {
            let reply = self.stands(attempt, &lines, revision, seen, asked);
            if let Reply::Granted(award) = self.settled(attempt, reply).await? {
                self.state().departed.remove(&owner);
                return Ok(Reply::HadBeenGranted(award));
            }
            was_there = true;
        }
        self.bury(attempt).await?;
        self.forget(owner);
        if is_sure && !was_there {
            // Somebody has taken its keys away before; to the storage it was nobody who left.
            self.state().departed.insert(owner, asked + attempt.ttl);
        }
        Ok(Reply::Left)
    }

    /// Takes the keys of an attempt away, whatever they are.
    pub(crate) async fn clear(&self, attempt: &Attempt) -> Result<()> {
        let (owner, patience) = (attempt.owner, Self::patience(attempt.ttl));
        let seats: Vec<Vec<u8>> = attempt.wants.iter().map(|want| self.seat(want, owner)).collect();
        let (known, lease, is_doubtful) = {
            let state = self.state();
            let entry = state.places.get(owner).map(|place| &place.entry);
            (entry.and_then(|it| it.revision), entry.map(|it| it.lease), state.doubts.has(owner))
        };
        let made: Vec<(Vec<u8>, i64)> = match known {
            Some(revision) if !is_doubtful => seats.into_iter().map(|seat| (seat, revision)).collect(),
            known => {
                let look = all(seats.into_iter().map(|seat| get(one(seat))).collect());
                let answer = self.link.txn(look, patience).await.map_err(|failure| self.failed(failure))?;
                // What was marked as broken does not say any more whose it is.
                let is_broken = |key: &KeyValue| key.value == BROKEN && Some(key.lease) == lease;
                let is_ours = |key: &&KeyValue| {
                    Some(key.create_revision) == known || Self::is_own(key, owner) || is_broken(key)
                };
                let own = answer.responses.iter().flat_map(found).filter(is_ours);
                own.map(|key| (key.key.clone(), key.create_revision)).collect()
            }
        };
        if made.is_empty() {
            return Ok(());
        }
        // Whatever else is there, or comes there before this arrives, is another's.
        let cleared = self.link.txn(all_gone(made), patience).await;
        cleared.map(drop).map_err(|failure| self.failed(failure))
    }

    /// An attempt is over, although some of its keys may be left. They go; if that fails, its place is remembered until they do.
    pub(crate) async fn end(&self, attempt: &Attempt) {
        {
            let mut state = self.state();
            let state = &mut *state;
            state.watches.end(&self.link, attempt.owner);
            if let Some(place) = state.places.get_mut(attempt.owner) {
                place.entry.lapsed = true;
            }
        }
        // If it fails, whoever sweeps goes on with it.
        let _ = self.clear_away(attempt).await;
    }

    /// Takes the keys of a place away that has lapsed, and forgets it. The same owner may have come anew meanwhile.
    pub(crate) async fn clear_away(&self, attempt: &Attempt) -> Result<()> {
        // While it has a place, it cannot come anew.
        self.bury(attempt).await?;
        let has_lapsed = self.state().places.get(attempt.owner).is_some_and(|place| place.entry.lapsed);
        if has_lapsed {
            self.forget(attempt.owner);
        }
        Ok(())
    }

    /// The same as [`Home::bury`] for an attempt that has no keys as far as anybody knows.
    pub(crate) async fn bury_if_doubtful(&self, attempt: &Attempt) -> Result<()> {
        let is_doubtful = self.state().doubts.has(attempt.owner);
        if is_doubtful { self.bury(attempt).await } else { Ok(()) }
    }

    /// Removes the keys of an attempt for good: a request of it that was sent and not answered does nothing when it arrives.
    pub(crate) async fn bury(&self, attempt: &Attempt) -> Result<()> {
        let leases = self.state().doubts.leases(attempt.owner);
        for lease in leases.iter().copied().collect::<BTreeSet<i64>>() {
            self.put_tombstone(attempt, lease).await?;
        }
        self.clear(attempt).await?;
        if !leases.is_empty() {
            let mut state = self.state();
            state.doubts.settle(attempt.owner, &leases);
            state.vacate(attempt.owner);
        }
        Ok(())
    }

    /// Defeats what an attempt has sent on this lease. The tombstone hangs on the same lease, and so lives for exactly as long
    /// as a late request could make keys.
    async fn put_tombstone(&self, attempt: &Attempt, lease: i64) -> Result<()> {
        let tombstone = put(self.keys.left(attempt.owner, lease), Vec::new(), lease);
        match self.link.txn(all(vec![tombstone]), Self::patience(attempt.ttl)).await {
            Ok(_) => {
                self.state().leases.has_tombstone(lease);
                Ok(())
            }
            // A late request fails as well.
            Err(Failure::NoLease) => Ok(()),
            Err(failure) => Err(self.failed(failure)),
        }
    }

    /// Takes away what nobody has cared for during a ttl. If that fails for another ttl although the lease lives, the lease is
    /// given up with everything on it.
    pub(crate) async fn sweep(&self, now: Moment) {
        let (lapsed, orphans): (Vec<Lapsed>, _) = {
            let mut state = self.state();
            if state.swept.is_some_and(|swept| now.since(swept) < SWEEP) {
                return;
            }
            state.swept = Some(now);
            state.departed.retain(|_, until| *until > now);
            let lapsed = state.places.lapsed(now);
            let lapsed = lapsed.into_iter().filter_map(|owner| state.lapsed(owner, now)).collect();
            state.forget_ended_leases(now);
            (lapsed, state.orphans(now))
        };
        let lapsed = join_all(lapsed.iter().map(async |place| match self.clear_away(&place.attempt).await {
            Err(_) if place.end < now => self.lose_lease(place.lease, LostReason::Abandoned),
            Ok(()) | Err(_) => {}
        }));
        // An acquire of the same owner waits for this, so that its key is not taken for one that has arrived late.
        let mut under_way = UnderWay::new(self);
        let is_free_to = |orphan: &Arc<Attempt>| under_way.take_along(orphan.owner);
        let orphans: Vec<Arc<Attempt>> = orphans.into_iter().filter(is_free_to).collect();
        // What fails is tried again by the next sweep.
        let orphans = join_all(orphans.iter().map(async |orphan| self.bury(orphan).await));
        join(lapsed, orphans).await;
    }

    /// Whether something is still there that nobody knows, for those who give up a lease.
    pub(crate) async fn revoke_all(&self) {
        let leases = self.state().leases.ids();
        for id in leases {
            match self.link.lease_revoke(id, Duration::from_secs(1)).await {
                Ok(_) | Err(Failure::NoLease) => {}
                // It ends by itself.
                Err(Failure::Failed(_)) => return,
            }
        }
    }
}
