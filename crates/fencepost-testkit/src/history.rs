//! A recorder of what holders see, and a checker of the guarantees that hold over a whole history.
//!
//! A hold is recorded by evidence: from a moment after the lock was granted until the last moment at which its guard was
//! seen to be valid. So every violation that the checker finds is a real one, however the machine was scheduled.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Mutex, MutexGuard, PoisonError};

use fencepost_core::clock::{Clock, Moment};
use fencepost_core::{FencingToken, Guard, LockName, Mode};

/// One grant, as its holder saw it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hold {
    /// The name of the holder.
    pub holder: String,
    /// The lock.
    pub name: LockName,
    /// The mode of the grant.
    pub mode: Mode,
    /// The token of the grant.
    pub token: FencingToken,
    /// The lock was held from here, at the latest,
    pub from: Moment,
    /// until here, at the earliest.
    pub to: Moment,
}

/// A guarantee that was broken.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Violation {
    /// Two incompatible holders overlap.
    Overlap(Box<Hold>, Box<Hold>),
    /// The second was granted after the first, and its token is not larger.
    TokenNotRising(Box<Hold>, Box<Hold>),
    /// The first was queued before the second, and granted after it.
    Overtaken(Box<Hold>, Box<Hold>),
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (what, first, second) = match self {
            Self::Overlap(first, second) => ("held at the same time", first, second),
            Self::TokenNotRising(first, second) => ("tokens do not rise", first, second),
            Self::Overtaken(first, second) => ("the first was overtaken by the second", first, second),
        };
        write!(f, "{what}:\n  {first:?}\n  {second:?}")
    }
}

#[derive(Debug, Default)]
struct Events {
    holds: Vec<Hold>,
    queues: BTreeMap<LockName, Vec<String>>,
}

/// Records what holders see, on one clock.
#[derive(Debug, Default)]
pub struct History {
    clock: Clock,
    events: Mutex<Events>,
}

impl History {
    /// Records that a lock was granted. Returns the index of the record, for [`History::still_held`].
    pub fn granted(&self, holder: &str, guard: &Guard, mode: Mode) -> usize {
        let now = self.clock.now();
        let mut events = self.events();
        events.holds.push(Hold {
            holder: holder.into(),
            name: guard.name().clone(),
            mode,
            token: guard.token(),
            from: now,
            to: now,
        });
        let record = events.holds.len() - 1;
        drop(events);
        if !guard.is_valid() {
            // The lease ended before its holder could read it: there is no evidence that it was held.
            self.events().holds[record].from = Moment::NEVER;
        }
        record
    }

    /// Returns whether the lock is still held, and records it if so. To be called before the release.
    pub fn still_held(&self, record: usize, guard: &Guard) -> bool {
        let now = self.clock.now();
        let valid = guard.is_valid();
        if valid {
            self.events().holds[record].to = now;
        }
        valid
    }

    /// Records that this waiter is in the queue, behind all that were recorded before.
    pub fn enqueued(&self, holder: &str, name: &LockName) {
        self.events().queues.entry(name.clone()).or_default().push(holder.into());
    }

    /// Returns how many grants were recorded.
    pub fn len(&self) -> usize {
        self.events().holds.len()
    }

    /// Returns whether no grant was recorded.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Checks the whole history.
    ///
    /// # Errors
    /// The first violation.
    pub fn check(&self) -> Result<(), Violation> {
        let events = self.events();
        check(&events.holds)?;
        for (name, queue) in &events.queues {
            let holds: Vec<&Hold> = events.holds.iter().filter(|hold| hold.name == *name).collect();
            check_order(&holds, queue)?;
        }
        Ok(())
    }

