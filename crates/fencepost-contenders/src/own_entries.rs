//! The entries of one client: which attempts have one, when each was last kept, and which attempts wait in this process
//! because the client has reached its limit of entries in that queue ("local waiters").

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use fencepost_core::clock::Moment;
use fencepost_core::{Attempt, LockName, Owner};

/// One attempt of this client that waits in the queue or holds. `E` identifies its entries on the server.
#[derive(Debug)]
pub struct OwnEntry<E> {
    /// The attempt that the entries belong to.
    pub attempt: Arc<Attempt>,
    /// When an operation last kept the entries.
    pub kept_at: Moment,
    /// The entries.
    pub entry: E,
}

/// The attempts of one client that have entries, and its local waiters.
#[derive(Debug)]
pub struct OwnEntries<E> {
    by_owner: HashMap<Owner, OwnEntry<E>>,
    entry_counts: HashMap<LockName, usize>,
    /// The local waiters of each lock, in order.
    local_queues: HashMap<LockName, VecDeque<Owner>>,
    local_waiters: HashMap<Owner, (Arc<Attempt>, Moment)>,
}

impl<E> Default for OwnEntries<E> {
    fn default() -> Self {
        Self {
            by_owner: HashMap::new(),
            entry_counts: HashMap::new(),
            local_queues: HashMap::new(),
            local_waiters: HashMap::new(),
        }
    }
}

impl<E> OwnEntries<E> {
    /// The maximum number of entries that a client has in one queue.
    pub const MAX_PER_LOCK: usize = 64;

    /// Returns whether an attempt of this client has an entry for this lock, or is a local waiter of it.
    pub fn has_attempt_for(&self, name: &LockName) -> bool {
        self.entry_counts.contains_key(name) || self.local_queues.contains_key(name)
    }

    /// Returns whether this attempt may create its entries now: the limit is not reached, and no other local waiter is ahead.
    pub fn may_enqueue(&self, attempt: &Attempt) -> bool {
        attempt.wants.iter().all(|want| {
            let count = self.entry_counts.get(&want.name).copied().unwrap_or(0);
            let first = self.local_queues.get(&want.name).and_then(VecDeque::front);
            let is_next = first.is_none_or(|first| *first == attempt.owner);
            count < Self::MAX_PER_LOCK && is_next
        })
    }

    /// Adds a local waiter.
    pub fn wait_locally(&mut self, attempt: &Arc<Attempt>, now: Moment) {
        let is_new = self.local_waiters.insert(attempt.owner, (attempt.clone(), now)).is_none();
        for want in attempt.wants.iter().filter(|_| is_new) {
            self.local_queues.entry(want.name.clone()).or_default().push_back(attempt.owner);
        }
    }

    /// Moves a local waiter to the front of its queues.
    pub fn move_to_front(&mut self, owner: Owner) {
        let Some((attempt, _)) = self.local_waiters.get(&owner) else { return };
        for want in &attempt.wants {
            if let Some(queue) = self.local_queues.get_mut(&want.name) {
                queue.retain(|waiter| *waiter != owner);
                queue.push_front(owner);
            }
        }
    }

    /// Keeps this local waiter. Returns whether there is one.
    pub fn keep_local_waiter(&mut self, owner: Owner, now: Moment) -> bool {
        self.local_waiters.get_mut(&owner).map(|(_, kept_at)| *kept_at = now).is_some()
    }

    /// Removes a local waiter. Returns whether there was one.
    pub fn remove_local_waiter(&mut self, owner: Owner) -> bool {
        let Some((attempt, _)) = self.local_waiters.remove(&owner) else {
            return false;
        };
        for want in &attempt.wants {
            if let Some(queue) = self.local_queues.get_mut(&want.name) {
                queue.retain(|waiter| *waiter != owner);
                if queue.is_empty() {
                    self.local_queues.remove(&want.name);
                }
            }
        }
        true
    }

    /// Returns the local waiters of this lock, in order.
    pub fn local_waiters(&self, name: &LockName) -> impl Iterator<Item = &Arc<Attempt>> {
        let owners = self.local_queues.get(name).into_iter().flatten();
        owners.filter_map(|owner| self.local_waiters.get(owner)).map(|(attempt, _)| attempt)
    }

    /// Returns the local waiters that may create entries now that this attempt has none any more.
    pub fn unblocked_by(&self, removed: &Attempt) -> Vec<Owner> {
        let first = |name| self.local_queues.get(name).and_then(VecDeque::front).copied();
        let mut next: Vec<Owner> = removed.wants.iter().filter_map(|want| first(&want.name)).collect();
        next.retain(|owner| {
            self.local_waiters.get(owner).is_some_and(|(attempt, _)| self.may_enqueue(attempt))
        });
        next.sort_unstable();
        next.dedup();
        next
    }

    /// Records an attempt that has, or may have, entries. It is no longer a local waiter.
    pub fn insert(&mut self, attempt: &Arc<Attempt>, entry: E, now: Moment) {
        self.remove_local_waiter(attempt.owner);
        let own = OwnEntry { attempt: attempt.clone(), kept_at: now, entry };
        if self.by_owner.insert(attempt.owner, own).is_none() {
            for want in &attempt.wants {
                *self.entry_counts.entry(want.name.clone()).or_default() += 1;
            }
        }
    }

    /// Removes the record of an attempt whose entries are gone.
    pub fn remove(&mut self, owner: Owner) -> Option<OwnEntry<E>> {
        let own = self.by_owner.remove(&owner)?;
        for want in &own.attempt.wants {
            if let Some(count) = self.entry_counts.get_mut(&want.name) {
                *count -= 1;
                if *count == 0 {
                    self.entry_counts.remove(&want.name);
                }
            }
        }
        Some(own)
    }

