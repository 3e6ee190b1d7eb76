//! A lease is replaced when the cluster has another leader than the one that granted it. An earlier leader whose disk has hung
//! still counts its leases down, and when it recovers, the new leader executes its revocations, although the leases were
//! renewed meanwhile (etcd issues 12528 and 15247). It cannot revoke a lease that it has never known.

use std::time::Duration;

use fencepost_core::{LostReason, Owner, Result, request_timeout};

use crate::client_state::{ClientState, Entry, State};
use crate::error::Failure;
use crate::leases::Promise;
use crate::proto::KeyValue;
use crate::request::{all, found, get, inner, mere, moved, nested};
use crate::store::{LOOKING, TOGETHER, batches};

impl State {
    /// From now on the keys of one lease belong on another. Those that may still arrive on the first stay there.
    fn replace(&mut self, from: i64, to: i64) {
        self.for_each_entry(|entry| {
            if entry.lease == from && entry.revision.is_some() && !entry.ending {
                entry.moving_from = Some(entry.proven_lease());
                entry.lease = to;
            }
        });
        if let Some(lease) = self.leases.get_mut(to) {
            lease.is_incomplete = true;
        }
    }
}

/// An attempt whose keys may hang on another lease than they should.
struct Moving {
    owner: Owner,
    revision: i64,
    keys: Vec<Vec<u8>>,
}

impl ClientState {
    /// Gives a lease its whole ttl again, or replaces it if the leader has changed since it was granted: its keys are moved to a
    /// new lease, and what is promised is promised by that one. Returns nothing if the lease is gone.
    pub(crate) async fn keep_alive_or_replace(&self, id: i64) -> Result<Option<Promise>> {
        let Some(mut promise) = self.keep_alive(id).await? else { return Ok(None) };
        let lease = self.state().leases.get(id);
        if let Some(lease) = lease.filter(|lease| lease.term != promise.term) {
            let Some(successor) = self.successor(id, lease.wanted).await? else { return Ok(None) };
            promise = successor;
        }
        let is_incomplete = self.state().leases.get(promise.lease).is_some_and(|lease| lease.is_incomplete);
        if is_incomplete {
            self.move_keys(promise.lease).await?;
        }
        Ok(Some(promise))
    }

    /// Lets another lease take the place of this one.
    async fn successor(&self, id: i64, wanted: i64) -> Result<Option<Promise>> {
        let asked = self.clock.now();
        self.state().leases.retire(id);
        let (lease, kept) = self.lease_for(Duration::from_secs(wanted.unsigned_abs())).await?;
        self.state().replace(id, lease.id);
        match kept {
            Some(promise) => Ok(Some(promise)),
            // It is older than the request that is to be answered.
            None if lease.confirmed < asked => self.keep_alive(lease.id).await,
            None => Ok(Some(Promise { lease: lease.id, sent: lease.confirmed, term: lease.term })),
        }
    }

    /// Moves the keys that should hang on this lease and may hang on another. The revision that created a key stays, and so do
    /// its token and its place in line.
    async fn move_keys(&self, lease: i64) -> Result<()> {
        loop {
            // More may be replaced by the same lease while some are being moved, and a key may change before it is.
            let moving = self.moving_to(lease);
            if moving.is_empty() {
                return Ok(());
            }
            for together in batches(&moving, TOGETHER, |it| it.keys.len()) {
                self.move_together(lease, together).await?;
            }
        }
    }

    async fn move_together(&self, lease: i64, moving: &[Moving]) -> Result<()> {
        let timeout = self.state().leases.get(lease).map_or(LOOKING, |lease| request_timeout(lease.ttl));
        let store = &self.store;
        let keys = moving.iter().flat_map(|it| &it.keys);
        let looks = keys.map(|key| get(mere(key.clone()))).collect();
        let looked = store.link.txn(all(looks), timeout).await;
        let looked = looked.map_err(|failure| store.half_done(failure))?;
        let mut looks = looked.responses.iter();
        let (mut there, mut gone) = (Vec::new(), Vec::new());
        for one in moving {
            let keys = looks.by_ref().take(one.keys.len()).filter_map(|look| found(look).first());
            let keys: Vec<&KeyValue> = keys.filter(|key| key.create_revision == one.revision).collect();
            if keys.len() == one.keys.len() {
                there.push((one, keys));
            } else {
                gone.push(one.owner);
            }
        }
        let moves = there.iter().flat_map(|(_, keys)| keys.iter().map(|key| nested(moved(key, lease))));
        match store.link.txn(all(moves.collect()), timeout).await {
            Ok(answer) => {
                let mut moves = answer.responses.into_iter();
                for (one, keys) in &there {
                    let done = moves.by_ref().take(keys.len()).filter_map(inner).filter(|it| it.succeeded);
                    if done.count() == keys.len() {
                        self.state().have_moved(lease, one);
                    }
                }
            }
            Err(Failure::NoLease) => {
                self.lose_lease(lease, LostReason::NotHeld);
                return Err(store.failed(Failure::NoLease));
            }
            Err(failure) => return Err(store.half_done(failure)),
        }
        for owner in gone {
            self.lose(owner, LostReason::NotHeld).await;
        }
        Ok(())
    }

