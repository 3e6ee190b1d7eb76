//! Which seat in the lines each attempt of this client has: a number that is used again and again. A server walks over every
//! key that was ever in a line until it is told to compact, so that keys with a new name for every attempt would make each
//! attempt slower than the one before.

use std::collections::{BTreeSet, HashMap};

use fencepost_core::{Attempt, LockName, Owner};

/// How many digits tell the keys of one client from those of others.
const DIGITS: usize = 16;

/// The seats of one client.
#[derive(Debug)]
pub(crate) struct Seats {
    client: String,
    taken: HashMap<LockName, BTreeSet<u32>>,
    by_owner: HashMap<Owner, Seat>,
}

#[derive(Debug)]
struct Seat {
    number: u32,
    called: String,
    names: Vec<LockName>,
}

impl Default for Seats {
    fn default() -> Self {
        Self { client: unheard_of(), taken: HashMap::new(), by_owner: HashMap::new() }
    }
}

/// A name that no client has.
fn unheard_of() -> String {
    let mut name = Owner::random().to_hex();
    name.truncate(DIGITS);
    name
}

impl Seats {
    /// What the seat of this owner is called; nothing if it has none, and no key is called like that.
    pub(crate) fn called(&self, owner: Owner) -> &str {
        self.by_owner.get(&owner).map_or("", |seat| &seat.called)
    }

    /// Gives an attempt a seat, unless it has one: the first that is free in all of its lines.
    pub(crate) fn take(&mut self, attempt: &Attempt) {
        if self.by_owner.contains_key(&attempt.owner) {
            return;
        }
        let names: Vec<LockName> = attempt.wants.iter().map(|want| want.name.clone()).collect();
        let is_taken = |number: &u32| {
            names.iter().any(|name| self.taken.get(name).is_some_and(|taken| taken.contains(number)))
        };
        let number = (0..u32::MAX).find(|number| !is_taken(number)).unwrap_or(u32::MAX);
        for name in &names {
            self.taken.entry(name.clone()).or_default().insert(number);
        }
        let called = format!("{}-{number}", self.client);
        self.by_owner.insert(attempt.owner, Seat { number, called, names });
    }

    /// Whoever comes next may have the seat of this owner.
    pub(crate) fn give_back(&mut self, owner: Owner) {
        let Some(seat) = self.by_owner.remove(&owner) else { return };
        for name in seat.names {
            if let Some(taken) = self.taken.get_mut(&name) {
                taken.remove(&seat.number);
                if taken.is_empty() {
                    self.taken.remove(&name);
                }
            }
        }
    }

    /// Whoever comes from now on has a seat that nobody ever had.
    pub(crate) fn move_on(&mut self) {
        self.client = unheard_of();
    }

    /// Somebody sits there who should not: nobody of ours has this seat any more.
    pub(crate) fn wear_out(&mut self, owner: Owner) {
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
    fn a_seat_is_used_again_but_never_by_two() {
        let mut seats = Seats::default();
        let (first, second, both) = (attempt(&["a"]), attempt(&["a"]), attempt(&["b", "a"]));
        for attempt in [&first, &second, &both, &both] {
            seats.take(attempt);
        }
        let called: Vec<String> =
            [&first, &second, &both].iter().map(|it| seats.called(it.owner).to_owned()).collect();
        assert_eq!(called, [0, 1, 2].map(|number| format!("{}-{number}", seats.client)));
        seats.give_back(second.owner);
        assert_eq!(seats.called(second.owner), "");
        let third = attempt(&["a", "b"]);
        seats.take(&third);
        assert_eq!(seats.called(third.owner), called[1]);
        for attempt in [&first, &both, &third, &third] {
            seats.give_back(attempt.owner);
        }
        assert!(seats.taken.is_empty() && seats.by_owner.is_empty());
    }

    #[test]
    fn a_seat_in_which_somebody_else_sits_is_left_to_it() {
        let mut seats = Seats::default();
        let attempt = attempt(&["a"]);
        seats.take(&attempt);
        seats.wear_out(attempt.owner);
        seats.take(&attempt);
        let second = format!("{}-1", seats.client);
        assert_eq!(seats.called(attempt.owner), second);
        seats.move_on();
        assert_eq!(seats.called(attempt.owner), second, "it stays where it is");
        assert!(!second.starts_with(&seats.client));
    }

    #[test]
    fn clients_have_seats_of_their_own() {
        assert_ne!(Seats::default().client, Seats::default().client);
    }
}
