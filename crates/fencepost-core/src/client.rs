//! A connection to a storage, from which locks are made.

use std::fmt;
use std::sync::Arc;

use tokio::sync::oneshot;

use crate::backend::{Backend, BackendInfo, Cell, ListPage, LockState, Op, Page, Reply};
use crate::clock::Clock;
use crate::error::{Error, ErrorKind, Result};
use crate::finding::Finding;
use crate::grant::Rule;
use crate::guard::{call, read_cell};
use crate::handle::{Command, Connector, Handle};
use crate::label::default_label;
use crate::lock::Lock;
use crate::name::LockName;
use crate::options::Options;
use crate::token::FencingToken;
use crate::watch::Watch;

/// A client of one storage. Cheap to clone; all clones share one thread that does the I/O.
///
/// Its futures may be awaited on any executor, and go on working after the runtime that made them is gone. When the
/// last clone, lock and guard is dropped, it waits up to 250 ms for releases that are still queued;
/// [`Client::close`] waits until they are done.
#[derive(Clone)]
pub struct Client {
    handle: Arc<Handle>,
}

impl Client {
    /// A client of this backend. [`Options::client`] is for one that is to be told more.
    ///
    /// # Errors
    /// If its thread cannot be started.
    pub fn new(backend: Arc<dyn Backend>) -> Result<Self> {
        Self::start(backend, Options::new())
    }

    /// A client that reads its time elsewhere, for tests.
    ///
    /// # Errors
    /// If its thread cannot be started.
    pub fn with_clock(backend: Arc<dyn Backend>, clock: Clock) -> Result<Self> {
        Self::start(backend, Options::new().clock(clock))
    }

    /// A client that makes its backend on its own thread, where drivers find the runtime they live in.
    ///
    /// # Errors
    /// What the connecting says, or if its thread cannot be started.
    ///
    /// # Cancel safety
    /// If the future is dropped the client ends as soon as it has connected.
    pub async fn connect_with<F>(connect: F) -> Result<Self>
    where
        F: Future<Output = Result<Arc<dyn Backend>>> + Send + 'static,
    {
        Self::start_connecting(Box::pin(connect), Options::new()).await
    }

    pub(crate) fn start(backend: Arc<dyn Backend>, options: Options) -> Result<Self> {
        Ok(Self { handle: Handle::start(backend, options, default_label().into())? })
    }

    pub(crate) async fn start_connecting(connect: Connector, options: Options) -> Result<Self> {
        Ok(Self { handle: Handle::connect(connect, options, default_label().into()).await? })
    }

    /// What the storage is and what it can do.
    pub fn info(&self) -> &BackendInfo {
        &self.handle.info
    }

    /// Who is asking, as others see it, unless a lock says otherwise: host:pid:user.
    pub fn label(&self) -> &str {
        &self.handle.label
    }

    /// The lock of this name. A name that is not valid is told when the lock is taken.
    pub fn lock(&self, name: impl AsRef<str>) -> Lock {
        Lock::new(self.handle.clone(), LockName::new(name).map(|name| vec![name]), Rule::All)
    }

    /// All of these locks as one: all or nothing, without a deadlock whatever the order they are named in.
    pub fn lock_all<N: AsRef<str>>(&self, names: impl IntoIterator<Item = N>) -> Lock {
        Lock::new(self.handle.clone(), several(names), Rule::All)
    }

    /// Any one of these locks: the first that is free, or else the first that becomes free. [`crate::Guard::name`]
    /// says which it was.
    pub fn lock_any<N: AsRef<str>>(&self, names: impl IntoIterator<Item = N>) -> Lock {
        Lock::new(self.handle.clone(), several(names), Rule::Any)
    }

    /// Who holds this lock and who waits for it.
    ///
    /// # Cancel safety
    /// Dropping the future loses nothing.
    pub async fn inspect(&self, name: impl AsRef<str>) -> Result<LockState> {
        let name = LockName::new(name)?;
        self.handle.ask(async move |backend| backend.inspect(&name).await).await?
    }

    /// The locks in use whose names begin with `prefix`, a page at a time.
    ///
    /// # Cancel safety
    /// Dropping the future loses nothing.
    pub async fn list(&self, prefix: impl Into<String>, page: Page) -> Result<ListPage> {
        let prefix = prefix.into();
        self.handle.ask(async move |backend| backend.list(&prefix, page).await).await?
    }

