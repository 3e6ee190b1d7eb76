//! What all parts of one client's backend share: where the keys are, the way to the cluster, and what is known of this
//! client's own entries.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use fencepost_contenders::{Card, Place, Places};
use fencepost_core::backend::Wakeup;
use fencepost_core::clock::{Clock, Moment};
use fencepost_core::{Attempt, Award, FencingToken, Grant, LockName, LostReason, Owner, StorageId, Want};
use tokio::sync::Notify;
use tokio::sync::mpsc::UnboundedSender;

use crate::doubts::Doubts;
use crate::enter::revision_of;
use crate::keys::Keys;
use crate::leases::{Lease, Leases};
use crate::link::Link;
use crate::proto::KeyValue;
use crate::resting::Rests;
use crate::seats::Seats;
use crate::watching::Watches;

/// A call that is not answered by then is not waited for any longer.
const PATIENCE: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(5));
/// For how long a call without a lease waits.
pub(crate) const LOOKING: Duration = PATIENCE.1;

/// What an attempt of this client is known by in the storage.
#[derive(Debug)]
pub(crate) struct Entry {
    pub(crate) lease: i64,
    /// The lease that its keys may still hang on, while they are being moved.
    pub(crate) moving_from: Option<i64>,
    /// The revision that made its keys, once that is known.
    pub(crate) revision: Option<i64>,
    /// Until when the transaction that makes its keys may be under way.
    pub(crate) coming: Option<Moment>,
    /// Which of its wants it holds, once it does: all, or the one.
    pub(crate) held: Option<usize>,
    /// It is being cleared away: whatever is found of it counts no more.
    pub(crate) lapsed: bool,
    pub(crate) card: Card,
}

impl Entry {
    /// Of somebody who comes now.
    pub(crate) fn new(attempt: &Attempt, lease: i64, asked: Moment) -> Self {
        let coming = Some(asked + Home::patience(attempt.ttl) * 2);
        let card = Card::new(attempt);
        Self { lease, moving_from: None, revision: None, coming, held: None, lapsed: false, card }
    }

    /// Returns the lease that its keys are known to hang on: nothing is promised by another.
    pub(crate) fn proven_lease(&self) -> i64 {
        self.moving_from.unwrap_or(self.lease)
    }
}

/// Everything that changes.
#[derive(Default)]
pub(crate) struct State {
    pub(crate) places: Places<Entry>,
    pub(crate) seats: Seats,
    pub(crate) leases: Leases,
    pub(crate) watches: Watches,
    /// Owners that have left before they came, and until when that is remembered.
    pub(crate) departed: HashMap<Owner, Moment>,
    pub(crate) doubts: Doubts,
    /// Those whom a flight is just bringing: they may have no place for a moment, and are not gone.
    pub(crate) under_way: HashSet<Owner>,
    /// Locks that somebody else was seen at: whoever wants one of them asks the whole question at once.
    pub(crate) crowded: HashSet<LockName>,
    /// Those about whom a release that is under way asks.
    pub(crate) heirs: HashSet<Owner>,
    pub(crate) rests: Rests,
    /// When somebody last looked for places that nobody cares for.
    pub(crate) swept: Option<Moment>,
}

impl State {
    /// The place of this owner, which somebody cares for now; none if it is being cleared away.
    pub(crate) fn keep(&mut self, owner: Owner, now: Moment) -> Option<&mut Place<Entry>> {
        self.places.get(owner).filter(|place| !place.entry.lapsed)?;
        self.places.keep(owner, now)
    }

    /// Whether this owner has left, so that nothing of it counts any more.
    pub(crate) fn has_departed(&self, owner: Owner, now: Moment) -> bool {
        self.departed.get(&owner).is_some_and(|until| *until > now)
    }

    /// An attempt comes from now on: its keys may be there although nobody answers. Not if another flight has brought it
    /// meanwhile, or it has left.
    pub(crate) fn comes(&mut self, attempt: &Arc<Attempt>, lease: i64, asked: Moment) -> bool {
        if self.places.get(attempt.owner).is_some() || self.has_departed(attempt.owner, asked) {
            return false;
        }
        self.seats.take(attempt);
        self.places.insert(attempt, Entry::new(attempt, lease, asked), asked);
        self.doubts.add(attempt, lease, asked);
        true
    }

    /// Whether an attempt can have another seat than the one in which somebody else sits. What may still arrive must find the
    /// one that it was sent for.
    pub(crate) fn take_another_seat(&mut self, owner: Owner) -> bool {
        let is_free_to = !self.doubts.has(owner);
        if is_free_to {
            self.seats.wear_out(owner);
        }
        is_free_to
    }

    /// Lets others have the seat of an owner that has no place, if nothing of it can still arrive.
    pub(crate) fn vacate(&mut self, owner: Owner) {
        if self.places.get(owner).is_none() && !self.doubts.has(owner) {
            self.seats.give_back(owner);
        }
    }
}

/// Those whom one flight brings; no other does meanwhile.
pub(crate) struct UnderWay<'a> {
    home: &'a Home,
    owners: Vec<Owner>,
}

impl<'a> UnderWay<'a> {
    pub(crate) fn new(home: &'a Home) -> Self {
        Self { home, owners: Vec::new() }
    }

