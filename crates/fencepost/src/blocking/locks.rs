//! All locks of a prefix, for programs without async.

use super::block_on;
use crate::{LockState, Result};

/// Iterates over the locks of a [`super::Client`]: a [`crate::Locks`] whose calls block. After an error another call reads the same
/// page again.
#[derive(Debug)]
#[must_use = "locks are read only when the next one is asked for"]
pub struct Locks(crate::Locks);

impl Iterator for Locks {
    type Item = Result<LockState>;

    fn next(&mut self) -> Option<Result<LockState>> {
        block_on(self.0.next()).transpose()
    }
}

impl From<crate::Locks> for Locks {
    fn from(locks: crate::Locks) -> Self {
        Self(locks)
    }
}
