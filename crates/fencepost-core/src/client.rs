//! The client of one backend, from which locks are made.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

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
use crate::locks::Locks;
use crate::name::LockName;
use crate::options::Options;
use crate::token::FencingToken;
use crate::watch::Watch;

/// A client of one backend. Cheap to clone; all clones share one thread that does the I/O.
///
/// Its futures can be awaited on any executor, and keep working after the runtime on which they were created has ended. When
/// the last clone, lock and guard is dropped, the drop waits up to 250 ms for queued releases; [`Client::close`] waits until
/// they are done.
#[derive(Clone)]
pub struct Client {
    handle: Arc<Handle>,
}

impl Client {
    /// Returns a client of this backend with default options; see [`Options::client`].
    ///
    /// # Errors
    /// If the client's thread cannot be started.
    pub fn new(backend: Arc<dyn Backend>) -> Result<Self> {
        Self::start(backend, Options::new())
    }

    /// Returns a client with another clock, for tests.
    ///
    /// # Errors
    /// If the client's thread cannot be started.
    pub fn with_clock(backend: Arc<dyn Backend>, clock: Clock) -> Result<Self> {
        Self::start(backend, Options::new().clock(clock))
    }

    /// Connects on the client's own thread, where drivers find the runtime they need.
    ///
    /// # Errors
    /// Those of `connect`, or if the client's thread cannot be started.
    ///
    /// # Cancel safety
    /// If the future is dropped, the client ends as soon as it has connected.
    pub async fn connect_with<F>(connect: F) -> Result<Self>
    where
        F: Future<Output = Result<Arc<dyn Backend>>> + Send + 'static,
    {
        Self::start_connecting(Box::pin(connect), Options::new()).await
    }

    pub(crate) fn start(backend: Arc<dyn Backend>, options: Options) -> Result<Self> {
        Ok(Self { handle: Handle::start(backend, labelled(options))? })
    }

    pub(crate) async fn start_connecting(connect: Connector, options: Options) -> Result<Self> {
        Ok(Self { handle: Handle::connect(connect, labelled(options)).await? })
    }

    /// Returns what the backend is and what it can do.
    pub fn info(&self) -> &BackendInfo {
        &self.handle.info
    }

    /// Returns the label of this client's holders and waiters, unless a lock sets its own: `host:pid:user` by default.
    pub fn label(&self) -> &str {
        &self.handle.defaults.label
    }

    /// Returns the ttl of locks that do not set their own: [`Options::ttl`], or else the value nearest to
    /// [`Lock::DEFAULT_TTL`] that the backend can keep.
    pub fn default_ttl(&self) -> Duration {
        let BackendInfo { min_ttl, max_ttl, .. } = self.handle.info;
        self.handle.defaults.ttl.unwrap_or_else(|| Lock::DEFAULT_TTL.clamp(min_ttl, max_ttl))
    }

    /// Returns the lock of this name. A name that is not valid is reported when the lock is acquired.
    pub fn lock(&self, name: impl AsRef<str>) -> Lock {
        self.lock_of(self.name(name).map(|name| vec![name]), Rule::All)
    }

    /// Returns all of these locks as one: all or nothing, without a deadlock whatever the order of the names.
    pub fn lock_all<N: AsRef<str>>(&self, names: impl IntoIterator<Item = N>) -> Lock {
        self.lock_of(self.names(names), Rule::All)
    }

    /// Returns any one of these locks: the first that is free, or else the first that becomes free. [`crate::Guard::name`] is
    /// the one that was acquired.
    pub fn lock_any<N: AsRef<str>>(&self, names: impl IntoIterator<Item = N>) -> Lock {
        self.lock_of(self.names(names), Rule::Any)
    }

    fn lock_of(&self, names: Result<Vec<LockName>>, rule: Rule) -> Lock {
        Lock::new(self.handle.clone(), names, rule, self.default_ttl())
    }

    /// Returns the holders and waiters of this lock.
    ///
    /// # Cancel safety
    /// Dropping the future loses nothing.
    pub async fn inspect(&self, name: impl AsRef<str>) -> Result<LockState> {
        let name = self.name(name)?;
        let state = self.handle.query(async move |backend| backend.inspect(&name).await).await??;
        Ok(self.handle.defaults.relative_state(state))
    }

    /// Returns one page of the locks in use whose names begin with `prefix`; [`Client::locks`] returns all of them.
    ///
    /// # Cancel safety
    /// Dropping the future loses nothing.
    pub async fn list(&self, prefix: impl AsRef<str>, page: Page) -> Result<ListPage> {
        list(&self.handle, prefix.as_ref(), page).await
    }

    /// Returns the locks in use whose names begin with `prefix`, one after the other, in the order of their names.
    ///
    /// ```
    /// # async fn example(client: fencepost_core::Client) -> fencepost_core::Result<()> {
    /// let mut locks = client.locks("invoice/");
    /// while let Some(lock) = locks.next().await? {
    ///     println!("{}: {} waiting", lock.name, lock.waiter_count);
    /// }
    /// # Ok(())
    /// # }
    /// ```
    pub fn locks(&self, prefix: impl AsRef<str>) -> Locks {
        Locks::new(self.handle.clone(), prefix.as_ref().to_owned())
    }

