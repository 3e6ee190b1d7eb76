//! The contract of a database: the statements about the rows of a table.

use std::time::Duration;

use async_trait::async_trait;
use fencepost_core::{Finding, LockName, Owner, Result, StorageId};

use super::owner::{MarkPattern, OwnerFormat};

/// What is known about the table.
#[derive(Clone, Debug)]
pub struct TableInfo {
    /// The URL scheme.
    pub scheme: &'static str,
    /// The URL without secrets.
    pub location: String,
    /// The option of the URL that selects such locks: `dialect=shedlock`.
    pub option: &'static str,
    /// Derived from the identity of the table.
    pub storage_id: StorageId,
    /// The longest name that its column stores, in characters.
    pub max_name: Option<usize>,
    /// The format of the owner column.
    pub owner: OwnerFormat,
    /// Whether the table has a column with the end of the lease.
    pub has_expiry: bool,
    /// The shortest ttl that the column can keep.
    pub min_ttl: Duration,
}

/// An attempt to acquire one lock.
#[derive(Clone, Copy, Debug)]
pub struct AcquireRequest<'a> {
    /// The lock.
    pub name: &'a LockName,
    /// The attempt.
    pub owner: Owner,
    /// The holder's label.
    pub label: &'a str,
    /// The length of the lease.
    pub ttl: Duration,
    /// The time of the server, in microseconds since 1970, after which it does nothing.
    pub not_after: u64,
}

/// The result of an attempt.
#[derive(Clone, Debug, Default)]
pub struct AcquireResult {
    /// The owner column of the row, if the lock was acquired, or was held by this attempt and its lease is extended.
    pub granted: Option<String>,
    /// The holder, if another one was found. There may be one although there is none here: the row may have changed meanwhile,
    /// or a transaction may have locked it.
    pub holder: Option<HeldRow>,
    /// The time of the server, in microseconds since 1970, before it replied; `None` if it did not say.
    pub server_time: Option<u64>,
    /// It arrived after `not_after`.
    pub is_late: bool,
}

/// The row of a lock that is held.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HeldRow {
    /// The lock, as stored.
    pub name: String,
    /// The owner column; empty if it is null.
    pub owner: String,
    /// How much of the lease is left; `None` if it has no end.
    pub left: Option<Duration>,
    /// How long the lock has been held, if the table says so.
    pub held_for: Option<Duration>,
}

/// The rows of a table in a database. Each call is one statement in a transaction of its own, executed at most once.
///
/// A call that could not lock its row in time has an error of kind `Unreachable`, as nothing was changed.
#[async_trait]
pub trait LockRows: Send + Sync + 'static {
    /// Returns what is known about the table.
    fn info(&self) -> &TableInfo;

    /// Acquires the lock if it is free: there is no row, or its lease has ended. Of an attempt that holds it already, extends
    /// the lease and keeps the token.
    async fn acquire(&self, request: AcquireRequest<'_>) -> Result<AcquireResult>;

    /// Extends a lease that has not ended. Returns whether there was one.
    async fn renew(&self, name: &LockName, mark: &MarkPattern, ttl: Duration) -> Result<bool>;

    /// Ends a lease, as the other program does. Returns whether it had not ended before.
    async fn release(&self, name: &LockName, mark: &MarkPattern) -> Result<bool>;

    /// Reads the row of a lock, if it is held.
    async fn find(&self, name: &LockName) -> Result<Option<HeldRow>>;

    /// Reads the rows of locks that are held, sorted by name: at most `limit` of those that begin with `prefix`, after `after`.
    async fn list(&self, prefix: &str, after: &str, limit: usize) -> Result<Vec<HeldRow>>;

    /// Checks the database and the table.
    async fn diagnose(&self) -> Vec<Finding>;

    /// Returns the statements that show a lock with the server's own tools.
    async fn locate(&self, name: &LockName) -> Vec<Finding>;

    /// Closes the connections.
    async fn close(&self);
}
