//! The client of one backend, for programs without async.

use std::time::Duration;

use fencepost_core::BackendInfo;

use super::{Lock, Locks, Watch, block_on};
use crate::{Cell, FencingToken, Finding, ListPage, LockState, Page, Result};

/// A client of one backend: a [`crate::Client`] whose calls block. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Client(crate::Client);

impl Client {
    /// Returns what the backend is and what it can do.
    pub fn info(&self) -> &BackendInfo {
        self.0.info()
    }

    /// Returns the label of this client's holders and waiters, as [`crate::Client::label`].
    pub fn label(&self) -> &str {
        self.0.label()
    }

    /// Returns the ttl of locks that do not set their own, as [`crate::Client::default_ttl`].
    pub fn default_ttl(&self) -> Duration {
        self.0.default_ttl()
    }

    /// Returns the lock of this name, as [`crate::Client::lock`].
    pub fn lock(&self, name: impl AsRef<str>) -> Lock {
        self.0.lock(name).into()
    }

    /// Returns all of these locks as one, as [`crate::Client::lock_all`].
    pub fn lock_all<N: AsRef<str>>(&self, names: impl IntoIterator<Item = N>) -> Lock {
        self.0.lock_all(names).into()
    }

    /// Returns any one of these locks, as [`crate::Client::lock_any`].
    pub fn lock_any<N: AsRef<str>>(&self, names: impl IntoIterator<Item = N>) -> Lock {
        self.0.lock_any(names).into()
    }

    /// Returns the holders and waiters of this lock.
    pub fn inspect(&self, name: impl AsRef<str>) -> Result<LockState> {
        block_on(self.0.inspect(name))
    }

    /// Returns one page of the locks in use whose names begin with `prefix`.
    pub fn list(&self, prefix: impl AsRef<str>, page: Page) -> Result<ListPage> {
        block_on(self.0.list(prefix, page))
    }

    /// Iterates over the locks in use whose names begin with `prefix`, as [`crate::Client::locks`].
    ///
    /// ```
    /// # fn main() -> fencepost::Result<()> {
    /// # let client = fencepost::blocking::connect("memory:locks")?;
    /// let _held = client.lock("invoice/42").acquire()?;
    /// for lock in client.locks("invoice/") {
    ///     println!("{}", lock?.name);
    /// }
    /// # Ok(())
    /// # }
    /// ```
    pub fn locks(&self, prefix: impl AsRef<str>) -> Locks {
        self.0.locks(prefix).into()
    }

    /// Diagnoses the backend, as [`crate::Client::diagnose`].
    pub fn diagnose(&self) -> Result<Vec<Finding>> {
        block_on(self.0.diagnose())
    }

    /// Returns where this lock is stored, as [`crate::Client::locate`].
    pub fn locate(&self, name: impl AsRef<str>) -> Result<Vec<Finding>> {
        block_on(self.0.locate(name))
    }

    /// Removes what has expired and what is no longer used, as [`crate::Client::sweep`].
    pub fn sweep(&self) -> Result<Option<u64>> {
        block_on(self.0.sweep())
    }

    /// Returns what was noticed about this lock while it was acquired, as [`crate::Client::remarks`].
    pub fn remarks(&self, name: impl AsRef<str>) -> Result<Vec<Finding>> {
        block_on(self.0.remarks(name))
    }

    /// Watches the locks whose names begin with `prefix`, as [`crate::Client::watch`].
    pub fn watch(&self, prefix: impl AsRef<str>) -> Watch {
        self.0.watch(prefix).into()
    }

    /// Removes the holder with this token, as [`crate::Client::break_lock`].
    ///
    /// # Errors
    /// [`crate::ErrorKind::Conflict`] if the lock is no longer held with this token.
    pub fn break_lock(&self, name: impl AsRef<str>, token: FencingToken) -> Result<()> {
        block_on(self.0.break_lock(name, token))
    }

    /// Reads the cell of a lock, held or not.
    pub fn read_cell(&self, name: impl AsRef<str>) -> Result<Option<Cell>> {
        block_on(self.0.read_cell(name))
    }

    /// Releases everything this client holds, waits until the backend has confirmed it, and ends the client.
    pub fn close(&self) {
        block_on(self.0.close());
    }

    /// Returns the client for async code.
    pub fn as_async(&self) -> &crate::Client {
        &self.0
    }

    /// Converts into the client for async code.
    pub fn into_async(self) -> crate::Client {
        self.0
    }
}

impl From<crate::Client> for Client {
    fn from(client: crate::Client) -> Self {
        Self(client)
    }
}