    /// Returns the record of this owner.
    pub fn get(&self, owner: Owner) -> Option<&OwnEntry<E>> {
        self.by_owner.get(&owner)
    }

    /// Returns the record of this owner.
    pub fn get_mut(&mut self, owner: Owner) -> Option<&mut OwnEntry<E>> {
        self.by_owner.get_mut(&owner)
    }

    /// Keeps the entries of this owner: they expire a ttl after `now` at the earliest.
    pub fn keep(&mut self, owner: Owner, now: Moment) -> Option<&mut OwnEntry<E>> {
        let own = self.by_owner.get_mut(&owner)?;
        own.kept_at = own.kept_at.max(now);
        Some(own)
    }

    /// Returns the records of all attempts that have entries.
    pub fn iter(&self) -> impl Iterator<Item = (Owner, &OwnEntry<E>)> {
        self.by_owner.iter().map(|(owner, own)| (*owner, own))
    }

    /// Removes the local waiters that were not kept for a whole ttl. Returns the owners of which the same is true and whose
    /// entries are to be removed.
    pub fn expire(&mut self, now: Moment) -> Vec<Owner> {
        let is_expired = |attempt: &Attempt, kept_at: Moment| kept_at + attempt.ttl < now;
        let waiters: Vec<Owner> = self
            .local_waiters
            .iter()
            .filter(|(_, (attempt, kept_at))| is_expired(attempt, *kept_at))
            .map(|(owner, _)| *owner)
            .collect();
        for owner in waiters {
            self.remove_local_waiter(owner);
        }
        let expired = self.by_owner.iter().filter(|(_, own)| is_expired(&own.attempt, own.kept_at));
        expired.map(|(owner, _)| *owner).collect()
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use fencepost_core::{Mode, Rule, Want};

    use super::*;

    const NOW: Moment = Moment::from_nanos(1_000_000_000_000);

    fn attempt(names: &[&str]) -> Arc<Attempt> {
        let want = |name: &&str| Want { name: LockName::new(*name).unwrap(), mode: Mode::Exclusive };
        Arc::new(Attempt {
            owner: Owner::random(),
            wants: names.iter().map(want).collect(),
            rule: Rule::All,
            ttl: Duration::from_secs(10),
            label: "test".into(),
            meta: [].into(),
        })
    }

    #[test]
    fn the_number_of_entries_of_a_client_in_a_queue_is_limited() {
        let mut own_entries = OwnEntries::default();
        let first = attempt(&["a"]);
        own_entries.insert(&first, (), NOW);
        for _ in 1..OwnEntries::<()>::MAX_PER_LOCK {
            let next = attempt(&["a", "b"]);
            assert!(own_entries.may_enqueue(&next));
            own_entries.insert(&next, (), NOW);
        }
        let (one, two) = (attempt(&["a"]), attempt(&["a", "c"]));
        for late in [&one, &two] {
            assert!(!own_entries.may_enqueue(late));
            own_entries.wait_locally(late, NOW);
        }
        assert!(own_entries.may_enqueue(&attempt(&["b"])));
        assert!(!own_entries.may_enqueue(&attempt(&["c"])), "a local waiter is ahead");
        own_entries.move_to_front(two.owner);
        assert_eq!(
            own_entries.local_waiters(&two.wants[0].name).next().map(|first| first.owner),
            Some(two.owner)
        );
        own_entries.move_to_front(one.owner);
        assert!(own_entries.unblocked_by(&first).is_empty());
        assert!(own_entries.remove(first.owner).is_some());
        assert_eq!(own_entries.unblocked_by(&first), [one.owner]);
        assert!(own_entries.may_enqueue(&one) && !own_entries.may_enqueue(&two));
        assert!(own_entries.remove_local_waiter(one.owner));
        assert_eq!(own_entries.unblocked_by(&first), [two.owner]);
        own_entries.insert(&two, (), NOW);
        assert_eq!(own_entries.local_waiters(&two.wants[0].name).count(), 0);
    }

    #[test]
    fn a_resent_attempt_has_one_entry() {
        let mut own_entries = OwnEntries::default();
        let twice = attempt(&["a"]);
        own_entries.insert(&twice, 1, NOW);
        own_entries.insert(&twice, 2, NOW);
        assert_eq!(own_entries.remove(twice.owner).map(|own| own.entry), Some(2));
        assert!(own_entries.by_owner.is_empty() && own_entries.entry_counts.is_empty());
        own_entries.wait_locally(&twice, NOW);
        own_entries.wait_locally(&twice, NOW);
        assert_eq!(own_entries.local_waiters(&twice.wants[0].name).count(), 1);
    }

    #[test]
    fn entries_that_are_not_kept_expire_after_their_ttl() {
        let mut own_entries = OwnEntries::default();
        let (dead, alive, local) = (attempt(&["a"]), attempt(&["a"]), attempt(&["b"]));
        own_entries.insert(&dead, (), NOW);
        own_entries.insert(&alive, (), NOW);
        own_entries.wait_locally(&local, NOW);
        let later = NOW + Duration::from_secs(8);
        assert!(own_entries.keep(alive.owner, later).is_some());
        assert!(
            own_entries.keep_local_waiter(local.owner, NOW)
                && !own_entries.keep_local_waiter(alive.owner, NOW)
        );
        assert!(own_entries.expire(later).is_empty());
        assert_eq!(own_entries.expire(NOW + Duration::from_secs(11)), [dead.owner]);
        assert!(!own_entries.keep_local_waiter(local.owner, later));
    }
}
