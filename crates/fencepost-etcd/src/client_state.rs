//! What all parts of one client's backend share: the store, and what is known of this client's own attempts.
//!
//! # Who may send what about an owner
//! * An acquire, a check, a leave or a release: the engine has one of them in flight at a time. Only an acquire, and a check
//!   of an attempt that waited in this process, create keys. The lease of each request that may create keys stands in
//!   [`Entry::unanswered`] until its answer is there: if the operation is dropped, the request may still arrive.
//! * Renewals run beside these. They keep leases alive, move keys from one lease to another, and read.
//! * Whatever finds that an attempt is over (a leave, a lost key, a lost lease, a ttl without any operation) sets
//!   [`Entry::ending`]. From then on its keys count no more, and none are created. They are removed, and what may still arrive
//!   is defeated, by [`ClientState::clear_away`], as often and by as many at once as may be; see there. After that the
//!   same owner may come again.
//! * While a client closes, a leave may run beside an acquire of the same owner: the leave's tombstone defeats the acquire, or
//!   its keys are removed, or they end with their lease.
//!
//! A place is therefore there from before the first request that creates keys until none are there and none can come.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use fencepost_contenders::{EntryMeta, OwnEntries, OwnEntry};
use fencepost_core::backend::{LockState, WaiterState, Wakeup};
use fencepost_core::clock::{Clock, Moment};
use fencepost_core::push::Pusher;
use fencepost_core::{Attempt, Grant, LockName, LostReason, Mode, Owner, Rule, Want};
use tokio::sync::Notify;

use crate::enter::revision_of;
use crate::leases::Leases;
use crate::resting::Rests;
use crate::seats::Seats;
use crate::store::Store;
use crate::watches::Watches;

/// What an attempt of this client is known by in the storage.
#[derive(Debug)]
pub(crate) struct Entry {
    pub(crate) lease: i64,
    /// The lease that its keys may still hang on, while they are being moved.
    pub(crate) moving_from: Option<i64>,
    /// The revision that created its keys, once that is known.
    pub(crate) revision: Option<i64>,
    /// Which of its wants it holds, all or the one; before its revision is known, which of them it has asked for alone.
    pub(crate) held: Option<usize>,
    /// The lease of each request without an answer: until the lease ends, it may arrive and create keys.
    pub(crate) unanswered: Vec<i64>,
    /// The attempt is over: what is found of it counts no more, and is to be removed.
    pub(crate) ending: bool,
    pub(crate) entry_meta: EntryMeta,
}

impl Entry {
    fn new(attempt: &Attempt, lease: i64, unanswered: Vec<i64>) -> Self {
        let entry_meta = EntryMeta::new(attempt);
        Self { lease, moving_from: None, revision: None, held: None, unanswered, ending: false, entry_meta }
    }

    /// Returns the lease that its keys are known to hang on: nothing is promised by another.
    pub(crate) fn proven_lease(&self) -> i64 {
        self.moving_from.unwrap_or(self.lease)
    }

    pub(crate) fn is_held(&self) -> bool {
        self.revision.is_some() && self.held.is_some()
    }

    /// Records that its keys were found, created by `revision`, and which want was free. Returns false if they do not belong to
    /// the choice that was asked for alone and not answered: an earlier request, which joined the line, created them.
    pub(crate) fn found(&mut self, revision: i64, free: Option<usize>) -> bool {
        let is_unproven = self.revision.is_none() && self.held.is_some();
        if is_unproven && free.is_none() {
            return false;
        }
        self.revision = Some(revision);
        // An attempt that has chosen already stands in no other line.
        self.held = self.held.or(free);
        true
    }

    /// Returns the wants that it has keys for.
    pub(crate) fn wants<'a>(&self, attempt: &'a Attempt) -> &'a [Want] {
        self.held.map_or(&attempt.wants, |chosen| held(attempt, chosen))
    }
}

/// Returns the wants that an attempt holds.
pub(crate) fn held(attempt: &Attempt, chosen: usize) -> &[Want] {
    match attempt.rule {
        Rule::All => &attempt.wants,
        Rule::Any => std::slice::from_ref(&attempt.wants[chosen.min(attempt.wants.len() - 1)]),
    }
}

/// Everything that changes.
#[derive(Default)]
pub(crate) struct State {
    pub(crate) places: OwnEntries<Entry>,
    pub(crate) seats: Seats,
    pub(crate) leases: Leases,
    pub(crate) watches: Watches,
    /// Owners that have left before they came, and until when that is remembered.
    pub(crate) departed: HashMap<Owner, Moment>,
    /// Locks at which another attempt was seen: an acquire of one of them asks the whole question at once.
    pub(crate) crowded: HashSet<LockName>,
    /// The waiters about which a release in flight asks.
    pub(crate) successors: HashSet<Owner>,
    pub(crate) rests: Rests,
    /// When places that no operation has cared for were last looked for.
    pub(crate) swept: Option<Moment>,
}

