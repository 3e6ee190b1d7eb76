//! A connection to a storage, for programs without async.

use std::sync::Arc;

use fencepost_core::BackendInfo;

use super::{Lock, Watch, block_on};
use crate::{Cell, FencingToken, Finding, ListPage, LockState, Page, Result};

/// A client of one storage: a [`crate::Client`] whose calls return when they are done. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Client(crate::Client);

impl Client {
    /// What the storage is and what it can do.
    pub fn info(&self) -> &BackendInfo {
        self.0.info()
    }

    /// Who is asking, as others see it, unless a lock says otherwise.
    pub fn label(&self) -> &str {
        self.0.label()
    }

    /// The lock of this name, as [`crate::Client::lock`].
    pub fn lock(&self, name: impl AsRef<str>) -> Lock {
        self.0.lock(name).into()
    }

    /// All of these locks as one, as [`crate::Client::lock_all`].
    pub fn lock_all<N: AsRef<str>>(&self, names: impl IntoIterator<Item = N>) -> Lock {
        self.0.lock_all(names).into()
    }

    /// Any one of these locks, as [`crate::Client::lock_any`].
    pub fn lock_any<N: AsRef<str>>(&self, names: impl IntoIterator<Item = N>) -> Lock {
        self.0.lock_any(names).into()
    }

    /// Who holds this lock and who waits for it.
    pub fn inspect(&self, name: impl AsRef<str>) -> Result<LockState> {
        block_on(self.0.inspect(name))
    }

    /// The locks in use whose names begin with `prefix`, a page at a time.
    pub fn list(&self, prefix: impl Into<String>, page: Page) -> Result<ListPage> {
        block_on(self.0.list(prefix, page))
    }

    /// What the storage finds when it looks at itself, as [`crate::Client::diagnose`].
    pub fn diagnose(&self) -> Result<Vec<Finding>> {
        block_on(self.0.diagnose())
    }

    /// Where this lock lives, as [`crate::Client::locate`].
    pub fn locate(&self, name: impl AsRef<str>) -> Result<Vec<Finding>> {
        block_on(self.0.locate(name))
    }

    /// Returns what was noticed about this lock while it was taken, as [`crate::Client::remarks`].
    pub fn remarks(&self, name: impl AsRef<str>) -> Result<Vec<Finding>> {
        block_on(self.0.remarks(name))
    }

    /// Watches the locks whose names begin with `prefix`, as [`crate::Client::watch`].
    pub fn watch(&self, prefix: impl Into<Arc<str>>) -> Watch {
        self.0.watch(prefix).into()
    }

    /// Takes the lock from the holder with this token, as [`crate::Client::break_lock`].
    ///
    /// # Errors
    /// [`crate::ErrorKind::Conflict`] if the token has moved on.
    pub fn break_lock(&self, name: impl AsRef<str>, token: FencingToken) -> Result<()> {
        block_on(self.0.break_lock(name, token))
    }

    /// Reads the cell of a lock, held or not.
    pub fn read_cell(&self, name: impl AsRef<str>) -> Result<Option<Cell>> {
        block_on(self.0.read_cell(name))
    }

    /// Releases everything this client holds, waits until the storage has it, and ends the client.
    pub fn close(&self) {
        block_on(self.0.close());
    }

    /// The same client for async code.
    pub fn as_async(&self) -> &crate::Client {
        &self.0
    }

    /// The same client for async code.
    pub fn into_async(self) -> crate::Client {
        self.0
    }
}

impl From<crate::Client> for Client {
    fn from(client: crate::Client) -> Self {
        Self(client)
    }
}
