//! Requests whose outcome is unknown: they may still arrive and make keys, for as long as the lease that they name lives.

use std::collections::HashMap;
use std::sync::Arc;

use fencepost_core::clock::Moment;
use fencepost_core::{Attempt, Owner};

/// What was sent for one attempt and not answered.
#[derive(Debug)]
struct Doubt {
    attempt: Arc<Attempt>,
    /// The lease of each request.
    leases: Vec<i64>,
    /// When the newest was sent.
    since: Moment,
}

/// The requests of one client whose outcome is unknown.
#[derive(Debug, Default)]
pub(crate) struct Doubts {
    by_owner: HashMap<Owner, Doubt>,
}

impl Doubts {
    /// Records that a request of this attempt may arrive from now on, and make keys on this lease.
    pub(crate) fn add(&mut self, attempt: &Arc<Attempt>, lease: i64, now: Moment) {
        let doubt = self.by_owner.entry(attempt.owner).or_insert_with(|| Doubt {
            attempt: attempt.clone(),
            leases: Vec::new(),
            since: now,
        });
        doubt.leases.push(lease);
        doubt.since = now;
    }

    /// Removes the given requests: each has arrived, or never will.
    pub(crate) fn settle(&mut self, owner: Owner, leases: &[i64]) {
        let Some(doubt) = self.by_owner.get_mut(&owner) else { return };
        for lease in leases {
            if let Some(at) = doubt.leases.iter().position(|known| known == lease) {
                doubt.leases.swap_remove(at);
            }
        }
        if doubt.leases.is_empty() {
            self.by_owner.remove(&owner);
        }
    }

    /// Returns whether a request of this owner may still arrive.
    pub(crate) fn has(&self, owner: Owner) -> bool {
        self.by_owner.contains_key(&owner)
    }

    /// Returns the lease of each request of this owner that may still arrive.
    pub(crate) fn leases(&self, owner: Owner) -> Vec<i64> {
        self.by_owner.get(&owner).map(|doubt| doubt.leases.clone()).unwrap_or_default()
    }

    /// Returns the attempts that have been in doubt for longer than their ttl.
    pub(crate) fn overdue(&self, now: Moment) -> impl Iterator<Item = &Arc<Attempt>> {
        let is_overdue = move |doubt: &&Doubt| doubt.since + doubt.attempt.ttl < now;
        self.by_owner.values().filter(is_overdue).map(|doubt| &doubt.attempt)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use fencepost_core::{LockName, Mode, Rule, Want};

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
    fn a_request_is_in_doubt_until_each_send_is_settled() {
        let (mut doubts, attempt) = (Doubts::default(), attempt());
        for lease in [1, 1, 2] {
            doubts.add(&attempt, lease, NOW);
        }
        doubts.settle(attempt.owner, &[1, 3]);
        let mut leases = doubts.leases(attempt.owner);
        leases.sort_unstable();
        assert_eq!(leases, [1, 2]);
        doubts.settle(attempt.owner, &[1, 2]);
        assert!(!doubts.has(attempt.owner) && doubts.leases(attempt.owner).is_empty());
    }

    #[test]
    fn what_stays_in_doubt_for_a_ttl_is_overdue() {
        let (mut doubts, old, new) = (Doubts::default(), attempt(), attempt());
        doubts.add(&old, 1, NOW);
        doubts.add(&new, 1, NOW + Duration::from_secs(5));
        let overdue: Vec<Owner> =
            doubts.overdue(NOW + Duration::from_secs(11)).map(|attempt| attempt.owner).collect();
        assert_eq!(overdue, [old.owner]);
    }
}