impl State {
    /// Records that an operation of this owner is being executed: neither its place nor its wait in this process lapses.
    pub(crate) fn care_for(&mut self, owner: Owner, now: Moment) {
        if self.live(owner).is_some() {
            self.places.keep(owner, now);
        }
        self.places.keep_local_waiter(owner, now);
    }

    /// Returns the place of this owner, unless it is ending.
    pub(crate) fn live(&mut self, owner: Owner) -> Option<&mut OwnEntry<Entry>> {
        self.places.get_mut(owner).filter(|place| !place.entry.ending)
    }

    /// Returns whether this owner has left, so that nothing of it counts any more.
    pub(crate) fn has_departed(&self, owner: Owner, now: Moment) -> bool {
        self.departed.get(&owner).is_some_and(|until| *until > now)
    }

    /// Gives an attempt its place, with nothing known of its keys. What was sent for it before may still arrive.
    pub(crate) fn enters(&mut self, attempt: &Arc<Attempt>, lease: i64, asked: Moment) {
        self.seats.take(attempt);
        let before = self.places.get(attempt.owner);
        let unanswered = before.map(|place| place.entry.unanswered.clone()).unwrap_or_default();
        self.places.insert(attempt, Entry::new(attempt, lease, unanswered), asked);
    }

    /// Records that a request which creates keys of this owner on this lease is sent.
    pub(crate) fn sends(&mut self, owner: Owner, lease: i64) {
        if let Some(place) = self.places.get_mut(owner) {
            place.entry.unanswered.push(lease);
        }
    }

    /// Records that such a request has its answer, or can never arrive.
    pub(crate) fn is_answered(&mut self, owner: Owner, lease: i64) {
        let Some(place) = self.places.get_mut(owner) else { return };
        if let Some(at) = place.entry.unanswered.iter().position(|known| *known == lease) {
            place.entry.unanswered.swap_remove(at);
        }
    }

    /// Gives an attempt another seat than the one that is occupied. Returns `false` if a request of it may still arrive, which
    /// must find the seat that it was sent for.
    pub(crate) fn take_another_seat(&mut self, owner: Owner) -> bool {
        let is_free_to = self.places.get(owner).is_none_or(|place| place.entry.unanswered.is_empty());
        if is_free_to {
            self.seats.wear_out(owner);
        }
        is_free_to
    }

    pub(crate) fn for_each_entry(&mut self, mut change: impl FnMut(&mut Entry)) {
        let owners: Vec<Owner> = self.places.iter().map(|(owner, _)| owner).collect();
        for owner in owners {
            if let Some(place) = self.places.get_mut(owner) {
                change(&mut place.entry);
            }
        }
    }

    /// Returns the key of an attempt.
    pub(crate) fn seat(&self, store: &Store, want: &Want, owner: Owner) -> Vec<u8> {
        store.keys.seat(want, self.seats.called(owner))
    }
}

/// What all parts of one client's backend share.
pub(crate) struct ClientState {
    pub(crate) store: Store,
    pub(crate) clock: Clock,
    pub(crate) state: Mutex<State>,
    pub(crate) push: Pusher,
    /// Held while a lease is made.
    pub(crate) leasing: tokio::sync::Mutex<()>,
    /// Notified when something was granted that is to be watched if it lasts.
    pub(crate) granted: Arc<Notify>,
    /// Notified when a lock begins to be left alone.
    pub(crate) resting: Arc<Notify>,
}

impl ClientState {
    pub(crate) fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn wake(&self, owner: Owner) {
        self.push.push(Wakeup::Check { owner });
    }

    /// Ends an attempt: what is left of it is removed by [`ClientState::clear_away`].
    pub(crate) fn ends(&self, owner: Owner) {
        let mut state = self.state();
        state.watches.end(&self.store.link, owner);
        if let Some(place) = state.places.get_mut(owner) {
            place.entry.ending = true;
        }
    }

    /// Frees the place of an attempt that has no keys any more, and wakes the waiters of this process that it kept out. If a
    /// request of it may still arrive, the attempt ends instead.
    pub(crate) fn forget(&self, owner: Owner) {
        let mut state = self.state();
        let state = &mut *state;
        let Some(place) = state.places.get_mut(owner) else { return };
        state.watches.end(&self.store.link, owner);
        if !place.entry.unanswered.is_empty() {
            place.entry.ending = true;
            return;
        }
        state.seats.give_back(owner);
        if let Some(place) = state.places.remove(owner) {
            self.wake_next(state, &place.attempt);
        }
    }

    /// The same for a grant that is over; the attempt may have come again since.
    pub(crate) fn forget_grant(&self, grant: &Grant) {
        if self.is_of(grant) {
            self.forget(grant.attempt.owner);
        }
    }

