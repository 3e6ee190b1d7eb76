//! The guard of a grant, for programs without async.

use std::sync::Arc;
use std::time::Duration;

use super::{block_on, block_on_for};
use crate::{Cell, FencingToken, Keep, LockName, LostReason, Result, StorageId};

/// A lock that is held: a [`crate::Guard`] whose calls block. It is renewed automatically, whatever the program's threads do,
/// and released when it is dropped.
#[derive(Debug)]
#[must_use = "the lock is released as soon as its guard is dropped"]
pub struct Guard(crate::Guard);

impl Guard {
    /// Returns the fencing token: larger for every later grant of this lock.
    pub fn token(&self) -> FencingToken {
        self.0.token()
    }

    /// Returns the id within which tokens are ordered.
    pub fn storage_id(&self) -> StorageId {
        self.0.storage_id()
    }

    /// Returns the name that is held; the first one if there are several.
    pub fn name(&self) -> &LockName {
        self.0.name()
    }

    /// Returns the names that are held.
    pub fn names(&self) -> impl Iterator<Item = &LockName> {
        self.0.names()
    }

    /// Returns the label under which the holder is shown.
    pub fn label(&self) -> &str {
        self.0.label()
    }

    /// Returns the length of the lease, as the backend granted it.
    pub fn ttl(&self) -> Duration {
        self.0.ttl()
    }

    /// Returns how long the lock stays held if no further renewal succeeds.
    pub fn remaining(&self) -> Duration {
        self.0.remaining()
    }

    /// Returns whether the lock is held now. Reads the clock, no I/O; once false it stays false.
    pub fn is_valid(&self) -> bool {
        self.0.is_valid()
    }

    /// Returns an error if the lock is no longer held: call it before every effect.
    ///
    /// # Errors
    /// [`crate::ErrorKind::Lost`] with the reason.
    pub fn check(&self) -> Result<()> {
        self.0.check()
    }

    /// Returns why the lock was lost, if it was.
    pub fn lost_reason(&self) -> Option<LostReason> {
        self.0.lost_reason()
    }

    /// Waits until the lock is no longer held, and returns the reason: for a thread that stops another one, with a
    /// [`Guard::share`] of its own.
    pub fn lost(&self) -> LostReason {
        block_on(self.0.lost())
    }

    /// Waits until the lock is no longer held, but not longer than this; returns `None` if it is still held.
    pub fn lost_within(&self, wait: Duration) -> Option<LostReason> {
        block_on_for(self.0.lost(), wait)
    }

    /// Returns another guard of the same grant, for another thread: the lock is released when the last one is dropped.
    pub fn share(&self) -> Self {
        Self(self.0.share())
    }

    /// Writes the lock's cell, as [`crate::Guard::write_cell`].
    ///
    /// # Errors
    /// [`crate::ErrorKind::Lost`] if the lock is not held; [`crate::ErrorKind::BadConfig`] if the value is too large.
    pub fn write_cell(&self, bytes: impl Into<Arc<[u8]>>, keep: Keep) -> Result<()> {
        block_on(self.0.write_cell(bytes, keep))
    }

    /// Reads the lock's cell.
    pub fn read_cell(&self) -> Result<Option<Cell>> {
        block_on(self.0.read_cell())
    }

    /// Releases the lock and waits until the backend has confirmed it. If the grant is shared, only this share is given up.
    ///
    /// # Errors
    /// [`crate::ErrorKind::Lost`] if it was no longer held; see [`crate::Guard::release`].
    pub fn release(self) -> Result<()> {
        block_on(self.0.release())
    }

    /// Returns the guard for async code.
    pub fn as_async(&self) -> &crate::Guard {
        &self.0
    }

    /// Converts into the guard for async code.
    pub fn into_async(self) -> crate::Guard {
        self.0
    }
}

impl From<crate::Guard> for Guard {
    fn from(guard: crate::Guard) -> Self {
        Self(guard)
    }
}