    /// Whether locks are safe here: what the storage finds when it looks at itself. What could not be checked is among the
    /// findings.
    ///
    /// # Errors
    /// [`ErrorKind::Closed`] if the client is closed.
    ///
    /// # Cancel safety
    /// Dropping the future loses nothing.
    pub async fn diagnose(&self) -> Result<Vec<Finding>> {
        self.handle.ask(async |backend| backend.diagnose().await).await
    }

    /// Where this lock lives, in the storage's own terms: the file, the exact keys, and whether something else lies there.
    ///
    /// # Errors
    /// [`ErrorKind::Closed`] if the client is closed, [`ErrorKind::BadName`] if the name is not valid.
    ///
    /// # Cancel safety
    /// Dropping the future loses nothing.
    pub async fn locate(&self, name: impl AsRef<str>) -> Result<Vec<Finding>> {
        let name = LockName::new(name)?;
        self.handle.ask(async move |backend| backend.locate(&name).await).await
    }

    /// Returns what was noticed about this lock while this client took it or waited for it and its user should know: another
    /// program there that may not respect it. The backend is not asked; each remark is returned once.
    ///
    /// # Errors
    /// [`ErrorKind::Closed`] if the client is closed, [`ErrorKind::BadName`] if the name is not valid.
    ///
    /// # Cancel safety
    /// If the future is dropped, remarks may be lost.
    pub async fn remarks(&self, name: impl AsRef<str>) -> Result<Vec<Finding>> {
        let name = LockName::new(name)?;
        self.handle.ask(async move |backend| backend.remarks(&name)).await
    }

    /// Watches the locks whose names begin with `prefix`; see [`Watch`] for what it tells and what it merges.
    pub fn watch(&self, prefix: impl Into<Arc<str>>) -> Watch {
        Watch::new(self.handle.clone(), prefix.into())
    }

    pub(crate) fn handle(&self) -> &Arc<Handle> {
        &self.handle
    }

    /// Takes the lock from the holder with this token, whoever it is. The holder learns of it; what it has under way
    /// is stopped only by its fence.
    ///
    /// # Errors
    /// [`ErrorKind::Conflict`] if the token has moved on: the holder that was to be broken is gone.
    ///
    /// # Cancel safety
    /// If the future is dropped the lock may or may not have been broken.
    pub async fn break_lock(&self, name: impl AsRef<str>, token: FencingToken) -> Result<()> {
        let name = LockName::new(name)?;
        match call(&self.handle, Op::Break { name: name.clone(), token }).await? {
            Reply::Released => Ok(()),
            _ => Err(Error::new(
                ErrorKind::Conflict,
                format!("lock {name:?} is not held with token {token}: it has moved on"),
            )
            .with_hint("look again who holds it now, before you break anything")),
        }
    }

    /// Reads the cell of a lock, held or not.
    ///
    /// # Cancel safety
    /// Dropping the future loses nothing.
    pub async fn read_cell(&self, name: impl AsRef<str>) -> Result<Option<Cell>> {
        read_cell(&self.handle, LockName::new(name)?).await
    }

    /// Releases everything this client holds, waits until the storage has it, and ends the client. Its guards are lost
    /// with [`crate::LostReason::Closed`]; whatever is asked of it afterwards fails with [`ErrorKind::Closed`].
    ///
    /// # Cancel safety
    /// Dropping the future does not stop the closing.
    pub async fn close(&self) {
        let (done, ended) = oneshot::channel();
        if self.handle.submit(Command::Close(done)).is_ok() {
            let _ = ended.await;
        }
    }
}

impl fmt::Debug for Client {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Client").field(&self.handle.info.location).finish()
    }
}

/// Sorted, and no name twice: so two that want the same names always stand in line in the same order.
fn several<N: AsRef<str>>(names: impl IntoIterator<Item = N>) -> Result<Vec<LockName>> {
    let mut names = names.into_iter().map(LockName::new).collect::<Result<Vec<_>>>()?;
    names.sort();
    names.dedup();
    if names.is_empty() {
        return Err(Error::new(ErrorKind::BadName, "no lock was named"));
    }
    Ok(names)
}
