//! The contract of a database: a session with at most one lock, and what is asked about sessions from outside.

use std::hash::Hash;
use std::time::Duration;

use async_trait::async_trait;
use fencepost_core::backend::{ListPage, LockState, OnBusy, Page, Reply};
use fencepost_core::{Attempt, Error, FencingToken, Finding, LockName, Owner, Result, StorageId};

/// What is known about a server and its locks.
#[derive(Clone, Debug)]
pub struct ServerInfo {
    /// The URL scheme.
    pub scheme: &'static str,
    /// The URL without secrets.
    pub location: String,
    /// The server's word for such locks: `advisory locks`.
    pub locks: &'static str,
    /// The id of what is stored beside the locks.
    pub storage_id: StorageId,
    /// What these locks cannot guarantee.
    pub exceptions: &'static [&'static str],
    /// Whether the server has shared locks.
    pub has_shared: bool,
    /// The maximum number of sessions in use.
    pub connections: usize,
    /// How many sessions are opened at once.
    pub max_opening: usize,
    /// How long an attempt waits in the server's queue before it joins it again.
    pub wait_slice: Duration,
}

/// The outcome of trying to acquire a lock, or of waiting for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tried {
    /// The session has the lock.
    Acquired(FencingToken),
    /// A wait has acquired the lock, which has no token yet: [`LockSession::try_lock`] assigns it.
    Unnumbered,
    /// The lock is not free, or the wait has ended without it.
    NotFree,
}

/// What a session that is to wait does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Position {
    /// It was without the lock when this was asked.
    Waiting,
    /// It has the lock.
    Granted,
    /// The session has ended.
    Gone,
}

/// A session that holds, or waits for, at most one lock. Dropping it closes its connection at once, although a statement may be in
/// flight, and its locks are free.
#[async_trait]
pub trait LockSession: Send + Sync + 'static {
    /// The server's identification of a lock.
    type Key: Clone + Eq + Hash + Send + Sync + 'static;
    /// The server's identification of a session.
    type Id: Copy + Send + Sync + 'static;

    /// Whether a session that does not wait can be used again at once when [`LockSession::try_lock`] returned
    /// [`Tried::NotFree`]; otherwise it is unlocked first.
    const IS_CLEAN_WHEN_BUSY: bool;

    /// Returns the id by which other sessions address this one.
    fn id(&self) -> Self::Id;

    /// Returns whether it can be used for another lock, as far as is known.
    fn is_usable(&self) -> bool;

    /// Acquires the lock if it is free, or numbers the grant after [`Tried::Unnumbered`]. Otherwise the session is shown as a waiter,
    /// if it will wait. It is never cancelled.
    ///
    /// # Errors
    /// `OutcomeUnknown` if there was no reply. `Conflict` if the lock is in use under another name.
    async fn try_lock(&mut self, key: &Self::Key, attempt: &Attempt, on_busy: OnBusy) -> Result<Tried>;

    /// Waits for the lock in the queue of the server, for at most `wait`. The lock may be granted just when the wait ends or is
    /// cancelled; another wait then returns it at once. Where a cancellation may end a request between two statements, without a
    /// reply, this is one statement.
    async fn wait(&mut self, key: &Self::Key, attempt: &Attempt, wait: Duration) -> Result<Tried>;

    /// Proves to both sides that the session is alive. Returns whether it is the same as before, and has the lock.
    async fn heartbeat(&mut self, key: &Self::Key, attempt: &Attempt) -> bool;

    /// Waits for the end of the session, if the driver notices it by itself.
    ///
    /// # Cancel safety
    /// If the future is dropped, the next call returns what it would have returned.
    async fn ended(&mut self) {
        std::future::pending::<()>().await;
    }

    /// Frees all locks of the session, which can then be used for another one. Returns whether it had the lock.
    async fn unlock(&mut self, key: &Self::Key, attempt: &Attempt) -> Result<bool>;
}

/// A server with such locks.
#[async_trait]
pub trait LockServer: Send + Sync + 'static {
    /// The server's identification of a lock.
    type Key: Clone + Eq + Hash + Send + Sync + 'static;
    /// The server's identification of a session.
    type Id: Copy + Send + Sync + 'static;
    /// A session of an attempt.
    type Session: LockSession<Key = Self::Key, Id = Self::Id>;

    /// Opens a session whose end the server notices: of a client that is gone, and of one that does not renew for a ttl.
    async fn open(&self) -> Result<Self::Session>;

    /// Derives the key of a lock; `None` if only the server can.
    ///
    /// # Errors
    /// `BadName` if the lock cannot have this name.
    fn key(&self, name: &LockName) -> Result<Option<Self::Key>>;

    /// Lets the server derive the key of a lock, in a session without locks.
    async fn compute_key(&self, session: &mut Self::Session, name: &LockName) -> Result<Self::Key>;

    /// Returns what the session with this id does.
    async fn position(&self, id: Self::Id, key: &Self::Key) -> Result<Position>;

    /// Cancels the wait of the session with this id, which is that of an attempt of this client.
    async fn cancel(&self, id: Self::Id, owner: Owner) -> Result<()>;

    /// Returns whether [`LockServer::break_lock`] has ended this session.
    async fn is_broken(&self, session: &Self::Session, owner: Owner) -> bool;

    /// Returns whether a release was executed although it failed with `error`; `false` if the lock was free before.
    ///
    /// # Errors
    /// `error`, or `OutcomeUnknown`, if that is not known.
    async fn was_released(
        &self,
        session: Self::Session,
        attempt: &Attempt,
        token: FencingToken,
        error: Error,
    ) -> Result<bool>;

    /// Returns the error of a server that does not reply.
    fn unreachable(&self) -> Error;

    /// Returns the error of an attempt whose session has ended while it waited.
    fn lost_waiter(&self) -> Error;

    /// Returns the error for a name that has the same key as another one in use.
    fn same_key(&self, name: &LockName, other: &LockName) -> Error;

    /// Ends the session that holds the lock with this token.
    async fn break_lock(&self, name: &LockName, token: FencingToken) -> Result<Reply>;

    /// Returns the holders and waiters of a lock.
    async fn inspect(&self, name: &LockName) -> Result<LockState>;

    /// Returns one page of the locks in use whose names are known.
    async fn list(&self, prefix: &str, page: Page) -> Result<ListPage>;

    /// Checks the server.
    async fn diagnose(&self) -> Vec<Finding>;

    /// Returns where a lock is, for use with the server's own tools.
    async fn locate(&self, name: &LockName) -> Vec<Finding>;

    /// Removes what sessions that have ended have stored, and returns how many there were.
    async fn sweep(&self) -> Result<u64>;

    /// Closes the connections that are not sessions of attempts.
    async fn close(&self);
}
