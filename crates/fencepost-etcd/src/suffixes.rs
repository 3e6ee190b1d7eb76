//! The key suffixes of this client's attempts. Suffixes are numbered and reused: an etcd server scans every key that ever
//! existed in a queue until it compacts, so a new key for every attempt would make each attempt slower than the one before.

use std::collections::{BTreeSet, HashMap};

use fencepost_core::{Attempt, LockName, Owner};

/// The number of hexadecimal digits of a prefix, which tells the keys of one client from those of others.
const PREFIX_DIGITS: usize = 16;

/// The suffixes of one client, of the form `PREFIX-NUMBER`.
#[derive(Debug)]
pub(crate) struct Suffixes {
    prefix: String,
    used_numbers: HashMap<LockName, BTreeSet<u32>>,
    by_owner: HashMap<Owner, Assigned>,
}

/// A suffix that is assigned to an attempt.
#[derive(Debug)]
struct Assigned {
    number: u32,
    suffix: String,
    names: Vec<LockName>,
}

impl Default for Suffixes {
    fn default() -> Self {
        Self { prefix: unused_prefix(), used_numbers: HashMap::new(), by_owner: HashMap::new() }
    }
}

/// Returns a prefix that no client uses.
fn unused_prefix() -> String {
    let mut prefix = Owner::random().to_hex();
    prefix.truncate(PREFIX_DIGITS);
    prefix
}

impl Suffixes {
    /// Returns this owner's key suffix, or an empty string if none is assigned. No key has an empty suffix.
    pub(crate) fn get(&self, owner: Owner) -> &str {
        self.by_owner.get(&owner).map_or("", |assigned| &assigned.suffix)
    }

    /// Assigns a suffix to an attempt that has none: the lowest number that is unused in all of its queues.
    pub(crate) fn assign(&mut self, attempt: &Attempt) {
        if self.by_owner.contains_key(&attempt.owner) {
            return;
        }
        let names: Vec<LockName> = attempt.wants.iter().map(|want| want.name.clone()).collect();
        let is_used = |number: &u32| {
            names.iter().any(|name| self.used_numbers.get(name).is_some_and(|used| used.contains(number)))
        };
        let number = (0..u32::MAX).find(|number| !is_used(number)).unwrap_or(u32::MAX);
        for name in &names {
            self.used_numbers.entry(name.clone()).or_default().insert(number);
        }
        let suffix = format!("{}-{number}", self.prefix);
        self.by_owner.insert(attempt.owner, Assigned { number, suffix, names });
    }

    /// Frees the suffix of this owner for later attempts.
    pub(crate) fn free(&mut self, owner: Owner) {
        let Some(assigned) = self.by_owner.remove(&owner) else { return };
        for name in assigned.names {
            if let Some(used) = self.used_numbers.get_mut(&name) {
                used.remove(&assigned.number);
                if used.is_empty() {
                    self.used_numbers.remove(&name);
                }
            }
        }
    }

    /// Uses a new prefix for all suffixes that are assigned from now on.
    pub(crate) fn change_prefix(&mut self) {
        self.prefix = unused_prefix();
    }

    /// Withdraws the suffix of this owner without freeing it, because its key exists and belongs to another attempt.
    pub(crate) fn retire(&mut self, owner: Owner) {
        self.by_owner.remove(&owner);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::time::Duration;

    use fencepost_core::{Mode, Rule, Want};

    use super::*;

    fn attempt(names: &[&str]) -> Arc<Attempt> {
        let want = |name: &&str| Want { name: LockName::new(*name).unwrap(), mode: Mode::Exclusive };
        Arc::new(Attempt {
            owner: Owner::random(),
            wants: names.iter().map(want).collect(),
            rule: Rule::All,
            ttl: Duration::from_secs(1),
            label: "test".into(),
            meta: [].into(),
        })
    }

    #[test]
    fn a_suffix_is_reused_but_never_assigned_twice() {
        let mut suffixes = Suffixes::default();
        let (first, second, both) = (attempt(&["a"]), attempt(&["a"]), attempt(&["b", "a"]));
        for attempt in [&first, &second, &both, &both] {
            suffixes.assign(attempt);
        }
        let assigned: Vec<String> =
            [&first, &second, &both].iter().map(|attempt| suffixes.get(attempt.owner).to_owned()).collect();
        assert_eq!(assigned, [0, 1, 2].map(|number| format!("{}-{number}", suffixes.prefix)));
        suffixes.free(second.owner);
        assert_eq!(suffixes.get(second.owner), "");
        let third = attempt(&["a", "b"]);
        suffixes.assign(&third);
        assert_eq!(suffixes.get(third.owner), assigned[1]);
        for attempt in [&first, &both, &third, &third] {
            suffixes.free(attempt.owner);
        }
        assert!(suffixes.used_numbers.is_empty() && suffixes.by_owner.is_empty());
    }

    #[test]
    fn a_retired_suffix_is_not_assigned_again() {
        let mut suffixes = Suffixes::default();
        let attempt = attempt(&["a"]);
        suffixes.assign(&attempt);
        suffixes.retire(attempt.owner);
        suffixes.assign(&attempt);
        let second = format!("{}-1", suffixes.prefix);
        assert_eq!(suffixes.get(attempt.owner), second);
        suffixes.change_prefix();
        assert_eq!(suffixes.get(attempt.owner), second, "an assigned suffix does not change");
        assert!(!second.starts_with(&suffixes.prefix));
    }

    #[test]
    fn clients_have_different_prefixes() {
        assert_ne!(Suffixes::default().prefix, Suffixes::default().prefix);
    }
}
