//! What is kind for and what is handed out: modes, attempts, awards, grants, and why a grant can end.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use crate::error::{Error, ErrorKind, Result};
use crate::name::LockName;
use crate::token::{FencingToken, Owner};

/// How a lock is held.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Mode {
    /// By one owner alone.
    Exclusive,
    /// By many readers at once, never together with an exclusive owner.
    Shared,
    /// By up to `of` owners at once: a semaphore. All clients must agree on the number.
    Semaphore {
        /// How many owners may hold the lock at once.
        permits: u32,
    },
}

impl Mode {
    /// Whether a holder in this mode and one in `other` may hold the same lock at the same time, numbers aside.
    pub fn is_compatible_with(self, other: Self) -> bool {
        !matches!((self, other), (Self::Exclusive, _) | (_, Self::Exclusive)) && self.agrees_with(other)
    }

    /// Whether clients that use these modes on one name agree about what it is: a readers–writer lock, or a
    /// semaphore of one size.
    pub fn agrees_with(self, other: Self) -> bool {
        match (self, other) {
            (Self::Semaphore { permits: a }, Self::Semaphore { permits: b }) => a == b,
            (Self::Semaphore { .. }, _) | (_, Self::Semaphore { .. }) => false,
            _ => true,
        }
    }

    /// Returns the word that storages keep for this mode: `x`, `s`, or `n3` for a semaphore of three.
    pub fn to_word(self) -> String {
        match self {
            Self::Exclusive => "x".into(),
            Self::Shared => "s".into(),
            Self::Semaphore { permits } => format!("n{permits}"),
        }
    }

    /// Returns the mode that this word stands for.
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

/// One name and how it is acquiring.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Want {
    /// The lock.
    pub name: LockName,
    /// How it is to be held.
    pub mode: Mode,
}

impl Want {
    /// Refuses a mode that contradicts what others use this lock as.
    ///
    /// # Errors
    /// [`ErrorKind::Conflict`], with what the lock is.
    pub fn agree(&self, others: impl IntoIterator<Item = Mode>) -> Result<()> {
        match others.into_iter().find(|there| !there.agrees_with(self.mode)) {
            None => Ok(()),
            Some(there) => Err(Error::new(
                ErrorKind::Conflict,
                format!("lock {:?} is in use as {there}, and cannot be taken as {}", self.name, self.mode),
            )
            .with_hint(
                "all clients of one lock must agree on what it is; use another name for another purpose",
            )),
        }
    }
}

/// What several wants of one attempt mean together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rule {
    /// All of them, or nothing.
    All,
    /// Any one of them.
    Any,
}

/// One attempt to take one or several locks: everything a storage is told about it.
///
/// It is made once and shared; the same attempt stands for its place in line (the ticket) and for the grant.
#[derive(Debug)]
pub struct Attempt {
    /// The random id of this attempt.
    pub owner: Owner,
    /// The names acquiring: at least one, sorted, no name twice.
    pub wants: Vec<Want>,
    /// Whether all of them are acquiring or any one.
    pub rule: Rule,
    /// The lease's length, for the ticket and for the grant.
    pub ttl: Duration,
    /// Who is asking, for people: host:pid:user by default.
    pub label: Arc<str>,
    /// More about it, for people.
    pub meta: Arc<[(String, String)]>,
}

impl Attempt {
    /// The same attempt under a new owner, for asking again after a outcome.
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

    /// The names in words: `lock "a"`, `locks "a", "b"`.
    pub fn describe(&self) -> String {
        let names: Vec<String> = self.wants.iter().map(|want| format!("{:?}", want.name)).collect();
        let word = if names.len() == 1 { "lock" } else { "locks" };
        format!("{word} {}", names.join(", "))
    }
}

/// What a storage says when it grants an attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Award {
    /// Larger than every token granted before for any of the names.
    pub token: FencingToken,
    /// The ttl really given: storages round.
    pub ttl: Duration,
    /// Under [`Rule::Any`], which of the wants was granted; 0 otherwise.
    pub chosen: usize,
    /// How much of the ttl had passed already when the request was sent: storages in which the grants of a client share a
    /// lease give what is left of it. Zero where every grant has its own.
    pub elapsed: Duration,
}

/// A lease that is held: the attempt and what was awarded.
#[derive(Clone, Debug)]
pub struct Grant {
    /// The attempt that won.
    pub attempt: Arc<Attempt>,
    /// What it won.
    pub award: Award,
}

impl Grant {
    /// The wants that this grant holds.
    pub fn held(&self) -> &[Want] {
        match self.attempt.rule {
            Rule::All => &self.attempt.wants,
            Rule::Any => {
                // The number comes from a storage or a push, which may be damaged; there is at least one want.
                let chosen = self.award.chosen.min(self.attempt.wants.len() - 1);
                std::slice::from_ref(&self.attempt.wants[chosen])
            }
        }
    }
}

/// Why a guard no longer holds its lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum LostReason {
    /// No renewal succeeded in time.
    Expired,
    /// The storage says that it is not held: it ended, or the storage forgot it.
    NotHeld,
    /// Somebody broke it.
    Broken,
    /// It was held for as long as `max_hold` allows.
    MaxHold,
    /// The client was closed.
    Closed,
    /// It was released.
    Released,
    /// Its lease was given up because something else on it could not be given back.
    Abandoned,
}

impl fmt::Display for LostReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Expired => "its lease ran out before a renewal succeeded",
            Self::NotHeld => "the storage no longer knows it as held",
            Self::Broken => "it was broken by an administrator",
            Self::MaxHold => "it was held for the maximum time",
            Self::Closed => "the client was closed",
            Self::Released => "it was released",
            Self::Abandoned => "its lease was given up, because another lock on it could not be given back",
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
