//! The entries of one client: which attempt stands where, when somebody last cared for it, and who waits in this process
//! because the client has enough entries in that line already.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use fencepost_core::clock::Moment;
use fencepost_core::{Attempt, LockName, Owner};

/// One attempt of this client, in line or holding. `E` is what the storage knows it by.
#[derive(Debug)]
pub struct OwnEntry<E> {
    /// What is wanted.
    pub attempt: Arc<Attempt>,
    /// When somebody last asked for it to be kept.
    pub kept: Moment,
    /// Its entries.
    pub entry: E,
}

/// The attempts of one client that have entries, and those that wait for some.
#[derive(Debug)]
pub struct OwnEntries<E> {
    standing: HashMap<Owner, OwnEntry<E>>,
    entries: HashMap<LockName, usize>,
    /// Who waits in this process, by name, in order.
    beyond: HashMap<LockName, VecDeque<Owner>>,
    waiting: HashMap<Owner, (Arc<Attempt>, Moment)>,
}

impl<E> Default for OwnEntries<E> {
    fn default() -> Self {
        Self {
            standing: HashMap::new(),
            entries: HashMap::new(),
            beyond: HashMap::new(),
            waiting: HashMap::new(),
        }
    }
}

impl<E> OwnEntries<E> {
    /// How many entries a client has in one line at most.
    pub const MOST: usize = 64;

    /// Whether an attempt of this client has an entry there, or waits for one.
    pub fn is_wanted(&self, name: &LockName) -> bool {
        self.entries.contains_key(name) || self.beyond.contains_key(name)
    }

    /// Whether this attempt may have entries now: there is room for them, and nobody in this process was there before.
    pub fn has_room(&self, attempt: &Attempt) -> bool {
        attempt.wants.iter().all(|want| {
            let entries = self.entries.get(&want.name).copied().unwrap_or(0);
            let first = self.beyond.get(&want.name).and_then(VecDeque::front);
            let is_next = first.is_none_or(|first| *first == attempt.owner);
            entries < Self::MOST && is_next
        })
    }

    /// Lets an attempt wait in this process.
    pub fn wait(&mut self, attempt: &Arc<Attempt>, now: Moment) {
        let is_new = self.waiting.insert(attempt.owner, (attempt.clone(), now)).is_none();
        for want in attempt.wants.iter().filter(|_| is_new) {
            self.beyond.entry(want.name.clone()).or_default().push_back(attempt.owner);
        }
    }

    /// Lets an attempt that waits in this process be the first of those who do.
    pub fn to_front(&mut self, owner: Owner) {
        let Some((attempt, _)) = self.waiting.get(&owner) else { return };
        for want in &attempt.wants {
            if let Some(line) = self.beyond.get_mut(&want.name) {
                line.retain(|there| *there != owner);
                line.push_front(owner);
            }
        }
    }

    /// Whether this owner waits in this process; it is kept, if so.
    pub fn is_waiting(&mut self, owner: Owner, now: Moment) -> bool {
        self.waiting.get_mut(&owner).map(|(_, kept)| *kept = now).is_some()
    }

    /// Lets go of an attempt that waited in this process.
    pub fn stop_waiting(&mut self, owner: Owner) -> bool {
        let Some((attempt, _)) = self.waiting.remove(&owner) else {
            return false;
        };
        for want in &attempt.wants {
            if let Some(line) = self.beyond.get_mut(&want.name) {
                line.retain(|there| *there != owner);
                if line.is_empty() {
                    self.beyond.remove(&want.name);
                }
            }
        }
        true
    }

    /// Those who wait in this process for this lock, in order.
    pub fn waiting_for(&self, name: &LockName) -> impl Iterator<Item = &Arc<Attempt>> {
        let owners = self.beyond.get(name).into_iter().flatten();
        owners.filter_map(|owner| self.waiting.get(owner)).map(|(attempt, _)| attempt)
    }

    /// Who of those that wait in this process may have entries now, for the names of an attempt that has left.
    pub fn next_after(&self, left: &Attempt) -> Vec<Owner> {
        let first = |name| self.beyond.get(name).and_then(VecDeque::front).copied();
        let mut next: Vec<Owner> = left.wants.iter().filter_map(|want| first(&want.name)).collect();
        next.retain(|owner| self.waiting.get(owner).is_some_and(|(attempt, _)| self.has_room(attempt)));
        next.sort_unstable();
        next.dedup();
        next
    }

    /// Remembers an attempt that has, or may have, entries. It waits in this process no more.
    pub fn insert(&mut self, attempt: &Arc<Attempt>, entry: E, now: Moment) {
        self.stop_waiting(attempt.owner);
        let place = OwnEntry { attempt: attempt.clone(), kept: now, entry };
        if self.standing.insert(attempt.owner, place).is_none() {
            for want in &attempt.wants {
                *self.entries.entry(want.name.clone()).or_default() += 1;
            }
        }
    }