    /// Returns the attempts whose keys are not known to hang on this lease, although they should.
    fn moving_to(&self, lease: i64) -> Vec<Moving> {
        let mut state = self.state();
        let state = &mut *state;
        let places = state.places.iter().map(|(_, place)| place);
        let should_move =
            |entry: &Entry| entry.lease == lease && entry.moving_from.is_some() && !entry.ending;
        let places = places.filter(|it| should_move(&it.entry));
        let moving = places.filter_map(|place| {
            let (attempt, entry) = (&place.attempt, &place.entry);
            let revision = entry.revision?;
            let seat = |want| state.seat(&self.store, want, attempt.owner);
            let keys = entry.wants(attempt).iter().map(seat).collect();
            Some(Moving { owner: attempt.owner, revision, keys })
        });
        let moving: Vec<Moving> = moving.collect();
        if let Some(lease) = state.leases.get_mut(lease) {
            lease.is_incomplete = !moving.is_empty();
        }
        moving
    }
}

impl State {
    /// The keys of this attempt, created by this revision, hang on this lease.
    fn have_moved(&mut self, lease: i64, moved: &Moving) {
        let place = self.places.get_mut(moved.owner);
        let is_same = |entry: &Entry| entry.lease == lease && entry.revision == Some(moved.revision);
        if let Some(place) = place.filter(|place| is_same(&place.entry)) {
            place.entry.moving_from = None;
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

    /// Lets an attempt stand on lease 1, with keys created by this revision if it is known.
    fn stand(state: &mut State, revision: Option<i64>) -> Owner {
        let attempt = Arc::new(Attempt {
            owner: Owner::random(),
            wants: vec![Want { name: LockName::new("a").unwrap(), mode: Mode::Exclusive }],
            rule: Rule::All,
            ttl: Duration::from_secs(10),
            label: "test".into(),
            meta: [].into(),
        });
        state.enters(&attempt, 1, NOW);
        state.live(attempt.owner).unwrap().entry.revision = revision;
        attempt.owner
    }

    fn leases(state: &State, owner: Owner) -> (i64, i64) {
        let entry = &state.places.get(owner).unwrap().entry;
        (entry.lease, entry.proven_lease())
    }

    #[test]
    fn keys_that_are_there_belong_on_the_new_lease_and_count_on_the_old_one_until_they_have_moved() {
        let mut state = State::default();
        let (there, coming, ending) =
            (stand(&mut state, Some(7)), stand(&mut state, None), stand(&mut state, Some(8)));
        state.live(ending).unwrap().entry.ending = true;
        state.replace(1, 2);
        assert_eq!(leases(&state, there), (2, 1));
        assert_eq!((leases(&state, coming), leases(&state, ending)), ((1, 1), (1, 1)));
        state.replace(2, 3);
        assert_eq!(leases(&state, there), (3, 1), "they still hang on the first");
        let moved = |revision| Moving { owner: there, revision, keys: Vec::new() };
        state.have_moved(2, &moved(7));
        state.have_moved(3, &moved(6));
        assert_eq!(leases(&state, there), (3, 1), "another lease, or other keys");
        state.have_moved(3, &moved(7));
        assert_eq!(leases(&state, there), (3, 3));
    }

    /// A move that arrives after a later one, or after the key was removed and created again, does nothing.
    #[test]
    fn a_move_compares_what_was_read() {
        let found =
            KeyValue { key: b"a".to_vec(), create_revision: 7, mod_revision: 9, ..KeyValue::default() };
        let request = moved(&found, 2);
        let compared: Vec<_> = request.compare.into_iter().map(|it| (it.key, it.target_union)).collect();
        let expected = [TargetUnion::CreateRevision(7), TargetUnion::ModRevision(9)];
        assert_eq!(compared, expected.map(|target| (b"a".to_vec(), Some(target))));
        assert!(request.failure.is_empty() && request.success.len() == 1);
    }
}