    /// Diagnoses the backend: returns one finding for everything that decides whether locks are safe there. What could not be
    /// checked is among the findings.
    ///
    /// # Errors
    /// [`ErrorKind::Closed`] if the client is closed.
    ///
    /// # Cancel safety
    /// Dropping the future loses nothing.
    pub async fn diagnose(&self) -> Result<Vec<Finding>> {
        self.handle.query(async |backend| backend.diagnose().await).await
    }

    /// Returns where this lock is stored, in the backend's own terms: the file or the exact keys, and any foreign data there.
    ///
    /// # Errors
    /// [`ErrorKind::Closed`] if the client is closed, [`ErrorKind::BadName`] if the name is not valid.
    ///
    /// # Cancel safety
    /// Dropping the future loses nothing.
    pub async fn locate(&self, name: impl AsRef<str>) -> Result<Vec<Finding>> {
        let name = self.name(name)?;
        self.handle.query(async move |backend| backend.locate(&name).await).await
    }

    /// Removes what has expired and what is no longer used, and returns how many names are gone; `None` if the backend itself
    /// removes it. Clients do so while they use locks: it is needed only where none does any more.
    ///
    /// # Errors
    /// [`ErrorKind::Closed`] if the client is closed, and those of the backend.
    ///
    /// # Cancel safety
    /// If the future is dropped, it may go on for a while.
    pub async fn sweep(&self) -> Result<Option<u64>> {
        self.handle.query(async |backend| backend.sweep().await).await?
    }

    /// Returns warnings that were recorded while this client acquired the lock or waited for it, such as a foreign client that may
    /// not respect it. Does no I/O; each finding is returned once.
    ///
    /// # Errors
    /// [`ErrorKind::Closed`] if the client is closed, [`ErrorKind::BadName`] if the name is not valid.
    ///
    /// # Cancel safety
    /// If the future is dropped, findings may be lost.
    pub async fn remarks(&self, name: impl AsRef<str>) -> Result<Vec<Finding>> {
        let name = self.name(name)?;
        self.handle.query(async move |backend| backend.remarks(&name)).await
    }

    /// Watches the locks whose names begin with `prefix`; see [`Watch`] for what is reported and what is merged.
    pub fn watch(&self, prefix: impl AsRef<str>) -> Watch {
        Watch::new(self.handle.clone(), prefix.as_ref().into())
    }

    pub(crate) fn handle(&self) -> &Arc<Handle> {
        &self.handle
    }

    /// Removes the holder with this token. The holder's guard is lost; its work in progress is stopped only by a fence that
    /// checks the token.
    ///
    /// # Errors
    /// [`ErrorKind::Conflict`] if the lock is no longer held with this token.
    ///
    /// # Cancel safety
    /// If the future is dropped, the lock may or may not have been broken.
    pub async fn break_lock(&self, name: impl AsRef<str>, token: FencingToken) -> Result<()> {
        let name = self.name(name)?;
        match call(&self.handle, Op::Break { name: name.clone(), token }).await? {
            Reply::Released => Ok(()),
            _ => Err(Error::new(
                ErrorKind::Conflict,
                format!("lock {name:?} is not held with token {token}"),
            )
            .with_hint(
                "it was released, or another client holds it by now; inspect it again before breaking it",
            )),
        }
    }

    /// Reads the cell of a lock, held or not.
    ///
    /// # Cancel safety
    /// Dropping the future loses nothing.
    pub async fn read_cell(&self, name: impl AsRef<str>) -> Result<Option<Cell>> {
        read_cell(&self.handle, self.name(name)?).await
    }

    /// Releases everything this client holds, waits until the backend has confirmed it, and ends the client. Its guards are lost
    /// with [`crate::LostReason::Closed`]; every later call fails with [`ErrorKind::Closed`].
    ///
    /// # Cancel safety
    /// Dropping the future does not stop the closing.
    pub async fn close(&self) {
        let (done, ended) = oneshot::channel();
        if self.handle.submit(Command::Close(done)).is_ok() {
            let _ = ended.await;
        }
    }

    fn name(&self, name: impl AsRef<str>) -> Result<LockName> {
        self.handle.defaults.name(name.as_ref())
    }

    /// Returns the names sorted and without duplicates: attempts with common names join the queues in the same order.
    fn names<N: AsRef<str>>(&self, names: impl IntoIterator<Item = N>) -> Result<Vec<LockName>> {
        let mut names = names.into_iter().map(|name| self.name(name)).collect::<Result<Vec<_>>>()?;
        names.sort();
        names.dedup();
        if names.is_empty() {
            return Err(Error::new(ErrorKind::BadName, "no lock was named"));
        }
        Ok(names)
    }
}

impl fmt::Debug for Client {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Client").field(&self.handle.info.location).finish()
    }
}

/// Returns one page of locks. Names are relative to the client's namespace, in the arguments and in the result.
pub(crate) async fn list(handle: &Handle, prefix: &str, mut page: Page) -> Result<ListPage> {
    let defaults = &handle.defaults;
    let prefix = defaults.prefixed(prefix);
    page.after = page.after.map(|name| defaults.name(name.as_str())).transpose()?;
    let ListPage { locks, next } =
        handle.query(async move |backend| backend.list(&prefix, page).await).await??;
    let locks = locks.into_iter().map(|state| defaults.relative_state(state)).collect();
    Ok(ListPage { locks, next: next.map(|name| defaults.relative(&name)) })
}

fn labelled(options: Options) -> Options {
    if options.label.is_some() { options } else { options.label(default_label()) }
}