    /// Returns whether what the attempt has now is what this grant was of.
    pub(crate) fn is_of(&self, grant: &Grant) -> bool {
        let state = self.state();
        let place = state.places.get(grant.attempt.owner);
        place.is_some_and(|place| place.entry.revision == Some(revision_of(grant)))
    }

    /// Wakes the waiters of this process that may come after this attempt has left.
    pub(crate) fn wake_next(&self, state: &State, left: &Attempt) {
        state.places.unblocked_by(left).into_iter().for_each(|owner| self.wake(owner));
    }

    /// Passes on the news of an end to the first of those who wait in this process: the attempt that was woken by it may have
    /// been the first then, or have asked just before the end, and does not ask now.
    pub(crate) fn pass_on(&self, state: &State, attempt: &Attempt) {
        if state.watches.have_moved(attempt) {
            self.wake_next(state, attempt);
        }
    }

    /// Loses everything on a lease that has ended or is given up. What was sent on it and arrives late does nothing, or ends with
    /// the lease.
    pub(crate) fn lose_lease(&self, id: i64, why: LostReason) {
        let lost: Vec<(Owner, bool)> = {
            let mut state = self.state();
            if why == LostReason::Abandoned {
                // What could not be removed stays where it is until the lease ends.
                state.seats.move_on();
            }
            state.leases.forget(id);
            state.for_each_entry(|entry| entry.unanswered.retain(|lease| *lease != id));
            let on_it = state.places.iter().filter(|(_, place)| place.entry.lease == id);
            on_it.map(|(owner, place)| (owner, place.entry.is_held())).collect()
        };
        for (owner, is_held) in lost {
            self.forget(owner);
            self.push.push(if is_held {
                Wakeup::Lost { owner, reason: why }
            } else {
                Wakeup::Check { owner }
            });
        }
    }

    /// Adds the attempts of this client that wait in this process, because it has enough keys in that line.
    pub(crate) fn add_those_who_wait_here(&self, seen: &mut LockState) {
        let state = self.state();
        for attempt in state.places.local_waiters(&seen.name) {
            seen.waiter_count += 1;
            if seen.waiters.len() < LockState::MAX_WAITERS {
                let want = attempt.wants.iter().find(|want| want.name == seen.name);
                let mode = want.map_or(Mode::Exclusive, |want| want.mode);
                seen.waiters.push(WaiterState::new(mode, attempt.label.clone()));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    const NOW: Moment = Moment::from_nanos(1_000_000_000_000);

    fn attempt() -> Arc<Attempt> {
        Arc::new(Attempt {
            owner: Owner::random(),
            wants: vec![Want { name: LockName::new("a").unwrap(), mode: Mode::Exclusive }],
            rule: Rule::All,
            ttl: Duration::from_secs(10),
            label: "test".into(),
            meta: [].into(),
        })
    }

    #[test]
    fn a_request_may_arrive_until_each_send_is_answered() {
        let (mut state, attempt) = (State::default(), attempt());
        for lease in [1, 1, 2] {
            state.enters(&attempt, lease, NOW);
            state.sends(attempt.owner, lease);
        }
        for lease in [1, 3] {
            state.is_answered(attempt.owner, lease);
        }
        let unanswered = |state: &State| state.places.get(attempt.owner).unwrap().entry.unanswered.clone();
        assert_eq!(unanswered(&state).iter().sum::<i64>(), 3, "one on each lease");
        assert!(!state.take_another_seat(attempt.owner), "it must find the seat that it was sent for");
        for lease in [2, 1] {
            state.is_answered(attempt.owner, lease);
        }
        assert!(unanswered(&state).is_empty() && state.take_another_seat(attempt.owner));
    }

    #[test]
    fn a_choice_that_was_only_asked_for_is_not_held_unless_it_is_free() {
        let entry = |held| Entry { held, ..Entry::new(&attempt(), 1, vec![1]) };
        let mut in_line = entry(Some(1));
        assert!(!in_line.found(7, None) && !in_line.is_held());
        let mut taken = entry(Some(1));
        assert!(taken.found(7, Some(0)) && taken.is_held());
        // Once it is known to hold, it stands in no line that could be free.
        assert!(taken.found(7, None) && taken.held == Some(1));
        let mut waiting = entry(None);
        assert!(waiting.found(7, None) && !waiting.is_held());
    }

    #[test]
    fn an_attempt_that_ends_is_not_cared_for_any_more() {
        let (mut state, attempt) = (State::default(), attempt());
        state.enters(&attempt, 1, NOW);
        let later = NOW + attempt.ttl;
        state.care_for(attempt.owner, later);
        assert_eq!(state.live(attempt.owner).unwrap().kept_at, later);
        state.live(attempt.owner).unwrap().entry.ending = true;
        state.care_for(attempt.owner, later + attempt.ttl);
        assert!(state.live(attempt.owner).is_none());
        assert_eq!(state.places.get(attempt.owner).unwrap().kept_at, later);
    }
}
