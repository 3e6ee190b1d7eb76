//! The state of one client: the cluster, and the registry of this client's own attempts.
//!
//! # Which requests may be sent for an owner
//! * An acquire, a check, a leave or a release: the engine has one of them in flight at a time. Only an acquire, and a check
//!   of a local waiter, create keys. The lease of each request that may create keys is in [`Entry::unanswered`] until its
//!   response arrives: if the operation is dropped, the request may still be applied.
//! * Renewals are concurrent with these. They keep leases alive, move keys from one lease to another, and read.
//! * When an attempt is found to be over (a leave, a lost key, a lost lease, a ttl without any operation),
//!   [`Entry::is_ending`] is set. From then on its keys do not count, and none are created. [`ClientState::clean_up`] removes
//!   them and prevents late requests from taking effect; it may be repeated and run concurrently. After that the same owner
//!   may acquire again.
//! * While a client closes, a leave may be concurrent with an acquire of the same owner: the tombstone of the leave prevents
//!   the acquire, or its keys are removed, or they expire with their lease.
//!
//! An entry therefore exists from before the first request that creates keys until no key exists and none can be created.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use fencepost_contenders::{EntryMeta, OwnEntries, OwnEntry};
use fencepost_core::backend::{LockState, WaiterState, Wakeup};
use fencepost_core::clock::{Clock, Moment};
use fencepost_core::push::Pusher;
use fencepost_core::{Attempt, Grant, LockName, LostReason, Mode, Owner, Rule, Want};
use tokio::sync::Notify;

use crate::cluster::Cluster;
use crate::key_ops::create_revision;
use crate::leases::Leases;
use crate::suffixes::Suffixes;
use crate::watch_registry::WatchRegistry;
use crate::yielding::Yields;

/// What this client knows about the keys of one of its attempts.
#[derive(Debug)]
pub(crate) struct Entry {
    /// The lease that its keys belong to.
    pub(crate) lease_id: i64,
    /// The lease that its keys may still be attached to, while they are being moved.
    pub(crate) moving_from: Option<i64>,
    /// The revision that created its keys, once known.
    pub(crate) create_revision: Option<i64>,
    /// The index of the want that it holds, or 0 if it holds all. While `create_revision` is unknown: the want that an
    /// optimistic acquire has requested.
    pub(crate) held: Option<usize>,
    /// The lease of each unanswered request: until that lease ends, the request may be applied and create keys.
    pub(crate) unanswered: Vec<i64>,
    /// The attempt is over: its keys do not count any more and are to be removed.
    pub(crate) is_ending: bool,
    /// The data stored in its keys.
    pub(crate) meta: EntryMeta,
}

impl Entry {
    fn new(attempt: &Attempt, lease_id: i64, unanswered: Vec<i64>) -> Self {
        let meta = EntryMeta::new(attempt);
        Self {
            lease_id,
            moving_from: None,
            create_revision: None,
            held: None,
            unanswered,
            is_ending: false,
            meta,
        }
    }

    /// Returns the lease that its keys are known to be attached to: a grant is valid only on that one.
    pub(crate) fn proven_lease_id(&self) -> i64 {
        self.moving_from.unwrap_or(self.lease_id)
    }

    pub(crate) fn is_held(&self) -> bool {
        self.create_revision.is_some() && self.held.is_some()
    }

    /// Records that its keys exist, created by `create_revision`, and which want is unblocked. Returns `false` if they are not
    /// the keys of an unanswered optimistic acquire: an earlier request, which joined the queue, created them.
    pub(crate) fn record_keys(&mut self, create_revision: i64, unblocked: Option<usize>) -> bool {
        let is_requested_only = self.create_revision.is_none() && self.held.is_some();
        if is_requested_only && unblocked.is_none() {
            return false;
        }
        self.create_revision = Some(create_revision);
        // An attempt that holds one of several locks is in no other queue.
        self.held = self.held.or(unblocked);
        true
    }

    /// Returns the wants that it has keys for.
    pub(crate) fn wants<'a>(&self, attempt: &'a Attempt) -> &'a [Want] {
        self.held.map_or(&attempt.wants, |chosen| held_wants(attempt, chosen))
    }
}

/// Returns the wants that an attempt holds.
pub(crate) fn held_wants(attempt: &Attempt, chosen: usize) -> &[Want] {
    match attempt.rule {
        Rule::All => &attempt.wants,
        Rule::Any => std::slice::from_ref(&attempt.wants[chosen.min(attempt.wants.len() - 1)]),
    }
}

/// The mutable state of one client.
#[derive(Default)]
pub(crate) struct State {
    pub(crate) own_entries: OwnEntries<Entry>,
    pub(crate) suffixes: Suffixes,
    pub(crate) leases: Leases,
    pub(crate) watches: WatchRegistry,
    /// The owners that have left, and until when that is remembered: a late acquire of them does nothing.
    pub(crate) tombstones: HashMap<Owner, Moment>,
    /// Locks at which another attempt was seen: an acquire of one of them sends the full transaction at once.
    pub(crate) contended: HashSet<LockName>,
    /// The waiters whose position is read by a release in flight.
    pub(crate) successors: HashSet<Owner>,
    pub(crate) yields: Yields,
    /// When expired entries were last looked for.
    pub(crate) last_sweep: Option<Moment>,
}

