//! The waiters of one client, in the order of arrival. The table has no place for them.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::Duration;

use fencepost_core::backend::{LockState, WaiterState};
use fencepost_core::clock::Moment;
use fencepost_core::{Attempt, LockName, Mode, Owner};

/// The waiters of one client.
#[derive(Debug, Default)]
pub(super) struct Queues {
    waiting: HashMap<LockName, BTreeMap<u64, Ticket>>,
    positions: HashMap<Owner, (LockName, u64)>,
    last_position: u64,
}

#[derive(Debug)]
struct Ticket {
    attempt: Arc<Attempt>,
    since: Moment,
    /// When it ends unless it is renewed.
    until: Moment,
}

impl Queues {
    /// Adds a waiter at the end, or renews the ticket that it has.
    pub(super) fn join(&mut self, name: &LockName, attempt: &Arc<Attempt>, now: Moment) {
        let until = now + attempt.ttl;
        if let Some((name, position)) = self.positions.get(&attempt.owner) {
            let ticket = self.waiting.get_mut(name).and_then(|queue| queue.get_mut(position));
            return ticket.into_iter().for_each(|ticket| ticket.until = until);
        }
        self.last_position += 1;
        self.positions.insert(attempt.owner, (name.clone(), self.last_position));
        let ticket = Ticket { attempt: attempt.clone(), since: now, until };
        self.waiting.entry(name.clone()).or_default().insert(self.last_position, ticket);
    }

    /// Returns whether this attempt waits.
    pub(super) fn contains(&self, owner: Owner) -> bool {
        self.positions.contains_key(&owner)
    }

    /// Removes a waiter. Returns whether it was the first one.
    pub(super) fn remove(&mut self, owner: Owner) -> bool {
        let Some((name, position)) = self.positions.remove(&owner) else { return false };
        let Some(queue) = self.waiting.get_mut(&name) else { return false };
        let is_first = queue.first_key_value().is_some_and(|(first, _)| *first == position);
        queue.remove(&position);
        if queue.is_empty() {
            self.waiting.remove(&name);
        }
        is_first
    }

    /// Returns the first waiter, after those were removed whose tickets have ended.
    pub(super) fn first(&mut self, name: &LockName, now: Moment) -> Option<Owner> {
        loop {
            let queue = self.waiting.get(name)?;
            let ticket = queue.values().next()?;
            let owner = ticket.attempt.owner;
            if ticket.until > now {
                return Some(owner);
            }
            self.remove(owner);
        }
    }

    /// Adds the waiters of a lock to its state.
    pub(super) fn describe(&self, state: &mut LockState, now: Moment) {
        let Some(queue) = self.waiting.get(&state.name) else { return };
        let live = || queue.values().filter(|ticket| ticket.until > now);
        state.waiter_count = live().count();
        let waiters = live().take(LockState::MAX_WAITERS).map(|ticket| {
            let mut waiter = WaiterState::new(Mode::Exclusive, ticket.attempt.label.clone());
            waiter.waiting_for = Some(now.since(ticket.since).max(Duration::ZERO));
            waiter
        });
        state.waiters.extend(waiters);
    }
}

#[cfg(test)]
mod tests {
    use fencepost_core::{Rule, Want};

    use super::*;

    const NOW: Moment = Moment::from_nanos(1_000_000_000_000);

    fn attempt(name: &LockName, ttl: u64) -> Arc<Attempt> {
        Arc::new(Attempt {
            owner: Owner::random(),
            wants: vec![Want { name: name.clone(), mode: Mode::Exclusive }],
            rule: Rule::All,
            ttl: Duration::from_secs(ttl),
            label: "waiter".into(),
            meta: [].into(),
        })
    }

    #[test]
    fn the_first_waiter_whose_ticket_is_alive_is_first() {
        let name = LockName::new("a").unwrap();
        let (one, two, three) = (attempt(&name, 1), attempt(&name, 5), attempt(&name, 5));
        let mut queues = Queues::default();
        for attempt in [&one, &two, &three, &one] {
            queues.join(&name, attempt, NOW);
        }
        assert_eq!(queues.first(&name, NOW), Some(one.owner));
        let mut state = LockState::new(name.clone());
        queues.describe(&mut state, NOW + Duration::from_secs(2));
        assert_eq!((state.waiter_count, state.waiters.len()), (2, 2));
        assert_eq!(queues.first(&name, NOW + Duration::from_secs(2)), Some(two.owner));
        assert!(!queues.contains(one.owner) && queues.contains(two.owner));
        assert!(!queues.remove(three.owner) && queues.remove(two.owner));
        assert!(queues.waiting.is_empty() && queues.positions.is_empty());
    }
}