    /// Takes one more along; not if another flight has.
    pub(crate) fn take_along(&mut self, owner: Owner) -> bool {
        let is_free_to = self.home.state().under_way.insert(owner);
        if is_free_to {
            self.owners.push(owner);
        }
        is_free_to
    }
}

impl Drop for UnderWay<'_> {
    fn drop(&mut self) {
        let mut state = self.home.state();
        for owner in &self.owners {
            state.under_way.remove(owner);
        }
    }
}

/// What all parts of one client's backend share.
pub(crate) struct Home {
    pub(crate) keys: Keys,
    pub(crate) location: String,
    pub(crate) storage_id: StorageId,
    pub(crate) link: Arc<Link>,
    pub(crate) clock: Clock,
    pub(crate) state: Mutex<State>,
    pub(crate) push: UnboundedSender<Wakeup>,
    /// Held by whoever makes a lease.
    pub(crate) leasing: tokio::sync::Mutex<()>,
    /// Rung when something was granted that is to be watched if it lasts.
    pub(crate) granted: Arc<Notify>,
    /// Notified when a lock begins to be left alone.
    pub(crate) resting: Arc<Notify>,
}

impl Home {
    pub(crate) fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// How long a call about a lease of this length is waited for.
    pub(crate) fn patience(ttl: Duration) -> Duration {
        if ttl.is_zero() { LOOKING } else { (ttl / 6).clamp(PATIENCE.0, PATIENCE.1) }
    }

    /// Whether a key that was found where an attempt's own would be is its own, although it is not known what made it. Others
    /// may have been there before it: what is written there tells.
    pub(crate) fn is_own(key: &KeyValue, owner: Owner) -> bool {
        Card::from_bytes(&key.value).is_some_and(|card| card.owner == owner)
    }

    /// The key of an attempt.
    pub(crate) fn seat(&self, want: &Want, owner: Owner) -> Vec<u8> {
        self.keys.seat(want, self.state().seats.called(owner))
    }

    pub(crate) fn push(&self, wakeup: Wakeup) {
        // Nobody listens if the client is closing.
        let _ = self.push.send(wakeup);
    }

    /// What an attempt is awarded whose keys were made by this revision: what is left of its lease.
    pub(crate) fn award(
        lease: Option<Lease>,
        ttl: Duration,
        revision: i64,
        chosen: usize,
        asked: Moment,
    ) -> Award {
        let (ttl, confirmed) = lease.map_or((ttl, Moment::START), |it| (it.ttl, it.confirmed));
        let token = FencingToken::new(revision.unsigned_abs());
        Award { token, ttl, chosen, spent: asked.since(confirmed) }
    }

    /// The request of this owner on this lease is answered, or will never be. If it `is_sure`, it cannot still arrive.
    pub(crate) fn arrived(&self, owner: Owner, lease: i64, is_sure: bool) {
        let mut state = self.state();
        if let Some(place) = state.places.get_mut(owner) {
            place.entry.coming = None;
        }
        if is_sure {
            state.doubts.settle(owner, &[lease]);
        }
    }

    /// An attempt has no entries any more: whoever waited in this process for its place is told.
    pub(crate) fn forget(&self, owner: Owner) -> Option<Place<Entry>> {
        let mut state = self.state();
        let state = &mut *state;
        state.watches.end(&self.link, owner);
        let place = state.places.remove(owner);
        state.vacate(owner);
        let place = place?;
        self.wake_next(state, &place.attempt);
        Some(place)
    }

    /// A grant is over; the attempt may have come again since.
    pub(crate) fn forget_grant(&self, grant: &Grant) {
        if !self.has_come_again(grant) {
            self.forget(grant.attempt.owner);
        }
    }

    /// Whether what the attempt has now is not what this grant was of.
    pub(crate) fn has_come_again(&self, grant: &Grant) -> bool {
        let state = self.state();
        let revision = state.places.get(grant.attempt.owner).and_then(|place| place.entry.revision);
        revision.is_some_and(|revision| revision != revision_of(grant))
    }

    /// Tells those who waited in this process for somebody to leave.
    pub(crate) fn wake_next(&self, state: &State, left: &Attempt) {
        for owner in state.places.next_after(left) {
            self.push(Wakeup::Turn { owner });
        }
    }

    /// Tells the first of those who wait in this process of an end that somebody else was told of: that one may have been
    /// the first then, or have asked just before the end, and does not ask now.
    pub(crate) fn pass_on(&self, state: &State, attempt: &Attempt) {
        if state.watches.have_moved(attempt) {
            self.wake_next(state, attempt);
        }
    }

    /// A lease has ended, and with it everything that hung on it.
    pub(crate) fn lease_is_gone(&self, id: i64) {
        self.lose_lease(id, LostReason::NotHeld);
    }

    /// Nothing on this lease counts any more.
    pub(crate) fn lose_lease(&self, id: i64, why: LostReason) {
        let lost: Vec<Owner> = {
            let mut state = self.state();
            if why == LostReason::Abandoned {
                // What could not be removed stays where it is until the lease ends.
                state.seats.move_on();
            }
            state.leases.forget(id);
            let on_it = state.places.iter().filter(|(_, place)| place.entry.lease == id);
            on_it.map(|(owner, _)| owner).collect()
        };
        for owner in lost {
            let Some(place) = self.forget(owner) else { continue };
            self.push(match place.entry.held {
                Some(_) => Wakeup::Gone { owner, why },
                None => Wakeup::Turn { owner },
            });
        }
    }
}