    fn events(&self) -> MutexGuard<'_, Events> {
        self.events.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Checks that incompatible holds do not overlap, and that tokens grow.
///
/// # Errors
/// The first violation.
pub fn check(holds: &[Hold]) -> Result<(), Violation> {
    let mut by_name: BTreeMap<&LockName, Vec<&Hold>> = BTreeMap::new();
    for hold in holds.iter().filter(|hold| hold.from <= hold.to) {
        by_name.entry(&hold.name).or_default().push(hold);
    }
    for holds in by_name.values_mut() {
        holds.sort_by_key(|hold| hold.from);
        for (at, first) in holds.iter().enumerate() {
            for second in holds[at + 1..].iter().filter(|second| !first.mode.is_compatible_with(second.mode))
            {
                check_pair(first, second)?;
            }
        }
    }
    Ok(())
}

fn check_pair(first: &Hold, second: &Hold) -> Result<(), Violation> {
    let pair = || (Box::new(first.clone()), Box::new(second.clone()));
    if second.from <= first.to {
        let (first, second) = pair();
        return Err(Violation::Overlap(first, second));
    }
    if second.token <= first.token {
        let (first, second) = pair();
        return Err(Violation::TokenNotRising(first, second));
    }
    Ok(())
}

fn check_order(holds: &[&Hold], queue: &[String]) -> Result<(), Violation> {
    let granted: Vec<&&Hold> =
        queue.iter().filter_map(|holder| holds.iter().find(|hold| hold.holder == *holder)).collect();
    match granted.windows(2).find(|pair| pair[0].token > pair[1].token) {
        None => Ok(()),
        Some(pair) => Err(Violation::Overtaken(Box::new((*pair[0]).clone()), Box::new((*pair[1]).clone()))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hold(holder: &str, mode: Mode, token: u64, from: u64, to: u64) -> Hold {
        Hold {
            holder: holder.into(),
            name: LockName::new("a").unwrap(),
            mode,
            token: FencingToken::new(token),
            from: Moment::from_nanos(from),
            to: Moment::from_nanos(to),
        }
    }

    fn exclusive(token: u64, from: u64, to: u64) -> Hold {
        hold("x", Mode::Exclusive, token, from, to)
    }

    #[test]
    fn one_after_another_is_fine() {
        assert_eq!(check(&[exclusive(2, 30, 40), exclusive(1, 10, 20)]), Ok(()));
    }

    #[test]
    fn an_overlap_is_caught() {
        let (first, second) = (exclusive(1, 10, 20), exclusive(2, 20, 30));
        let caught = Violation::Overlap(Box::new(first.clone()), Box::new(second.clone()));
        assert_eq!(check(&[second, first]), Err(caught));
    }

    #[test]
    fn a_hold_inside_another_is_caught() {
        let holds = [exclusive(1, 10, 100), exclusive(2, 20, 30), exclusive(3, 40, 50)];
        assert!(matches!(check(&holds), Err(Violation::Overlap(..))));
    }

    #[test]
    fn a_token_that_does_not_rise_is_caught() {
        for token in [6, 7] {
            let holds = [exclusive(7, 10, 20), exclusive(token, 30, 40)];
            assert!(matches!(check(&holds), Err(Violation::TokenNotRising(..))), "{token}");
        }
    }

    #[test]
    fn readers_may_overlap_but_not_with_a_writer() {
        let readers = [hold("r", Mode::Shared, 1, 10, 30), hold("s", Mode::Shared, 2, 20, 40)];
        assert_eq!(check(&readers), Ok(()));
        let writer = exclusive(3, 40, 50);
        let caught = check(&[readers[0].clone(), readers[1].clone(), writer]);
        assert!(matches!(caught, Err(Violation::Overlap(..))));
    }

    #[test]
    fn other_names_are_other_locks() {
        let mut other = exclusive(1, 15, 25);
        other.name = LockName::new("b").unwrap();
        assert_eq!(check(&[exclusive(1, 10, 20), other]), Ok(()));
    }

    #[test]
    fn a_hold_without_evidence_does_not_count() {
        let unseen = Hold { from: Moment::NEVER, ..exclusive(1, 0, 15) };
        assert_eq!(check(&[unseen, exclusive(2, 10, 20)]), Ok(()));
    }

    #[test]
    fn overtaking_is_caught() {
        let (a, b) = (hold("a", Mode::Exclusive, 2, 30, 40), hold("b", Mode::Exclusive, 1, 10, 20));
        let queue = ["a".to_owned(), "gone".to_owned(), "b".to_owned()];
        let caught = Violation::Overtaken(Box::new(a.clone()), Box::new(b.clone()));
        assert_eq!(check_order(&[&b, &a], &queue), Err(caught));
        assert_eq!(check_order(&[&b, &a], &["b".to_owned(), "a".to_owned()]), Ok(()));
    }
}
