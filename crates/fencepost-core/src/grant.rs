//! Modes, attempts, awards, grants, and why a grant can end.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use crate::error::{Error, ErrorKind, Result};
use crate::name::LockName;
use crate::token::{FencingToken, Owner};

/// The mode in which a lock is held.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Mode {
    /// Held by one owner.
    Exclusive,
    /// Held by many readers at once, never together with an exclusive owner.
    Shared,
    /// Held by up to `permits` owners at once. All clients must agree on the number.
    Semaphore {
        /// The number of owners that can hold the lock at once.
        permits: u32,
    },
}

impl Mode {
    /// Returns whether holders in this mode and in `other` can hold the same lock at the same time, the number of permits aside.
    pub fn is_compatible_with(self, other: Self) -> bool {
        !matches!((self, other), (Self::Exclusive, _) | (_, Self::Exclusive)) && self.agrees_with(other)
    }

    /// Returns whether clients that use these modes on one name agree on what it is: a readers–writer lock, or a semaphore of
    /// one size.
    pub fn agrees_with(self, other: Self) -> bool {
        match (self, other) {
            (Self::Semaphore { permits: a }, Self::Semaphore { permits: b }) => a == b,
            (Self::Semaphore { .. }, _) | (_, Self::Semaphore { .. }) => false,
            _ => true,
        }
    }

    /// Returns the word that is stored for this mode: `x`, `s`, or `n3` for a semaphore of three.
    pub fn to_word(self) -> String {
        match self {
            Self::Exclusive => "x".into(),
            Self::Shared => "s".into(),
            Self::Semaphore { permits } => format!("n{permits}"),
        }
    }

    /// Returns the mode of a stored word.
    pub fn from_word(word: &str) -> Option<Self> {
        match word {
            "x" => Some(Self::Exclusive),
            "s" => Some(Self::Shared),
            _ => word.strip_prefix('n')?.parse().ok().map(|permits| Self::Semaphore { permits }),
        }
    }
}

impl fmt::Display for Mode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Exclusive => f.write_str("exclusive"),
            Self::Shared => f.write_str("shared"),
            Self::Semaphore { permits } => write!(f, "semaphore of {permits}"),
        }
    }
}

/// A name and the mode in which it is acquired.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Want {
    /// The lock.
    pub name: LockName,
    /// The mode.
    pub mode: Mode,
}

impl Want {
    /// Checks the mode against those in which other clients use this lock.
    ///
    /// # Errors
    /// [`ErrorKind::Conflict`], with the mode in use.
    pub fn agree(&self, others: impl IntoIterator<Item = Mode>) -> Result<()> {
        match others.into_iter().find(|there| !there.agrees_with(self.mode)) {
            None => Ok(()),
            Some(there) => Err(Error::new(
                ErrorKind::Conflict,
                format!("lock {:?} is in use as {there}, and cannot be acquired as {}", self.name, self.mode),
            )
            .with_hint(
                "all clients of one lock must agree on what it is; use another name for another purpose",
            )),
        }
    }
}

/// Whether an attempt needs all of its wants or one of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rule {
    /// All of them, or nothing.
    All,
    /// Any one of them.
    Any,
}

/// One attempt to acquire one or several locks: everything the backend stores about it.
///
/// It is created once and shared; its owner identifies its queue position (the ticket) and its grant.
#[derive(Debug)]
pub struct Attempt {
    /// The random id of this attempt.
    pub owner: Owner,
    /// The locks: at least one, sorted by name, without duplicates.
    pub wants: Vec<Want>,
    /// Whether all of them are needed or any one.
    pub rule: Rule,
    /// The length of the lease, of the ticket and of the grant.
    pub ttl: Duration,
    /// The label of the waiter and holder: `host:pid:user` by default.
    pub label: Arc<str>,
    /// Keys and values that are shown with it.
    pub meta: Arc<[(String, String)]>,
}

impl Attempt {
    /// Returns the same attempt under a new owner, to retry it after an outcome.
    #[must_use]
    pub fn with_new_owner(&self) -> Self {
        Self {
            owner: Owner::random(),
            wants: self.wants.clone(),
            rule: self.rule,
            ttl: self.ttl,
            label: self.label.clone(),
            meta: self.meta.clone(),
        }
    }

    /// Returns the names for messages: `lock "a"`, `locks "a", "b"`.
    pub fn describe(&self) -> String {
        let names: Vec<String> = self.wants.iter().map(|want| format!("{:?}", want.name)).collect();
        let word = if names.len() == 1 { "lock" } else { "locks" };
        format!("{word} {}", names.join(", "))
    }
}

/// The values that the backend returns with a grant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Award {
    /// Larger than every token granted before for any of the names.
    pub token: FencingToken,
    /// The granted ttl: backends round.
    pub ttl: Duration,
    /// Under [`Rule::Any`], which of the wants was granted; 0 otherwise.
    pub chosen: usize,
    /// How much of the ttl had elapsed when the request was sent: where the grants of a client share a lease, only the rest of it
    /// is granted. Zero where every grant has its own.
    pub elapsed: Duration,
}

/// A held lease: the attempt and its award.
#[derive(Clone, Debug)]
pub struct Grant {
    /// The attempt.
    pub attempt: Arc<Attempt>,
    /// Its award.
    pub award: Award,
}

impl Grant {
    /// Returns the wants that this grant holds.
    pub fn held(&self) -> &[Want] {
        match self.attempt.rule {
            Rule::All => &self.attempt.wants,
            Rule::Any => {
                // The number comes from stored data or a push, which may be damaged; there is at least one want.
                let chosen = self.award.chosen.min(self.attempt.wants.len() - 1);
                std::slice::from_ref(&self.attempt.wants[chosen])
            }
        }
    }
}

/// Why a lock was lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum LostReason {
    /// No renewal succeeded in time.
    Expired,
    /// The backend reports that it is not held: it expired, or the backend has lost it.
    NotHeld,
    /// An administrator broke it.
    Broken,
    /// It was held for `max_hold`.
    MaxHold,
    /// The client was closed.
    Closed,
    /// It was released.
    Released,
    /// Its lease was revoked, because another lock with the same lease could not be released.
    Abandoned,
}

impl fmt::Display for LostReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Expired => "its lease expired before a renewal succeeded",
            Self::NotHeld => "the backend reports that it is not held",
            Self::Broken => "it was broken by an administrator",
            Self::MaxHold => "it was held for the maximum time",
            Self::Closed => "the client was closed",
            Self::Released => "it was released",
            Self::Abandoned => {
                "its lease was revoked, because another lock with the same lease could not be released"
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn modes_are_read_back_from_their_words() {
        for (mode, word) in
            [(Mode::Exclusive, "x"), (Mode::Shared, "s"), (Mode::Semaphore { permits: 3 }, "n3")]
        {
            assert_eq!((mode.to_word().as_str(), Mode::from_word(word)), (word, Some(mode)));
        }
        assert_eq!((Mode::from_word("n"), Mode::from_word("y")), (None, None));
    }
}