    /// Forgets an attempt whose entries are gone.
    pub fn remove(&mut self, owner: Owner) -> Option<OwnEntry<E>> {
        let place = self.standing.remove(&owner)?;
        for want in &place.attempt.wants {
            if let Some(count) = self.entries.get_mut(&want.name) {
                *count -= 1;
                if *count == 0 {
                    self.entries.remove(&want.name);
                }
            }
        }
        Some(place)
    }

    /// The attempt of this owner.
    pub fn get(&self, owner: Owner) -> Option<&OwnEntry<E>> {
        self.standing.get(&owner)
    }

    /// The attempt of this owner.
    pub fn get_mut(&mut self, owner: Owner) -> Option<&mut OwnEntry<E>> {
        self.standing.get_mut(&owner)
    }

    /// The attempt of this owner, which somebody cares for now.
    pub fn keep(&mut self, owner: Owner, now: Moment) -> Option<&mut OwnEntry<E>> {
        let place = self.standing.get_mut(&owner)?;
        place.kept = place.kept.max(now);
        Some(place)
    }

    /// All attempts that have entries.
    pub fn iter(&self) -> impl Iterator<Item = (Owner, &OwnEntry<E>)> {
        self.standing.iter().map(|(owner, place)| (*owner, place))
    }

    /// Those that nobody has cared for during a whole ttl. Who waited in this process is forgotten with this; the others
    /// have entries that should go.
    pub fn lapsed(&mut self, now: Moment) -> Vec<Owner> {
        let over = |attempt: &Attempt, kept: Moment| kept + attempt.ttl < now;
        let waiting: Vec<Owner> = self
            .waiting
            .iter()
            .filter(|(_, (attempt, kept))| over(attempt, *kept))
            .map(|(owner, _)| *owner)
            .collect();
        for owner in waiting {
            self.stop_waiting(owner);
        }
        let places = self.standing.iter().filter(|(_, place)| over(&place.attempt, place.kept));
        places.map(|(owner, _)| *owner).collect()
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
    fn a_client_has_so_many_entries_in_a_line_and_no_more() {
        let mut places = OwnEntries::default();
        let first = attempt(&["a"]);
        places.insert(&first, (), NOW);
        for _ in 1..OwnEntries::<()>::MOST {
            let next = attempt(&["a", "b"]);
            assert!(places.has_room(&next));
            places.insert(&next, (), NOW);
        }
        let (one, two) = (attempt(&["a"]), attempt(&["a", "c"]));
        for late in [&one, &two] {
            assert!(!places.has_room(late));
            places.wait(late, NOW);
        }
        assert!(places.has_room(&attempt(&["b"])));
        assert!(!places.has_room(&attempt(&["c"])), "somebody here was before");
        places.to_front(two.owner);
        assert_eq!(places.waiting_for(&two.wants[0].name).next().map(|first| first.owner), Some(two.owner));
        places.to_front(one.owner);
        assert!(places.next_after(&first).is_empty());
        assert!(places.remove(first.owner).is_some());
        assert_eq!(places.next_after(&first), [one.owner]);
        assert!(places.has_room(&one) && !places.has_room(&two));
        assert!(places.stop_waiting(one.owner));
        assert_eq!(places.next_after(&first), [two.owner]);
        places.insert(&two, (), NOW);
        assert_eq!(places.waiting_for(&two.wants[0].name).count(), 0);
    }

    #[test]
    fn a_resend_takes_no_second_place() {
        let mut places = OwnEntries::default();
        let twice = attempt(&["a"]);
        places.insert(&twice, 1, NOW);
        places.insert(&twice, 2, NOW);
        assert_eq!(places.remove(twice.owner).map(|place| place.entry), Some(2));
        assert!(places.standing.is_empty() && places.entries.is_empty());
        places.wait(&twice, NOW);
        places.wait(&twice, NOW);
        assert_eq!(places.waiting_for(&twice.wants[0].name).count(), 1);
    }

    #[test]
    fn what_nobody_cares_for_lapses_after_its_ttl() {
        let mut places = OwnEntries::default();
        let (dead, alive, inside) = (attempt(&["a"]), attempt(&["a"]), attempt(&["b"]));
        places.insert(&dead, (), NOW);
        places.insert(&alive, (), NOW);
        places.wait(&inside, NOW);
        let later = NOW + Duration::from_secs(8);
        assert!(places.keep(alive.owner, later).is_some());
        assert!(places.is_waiting(inside.owner, NOW) && !places.is_waiting(alive.owner, NOW));
        assert!(places.lapsed(later).is_empty());
        assert_eq!(places.lapsed(NOW + Duration::from_secs(11)), [dead.owner]);
        assert!(!places.is_waiting(inside.owner, later));
    }
}
