//! The watches of one client and their purposes: a waiter is woken by the deletion of the key ahead of it, and every
//! attempt by the deletion of its own key. A grant that is held for a short time only is not watched.

use std::collections::{HashMap, VecDeque};
use std::time::Duration;

use fencepost_core::clock::Moment;
use fencepost_core::{Attempt, LockName, Owner};

use crate::layout::KeyRange;
use crate::link::{Link, WatchId, WatchTarget};

/// A grant that is held longer than this is watched.
const WATCH_DELAY: Duration = Duration::from_millis(50);

/// The purpose of a watch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Purpose {
    /// The owner's own key.
    Own(Owner),
    /// The key directly ahead of this owner's.
    Predecessor(Owner),
    /// The queue of this lock.
    Queue(LockName),
}

/// The events for which a queue is watched.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum QueueEvents {
    All,
    Deletions,
}

/// The watch of a whole queue.
#[derive(Debug)]
struct QueueWatch {
    id: WatchId,
    /// The owners that wait in the queue.
    owners: Vec<Owner>,
    /// Whether an entry was deleted since this client last sent an acquire for this lock.
    has_deletions: bool,
}

/// The watches of one client.
#[derive(Debug, Default)]
pub(crate) struct WatchRegistry {
    purposes: HashMap<WatchId, Purpose>,
    by_owner: HashMap<Owner, Vec<(WatchId, Vec<u8>)>>,
    queues: HashMap<LockName, QueueWatch>,
    /// The owner that waits for the deletion of a key.
    waiter_by_key: HashMap<Vec<u8>, Owner>,
    /// The grants that are to be watched, and when.
    pub(crate) deferred: VecDeque<(Moment, Owner)>,
}

impl WatchRegistry {
    /// Watches a key for this owner from this revision on, unless it is watched already.
    fn watch_key(&mut self, link: &Link, purpose: Purpose, owner: Owner, key: Vec<u8>, start_revision: i64) {
        let watches = self.by_owner.entry(owner).or_default();
        if watches.iter().any(|(_, known)| *known == key) {
            return;
        }
        let only_deletes = matches!(purpose, Purpose::Predecessor(_));
        let id =
            link.watch(WatchTarget { key: key.clone(), range_end: Vec::new(), start_revision, only_deletes });
        watches.push((id, key));
        self.purposes.insert(id, purpose);
    }

    pub(crate) fn watch_own(&mut self, link: &Link, owner: Owner, key: Vec<u8>, start_revision: i64) {
        self.watch_key(link, Purpose::Own(owner), owner, key, start_revision);
    }

    pub(crate) fn watch_predecessor(&mut self, link: &Link, owner: Owner, key: Vec<u8>, start_revision: i64) {
        self.waiter_by_key.insert(key.clone(), owner);
        self.watch_key(link, Purpose::Predecessor(owner), owner, key, start_revision);
    }

    /// Returns the key that this owner waits for, if it is the only one.
    pub(crate) fn only_predecessor(&self, owner: Owner) -> Option<&[u8]> {
        let watches = self.by_owner.get(&owner)?;
        let is_predecessor = |id: &WatchId| matches!(self.purposes.get(id), Some(Purpose::Predecessor(_)));
        let mut keys = watches.iter().filter(|(id, _)| is_predecessor(id)).map(|(_, key)| key.as_slice());
        keys.next().filter(|_| keys.next().is_none())
    }

    /// Returns the owner that waits for the deletion of this key.
    pub(crate) fn waiter_for(&self, key: &[u8]) -> Option<Owner> {
        self.waiter_by_key.get(key).copied()
    }

    /// Watches a whole queue, with one watch for all owners that wait in it.
    pub(crate) fn watch_queue(
        &mut self,
        link: &Link,
        owner: Owner,
        name: &LockName,
        (range, start_revision): (KeyRange, i64),
        events: QueueEvents,
    ) {
        if let Some(queue) = self.queues.get_mut(name) {
            if !queue.owners.contains(&owner) {
                queue.owners.push(owner);
            }
            return;
        }
        let KeyRange { start: key, end: range_end } = range;
        let only_deletes = events == QueueEvents::Deletions;
        let id = link.watch(WatchTarget { key, range_end, start_revision, only_deletes });
        self.purposes.insert(id, Purpose::Queue(name.clone()));
        self.queues.insert(name.clone(), QueueWatch { id, owners: vec![owner], has_deletions: false });
    }

    /// Resets the recorded deletions: an acquire of this attempt that is sent now sees all of them.
    pub(crate) fn clear_deletions(&mut self, attempt: &Attempt) {
        for want in &attempt.wants {
            if let Some(queue) = self.queues.get_mut(&want.name) {
                queue.has_deletions = false;
            }
        }
    }

    /// Returns whether an entry was deleted from one of these queues since this client last sent an acquire for it.
    pub(crate) fn has_deletions(&self, attempt: &Attempt) -> bool {
        attempt.wants.iter().any(|want| self.queues.get(&want.name).is_some_and(|queue| queue.has_deletions))
    }

    /// Ends all watches of an owner except those of the keys that it holds.
    pub(crate) fn stop_waiting(&mut self, link: &Link, owner: Owner, held: &[Vec<u8>]) {
        self.unwatch(link, owner, |_, key| held.contains(key));
        self.leave_queues(link, owner);
    }

    /// Ends all watches of an owner.
    pub(crate) fn remove_owner(&mut self, link: &Link, owner: Owner) {
        self.unwatch(link, owner, |_, _| false);
        self.leave_queues(link, owner);
    }

    /// Ends the watch of a key ahead that was deleted.
    pub(crate) fn remove_watch(&mut self, link: &Link, owner: Owner, id: WatchId) {
        self.unwatch(link, owner, |known, _| known != id);
    }

    /// Ends the watches of this owner except those that `keep` selects.
    fn unwatch(&mut self, link: &Link, owner: Owner, keep: impl Fn(WatchId, &Vec<u8>) -> bool) {
        let Some(watches) = self.by_owner.get_mut(&owner) else { return };
        for (id, key) in watches.extract_if(.., |(id, key)| !keep(*id, key)) {
            if self.waiter_by_key.get(&key) == Some(&owner) {
                self.waiter_by_key.remove(&key);
            }
            self.purposes.remove(&id);
            link.unwatch(id);
        }
        if watches.is_empty() {
            self.by_owner.remove(&owner);
        }
    }

    fn leave_queues(&mut self, link: &Link, owner: Owner) {
        let purposes = &mut self.purposes;
        self.queues.retain(|_, queue| {
            queue.owners.retain(|waiter| *waiter != owner);
            if queue.owners.is_empty() {
                purposes.remove(&queue.id);
                link.unwatch(queue.id);
            }
            !queue.owners.is_empty()
        });
    }

    /// Returns the purpose of a watch.
    pub(crate) fn purpose(&self, id: WatchId) -> Option<Purpose> {
        self.purposes.get(&id).cloned()
    }

    /// Records that an entry was deleted from this queue.
    pub(crate) fn record_deletion(&mut self, name: &LockName) {
        if let Some(queue) = self.queues.get_mut(name) {
            queue.has_deletions = true;
        }
    }

    /// Returns the owners for which this queue is watched.
    pub(crate) fn queue_waiters(&self, name: &LockName) -> &[Owner] {
        self.queues.get(name).map_or(&[], |queue| &queue.owners)
    }

    /// Schedules the watch of a grant, for the case that it is still held by then.
    pub(crate) fn watch_later(&mut self, owner: Owner, now: Moment) {
        self.deferred.push_back((now + WATCH_DELAY, owner));
    }
}