impl State {
    /// Records that an operation of this owner is being executed: neither its entry nor its local wait expires.
    pub(crate) fn keep(&mut self, owner: Owner, now: Moment) {
        if self.live_entry(owner).is_some() {
            self.own_entries.keep(owner, now);
        }
        self.own_entries.keep_local_waiter(owner, now);
    }

    /// Returns the entry of this owner, unless it is ending.
    pub(crate) fn live_entry(&mut self, owner: Owner) -> Option<&mut OwnEntry<Entry>> {
        self.own_entries.get_mut(owner).filter(|own| !own.entry.is_ending)
    }

    /// Returns whether this owner has left, so that an acquire of it does nothing.
    pub(crate) fn has_tombstone(&self, owner: Owner, now: Moment) -> bool {
        self.tombstones.get(&owner).is_some_and(|until| *until > now)
    }

    /// Registers an attempt whose keys are not known yet. Its earlier requests may still be applied.
    pub(crate) fn register(&mut self, attempt: &Arc<Attempt>, lease_id: i64, sent_at: Moment) {
        self.suffixes.assign(attempt);
        let previous = self.own_entries.get(attempt.owner);
        let unanswered = previous.map(|own| own.entry.unanswered.clone()).unwrap_or_default();
        self.own_entries.insert(attempt, Entry::new(attempt, lease_id, unanswered), sent_at);
    }

    /// Records that a request that creates keys of this owner on this lease is sent.
    pub(crate) fn record_sent(&mut self, owner: Owner, lease_id: i64) {
        if let Some(own) = self.own_entries.get_mut(owner) {
            own.entry.unanswered.push(lease_id);
        }
    }

    /// Records that such a request was answered, or can never be applied.
    pub(crate) fn record_answered(&mut self, owner: Owner, lease_id: i64) {
        let Some(own) = self.own_entries.get_mut(owner) else { return };
        if let Some(index) = own.entry.unanswered.iter().position(|known| *known == lease_id) {
            own.entry.unanswered.swap_remove(index);
        }
    }

    /// Retires the key suffix of an attempt, because its key exists already; the next registration assigns another. Returns
    /// `false` if a request with the present suffix may still be applied.
    pub(crate) fn try_new_suffix(&mut self, owner: Owner) -> bool {
        let own = self.own_entries.get(owner);
        let is_answered = own.is_none_or(|own| own.entry.unanswered.is_empty());
        if is_answered {
            self.suffixes.retire(owner);
        }
        is_answered
    }

    pub(crate) fn for_each_entry(&mut self, mut change: impl FnMut(&mut Entry)) {
        let owners: Vec<Owner> = self.own_entries.iter().map(|(owner, _)| owner).collect();
        for owner in owners {
            if let Some(own) = self.own_entries.get_mut(owner) {
                change(&mut own.entry);
            }
        }
    }

    /// Returns the key of an attempt in the queue of one of its wants.
    pub(crate) fn entry_key(&self, cluster: &Cluster, want: &Want, owner: Owner) -> Vec<u8> {
        cluster.keys.entry(want, self.suffixes.get(owner))
    }
}

/// The state of one client.
pub(crate) struct ClientState {
    pub(crate) cluster: Cluster,
    pub(crate) clock: Clock,
    pub(crate) state: Mutex<State>,
    pub(crate) pusher: Pusher,
    /// Locked while a lease is created.
    pub(crate) lease_creation: tokio::sync::Mutex<()>,
    /// Notified after a grant, which is to be watched if it is held for long.
    pub(crate) granted: Arc<Notify>,
    /// Notified when this client starts to yield a lock.
    pub(crate) yield_started: Arc<Notify>,
}

impl ClientState {
    pub(crate) fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn wake(&self, owner: Owner) {
        self.pusher.push(Wakeup::Check { owner });
    }

    /// Marks an attempt as over: [`ClientState::clean_up`] removes its keys.
    pub(crate) fn mark_ending(&self, owner: Owner) {
        let mut state = self.state();
        state.watches.remove_owner(&self.cluster.link, owner);
        if let Some(own) = state.own_entries.get_mut(owner) {
            own.entry.is_ending = true;
        }
    }

    /// Removes the entry of an attempt that has no keys any more, and wakes the local waiters that it blocked. If a request
    /// of it may still be applied, the entry is marked as ending instead.
    pub(crate) fn forget(&self, owner: Owner) {
        let mut state = self.state();
        let state = &mut *state;
        let Some(own) = state.own_entries.get_mut(owner) else { return };
        state.watches.remove_owner(&self.cluster.link, owner);
        if !own.entry.unanswered.is_empty() {
            own.entry.is_ending = true;
            return;
        }
        state.suffixes.free(owner);
        if let Some(own) = state.own_entries.remove(owner) {
            self.wake_unblocked(state, &own.attempt);
        }
    }

