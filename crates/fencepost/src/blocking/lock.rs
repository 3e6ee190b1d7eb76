//! A lock that can be acquired, for programs without async.

use std::sync::Arc;
use std::time::Duration;

use super::{Guard, block_on};
use crate::{Error, ErrorKind, Mode, Result};

/// A lock of a [`super::Client`], with how to acquire it: a [`crate::Lock`] whose calls block.
#[derive(Clone, Debug)]
#[must_use = "a lock does nothing until it is acquired"]
pub struct Lock(crate::Lock);

impl Lock {
    /// Sets how long the lock stays held after its holder has crashed; [`super::Client::default_ttl`] unless set.
    pub fn ttl(self, ttl: Duration) -> Self {
        Self(self.0.ttl(ttl))
    }

    /// Limits how long [`Lock::acquire`] waits. Without a limit by default.
    pub fn wait(self, wait: Duration) -> Self {
        Self(self.0.wait(wait))
    }

    /// Limits how long the lock is held.
    pub fn max_hold(self, max_hold: Duration) -> Self {
        Self(self.0.max_hold(max_hold))
    }

    /// Sets the mode: [`Mode::Exclusive`] by default.
    pub fn mode(self, mode: Mode) -> Self {
        Self(self.0.mode(mode))
    }

    /// Acquires the lock as a reader, as [`crate::Lock::shared`].
    pub fn shared(self) -> Self {
        Self(self.0.shared())
    }

    /// Acquires one of `permits` permits of a semaphore, as [`crate::Lock::semaphore`].
    pub fn semaphore(self, permits: u32) -> Self {
        Self(self.0.semaphore(permits))
    }

    /// Sets the label under which the holder or waiter is shown; see [`crate::Options::label`].
    pub fn label(self, label: impl Into<Arc<str>>) -> Self {
        Self(self.0.label(label))
    }

    /// Adds a key and value that are shown with the holder.
    pub fn meta(self, key: impl Into<String>, value: impl Into<String>) -> Self {
        Self(self.0.meta(key, value))
    }

    /// Acquires the lock if it is free and has no waiters; returns `None` otherwise.
    ///
    /// # Errors
    /// Those of [`crate::Lock::try_acquire`].
    pub fn try_acquire(&self) -> Result<Option<Guard>> {
        Ok(block_on(self.0.try_acquire())?.map(Guard::from))
    }

    /// Acquires the lock, waiting in the queue if necessary.
    ///
    /// # Errors
    /// [`ErrorKind::WaitTimeout`] if the limit of [`Lock::wait`] was reached, and those of [`Lock::try_acquire`].
    pub fn acquire(&self) -> Result<Guard> {
        block_on(self.0.acquire()).map(Guard::from)
    }

    /// Acquires the lock, runs the work, and releases the lock, also if the work panics.
    ///
    /// Work on a thread cannot be cancelled. If the lock is lost meanwhile the work runs to its end, and its result is replaced
    /// by an error: long work should call [`Guard::check`] before every effect, and send [`Guard::token`] along.
    ///
    /// ```
    /// # fn main() -> fencepost::Result<()> {
    /// # let client = fencepost::blocking::connect("memory:")?;
    /// # let charge = |_invoice: u32, _token: fencepost::FencingToken| 7;
    /// let receipt = client.lock("invoice/42").run(|guard| charge(42, guard.token()))?;
    /// # assert_eq!(receipt, 7);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// Those of [`Lock::acquire`], and [`ErrorKind::Lost`] if the lock was lost before the work was done.
    pub fn run<T>(&self, work: impl FnOnce(&Guard) -> T) -> Result<T> {
        let guard = self.acquire()?;
        let out = work(&guard);
        guard.check()?;
        match guard.release() {
            Err(error) if error.kind() == ErrorKind::Lost => Err(error),
            _ => Ok(out),
        }
    }

    /// Runs work that can fail, as [`Lock::run`] does: `?` works inside the closure. Its error type has to be made from an
    /// [`Error`].
    ///
    /// ```
    /// # fn main() -> fencepost::Result<()> {
    /// # let client = fencepost::blocking::connect("memory:")?;
    /// # let send = |_page: u32, _token: fencepost::FencingToken| ();
    /// let sent = client.lock("report").try_run(|guard| -> fencepost::Result<u32> {
    ///     for page in 0..100 {
    ///         guard.check()?;
    ///         send(page, guard.token());
    ///     }
    ///     Ok(100)
    /// })?;
    /// # assert_eq!(sent, 100);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// Those of the work, and those of [`Lock::run`] converted by `From`.
    pub fn try_run<T, E: From<Error>>(&self, work: impl FnOnce(&Guard) -> Result<T, E>) -> Result<T, E> {
        self.run(work)?
    }

    /// Returns the lock for async code.
    pub fn as_async(&self) -> &crate::Lock {
        &self.0
    }

    /// Converts into the lock for async code.
    pub fn into_async(self) -> crate::Lock {
        self.0
    }
}

impl From<crate::Lock> for Lock {
    fn from(lock: crate::Lock) -> Self {
        Self(lock)
    }
}
