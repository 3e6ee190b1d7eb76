//! A lock that can be taken, by programs without async.

use std::sync::Arc;
use std::time::Duration;

use super::{Guard, block_on};
use crate::{ErrorKind, Mode, Result};

/// A lock of a [`super::Client`], and how to take it: a [`crate::Lock`] whose calls return when they are done.
#[derive(Clone, Debug)]
#[must_use = "a lock does nothing until it is acquired"]
pub struct Lock(crate::Lock);

impl Lock {
    /// How long the lock outlives a holder that crashes. 30 s by default.
    pub fn ttl(self, ttl: Duration) -> Self {
        Self(self.0.ttl(ttl))
    }

    /// How long [`Lock::acquire`] waits at most. For ever by default.
    pub fn wait(self, wait: Duration) -> Self {
        Self(self.0.wait(wait))
    }

    /// How long the lock may be held in all.
    pub fn max_hold(self, max_hold: Duration) -> Self {
        Self(self.0.max_hold(max_hold))
    }

    /// How the lock is to be held: exclusively by default.
    pub fn mode(self, mode: Mode) -> Self {
        Self(self.0.mode(mode))
    }

    /// Who is asking, as others see it: host:pid:user by default.
    pub fn label(self, label: impl Into<Arc<str>>) -> Self {
        Self(self.0.label(label))
    }

    /// Adds a fact about the holder for others to see.
    pub fn meta(self, key: impl Into<String>, value: impl Into<String>) -> Self {
        Self(self.0.meta(key, value))
    }

    /// Takes the lock if it is free and nobody waits for it; `None` otherwise.
    ///
    /// # Errors
    /// Those of [`crate::Lock::try_acquire`].
    pub fn try_acquire(&self) -> Result<Option<Guard>> {
        Ok(block_on(self.0.try_acquire())?.map(Guard::from))
    }

    /// Takes the lock, waiting in line for its turn.
    ///
    /// # Errors
    /// [`ErrorKind::WaitTimeout`] if [`Lock::wait`] was over first, and those of [`Lock::try_acquire`].
    pub fn acquire(&self) -> Result<Guard> {
        block_on(self.0.acquire()).map(Guard::from)
    }

    /// Takes the lock, does the work, and releases it, also if the work panics.
    ///
    /// Work on a thread cannot be cancelled. If the lock is lost meanwhile the work goes on to its end, and what it
    /// returns is dropped for an error: work that takes long should call [`Guard::check`] before every effect, and
    /// send [`Guard::token`] along.
    ///
    /// ```
    /// # fn main() -> fencepost::Result<()> {
    /// # let client = fencepost::blocking::connect("memory:")?;
    /// # let send = |_page: u32, _token: fencepost::FencingToken| ();
    /// let sent = client.lock("report").run(|guard| {
    ///     for page in 0..100 {
    ///         guard.check()?;
    ///         send(page, guard.token());
    ///     }
    ///     fencepost::Result::Ok(100)
    /// })??;
    /// # assert_eq!(sent, 100);
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

    /// The same lock for async code.
    pub fn as_async(&self) -> &crate::Lock {
        &self.0
    }

    /// The same lock for async code.
    pub fn into_async(self) -> crate::Lock {
        self.0
    }
}

impl From<crate::Lock> for Lock {
    fn from(lock: crate::Lock) -> Self {
        Self(lock)
    }
}