    /// Does the same for a grant that is over, unless its attempt has acquired again since.
    pub(crate) fn forget_grant(&self, grant: &Grant) {
        if self.is_current(grant) {
            self.forget(grant.attempt.owner);
        }
    }

    /// Returns whether the present keys of the attempt are those of this grant.
    pub(crate) fn is_current(&self, grant: &Grant) -> bool {
        let state = self.state();
        let own = state.own_entries.get(grant.attempt.owner);
        own.is_some_and(|own| own.entry.create_revision == Some(create_revision(grant)))
    }

    /// Wakes the local waiters that may create keys now that this attempt has none.
    pub(crate) fn wake_unblocked(&self, state: &State, removed: &Attempt) {
        state.own_entries.unblocked_by(removed).into_iter().for_each(|owner| self.wake(owner));
    }

    /// Wakes the first local waiter if an entry was deleted since this client last sent an acquire: the waiter that was
    /// woken by the deletion is no longer the first, or its acquire was sent just before, and it does not retry now.
    pub(crate) fn forward_wakeup(&self, state: &State, attempt: &Attempt) {
        if state.watches.has_deletions(attempt) {
            self.wake_unblocked(state, attempt);
        }
    }

    /// Drops all attempts on a lease that has ended or is abandoned. A late request on it does nothing, or its keys expire
    /// with the lease.
    pub(crate) fn lose_lease(&self, id: i64, why: LostReason) {
        let lost: Vec<(Owner, bool)> = {
            let mut state = self.state();
            if why == LostReason::Abandoned {
                // Keys that could not be removed exist until the lease ends.
                state.suffixes.change_prefix();
            }
            state.leases.remove(id);
            state.for_each_entry(|entry| entry.unanswered.retain(|lease_id| *lease_id != id));
            let on_lease = state.own_entries.iter().filter(|(_, own)| own.entry.lease_id == id);
            on_lease.map(|(owner, own)| (owner, own.entry.is_held())).collect()
        };
        for (owner, is_held) in lost {
            self.forget(owner);
            self.pusher.push(if is_held {
                Wakeup::Lost { owner, reason: why }
            } else {
                Wakeup::Check { owner }
            });
        }
    }

    /// Adds the local waiters of this client to the state of a lock.
    pub(crate) fn add_local_waiters(&self, lock: &mut LockState) {
        let state = self.state();
        for attempt in state.own_entries.local_waiters(&lock.name) {
            lock.waiter_count += 1;
            if lock.waiters.len() < LockState::MAX_WAITERS {
                let want = attempt.wants.iter().find(|want| want.name == lock.name);
                let mode = want.map_or(Mode::Exclusive, |want| want.mode);
                lock.waiters.push(WaiterState::new(mode, attempt.label.clone()));
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
    fn a_request_is_unanswered_until_each_send_has_a_response() {
        let (mut state, attempt) = (State::default(), attempt());
        for lease_id in [1, 1, 2] {
            state.register(&attempt, lease_id, NOW);
            state.record_sent(attempt.owner, lease_id);
        }
        for lease_id in [1, 3] {
            state.record_answered(attempt.owner, lease_id);
        }
        let unanswered =
            |state: &State| state.own_entries.get(attempt.owner).unwrap().entry.unanswered.clone();
        assert_eq!(unanswered(&state).iter().sum::<i64>(), 3, "one on each lease");
        assert!(!state.try_new_suffix(attempt.owner), "a late request must find its own suffix");
        for lease_id in [2, 1] {
            state.record_answered(attempt.owner, lease_id);
        }
        assert!(unanswered(&state).is_empty() && state.try_new_suffix(attempt.owner));
    }

    #[test]
    fn a_choice_without_a_response_is_held_only_if_it_is_unblocked() {
        let entry = |held| Entry { held, ..Entry::new(&attempt(), 1, vec![1]) };
        let mut queued = entry(Some(1));
        assert!(!queued.record_keys(7, None) && !queued.is_held());
        let mut chosen = entry(Some(1));
        assert!(chosen.record_keys(7, Some(0)) && chosen.is_held());
        // Once it is known to hold, it is in no other queue.
        assert!(chosen.record_keys(7, None) && chosen.held == Some(1));
        let mut waiting = entry(None);
        assert!(waiting.record_keys(7, None) && !waiting.is_held());
    }

    #[test]
    fn an_ending_attempt_is_not_kept() {
        let (mut state, attempt) = (State::default(), attempt());
        state.register(&attempt, 1, NOW);
        let later = NOW + attempt.ttl;
        state.keep(attempt.owner, later);
        assert_eq!(state.live_entry(attempt.owner).unwrap().kept_at, later);
        state.live_entry(attempt.owner).unwrap().entry.is_ending = true;
        state.keep(attempt.owner, later + attempt.ttl);
        assert!(state.live_entry(attempt.owner).is_none());
        assert_eq!(state.own_entries.get(attempt.owner).unwrap().kept_at, later);
    }
}
