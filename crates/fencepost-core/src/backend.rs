//! The contract of a backend: [`Backend`], the [`Op`]s it executes, the [`Reply`]s it returns, the [`Wakeup`]s it pushes.
//!
//! A backend executes each operation of a batch once. It may reconnect, follow redirections, split a batch and retry a request
//! that is known to have had no effect, within [`crate::request_timeout`]; and it may keep a session or a watch alive in the
//! background. It never retries a request whose outcome is unknown, never keeps a lease that the engine has not renewed for a
//! ttl, never decides that a lock is lost because time has passed, and never logs: the engine does that, the same way for every
//! backend.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use futures_util::stream::BoxStream;

use crate::duration_text::duration_text;
use crate::error::{Error, ErrorKind, Result};
use crate::finding::Finding;
use crate::grant::{Attempt, Award, Grant, LostReason, Mode};
use crate::name::LockName;
use crate::token::{FencingToken, Owner, StorageId};

/// A system that stores locks.
///
/// Each guarantee below is checked by a behaviour of the test kit, named in brackets.
#[async_trait]
pub trait Backend: Send + Sync + 'static {
    /// Returns what this backend is and what it can do. Constant for the life of the backend.
    fn info(&self) -> BackendInfo;

    /// Executes the operations as one flight; returns one reply per operation, in the same order.
    ///
    /// # Contract
    /// * Each operation is atomic, and applied at most once per send. A failed operation does not make the others of its flight
    ///   fail. (`batching`)
    /// * Expiry is decided by the backend's clock only. (`expiry`)
    /// * The operations of a dropped future may or may not have been applied. (`cancellation`)
    /// * The engine never has two acquires, checks, leaves or releases of one owner in flight, unless the client closes; and it
    ///   drops the future before it sends such an operation again. Renewals may be in flight beside them.
    /// * An error of kind `Unreachable` means that nothing was applied; if that is not certain the kind is `OutcomeUnknown`.
    ///   (`failure`)
    async fn execute(&self, ops: Vec<Op>) -> Vec<Result<Reply>>;

    /// Returns the pushes to this client. Called once, on the client's thread.
    ///
    /// # Contract
    /// * Pushes may be lost or repeated: the checks of a ticket detect a grant without them. (`waiting`)
    /// * A backend that was set back, for example restored from a backup, may push to a ticket that this client has given up. The
    ///   client then releases the grant. (`admin`)
    fn wakeups(&self) -> BoxStream<'static, Wakeup>;

    /// Returns the holders and waiters of a lock.
    async fn inspect(&self, name: &LockName) -> Result<LockState>;

    /// Returns one page of the locks with holders, waiters or a cell whose names begin with `prefix`, sorted by name.
    async fn list(&self, prefix: &str, page: Page) -> Result<ListPage>;

    /// Diagnoses whether locks are safe on this backend: version, durability, rights, clocks. It only reads.
    ///
    /// # Contract
    /// What cannot be checked is a finding that says so ([`Finding::not_checked`]), never a failure. No finding shows a
    /// secret, and what is checked keeps its name from one release to the next.
    /// (`a_diagnosis_finds_no_problem_and_changes_nothing`)
    async fn diagnose(&self) -> Vec<Finding> {
        Vec::new()
    }

    /// Returns the findings to log when a program connects: those of [`Backend::diagnose`] that are not ok, as far as they are cheap to find. Called
    /// only if there is a subscriber.
    ///
    /// # Contract
    /// That of [`Backend::diagnose`].
    async fn warnings(&self) -> Vec<Finding> {
        Finding::concerns(self.diagnose().await)
    }

    /// Returns where a lock is stored, for use with the server's own tools: the file or the exact keys, and any foreign data
    /// there. It only reads.
    ///
    /// # Contract
    /// That of [`Backend::diagnose`].
    async fn locate(&self, name: &LockName) -> Vec<Finding> {
        let _ = name;
        Vec::new()
    }

    /// Takes the findings about a lock that were noticed while it was acquired or waited for: a foreign client that may not
    /// respect it.
    ///
    /// # Contract
    /// It does no I/O and does not block. No finding is ok, and each is returned once.
    fn remarks(&self, name: &LockName) -> Vec<Finding> {
        let _ = name;
        Vec::new()
    }

    /// Removes what has expired and what is no longer used, and returns how many names are gone; `None` if nothing
    /// accumulates, because the backend itself removes it.
    ///
    /// # Contract
    /// Nothing that is held, waited for or kept is removed, and no operation on it is delayed for long.
    async fn sweep(&self) -> Result<Option<u64>> {
        Ok(None)
    }

    /// Closes connections, threads and files. Nothing is executed afterwards.
    async fn close(&self);
}

/// What a backend is and what it can do.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct BackendInfo {
    /// The URL scheme: `sqlite`.
    pub scheme: &'static str,
    /// Where the locks are stored, without any secret: `sqlite:/var/lib/jobs.db`.
    pub location: String,
    /// The scope of its locks.
    pub scope: Scope,
    /// The id within which tokens are ordered.
    pub storage_id: StorageId,
    /// The shortest ttl it can keep.
    pub min_ttl: Duration,
    /// The longest ttl it can keep.
    pub max_ttl: Duration,
    /// What its locks do not guarantee although those in Fencepost's own formats do, each as a sentence: about the order of
    /// waiters, tokens, or when a lock ends. Locks that are shared with other programs have such exceptions.
    pub exceptions: &'static [&'static str],
    /// The maximum number of concurrent flights.
    pub max_flights: usize,
    /// The maximum number of operations of one flight.
    pub max_batch: usize,
    /// Returns whether two operations of different owners with a common lock may share a flight, the first before the second; if
    /// not, the second is sent in a later flight, in order. Two operations of one owner never share a flight then. `None` if the
    /// backend executes the operations of a flight one after the other, so that all may share.
    pub may_share: Option<fn(&Op, &Op) -> bool>,
}

impl BackendInfo {
    /// Describes a backend that keeps ttls from 1 s to 24 h and executes batches of 128 operations, one flight at a time.
    pub fn new(
        scheme: &'static str,
        location: impl Into<String>,
        scope: Scope,
        storage_id: StorageId,
    ) -> Self {
        Self {
            scheme,
            location: location.into(),
            scope,
            storage_id,
            min_ttl: Duration::from_secs(1),
            max_ttl: Duration::from_secs(24 * 3600),
            exceptions: &[],
            max_flights: 1,
            max_batch: 128,
            may_share: None,
        }
    }

    /// Checks that the backend can keep leases of this length.
    ///
    /// # Errors
    /// [`ErrorKind::BadConfig`] with the range.
    pub fn check_ttl(&self, ttl: Duration) -> Result<()> {
        if (self.min_ttl..=self.max_ttl).contains(&ttl) {
            return Ok(());
        }
        let [ttl, min, max] = [ttl, self.min_ttl, self.max_ttl].map(duration_text);
        let text = format!("ttl {ttl} is out of range for {}: from {min} to {max}", self.scheme);
        Err(Error::new(ErrorKind::BadConfig, text))
    }
}

/// The clients among which a lock excludes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Scope {
    /// The tasks and threads of one process.
    Process,
    /// The processes of one host.
    Host,
    /// All hosts that reach the server.
    Fleet,
}

/// One operation. All operations of an attempt are sent by the client that created it.
#[derive(Clone, Debug)]
pub enum Op {
    /// Acquires the locks if they are free and have no waiters; otherwise joins the queue, if requested.
    ///
    /// Returns [`Reply::Granted`], [`Reply::Waiting`] or [`Reply::Busy`]. For an owner that holds the locks it renews and returns
    /// `Granted` with the same token, for one in the queue it is an [`Op::Check`]: a resend is harmless. For an owner with a
    /// tombstone it returns `Busy`. (`acquire_is_idempotent`)
    Acquire {
        /// The attempt.
        attempt: Arc<Attempt>,
        /// Whether to join the queue.
        on_busy: OnBusy,
    },
    /// Checks a ticket: extends its lease, and grants it the lock if that is free and it is first.
    ///
    /// Returns [`Reply::Waiting`], [`Reply::Granted`] (and renews, so that the lease counts from this call) or
    /// [`Reply::NoTicket`].
    Check(Arc<Attempt>),
    /// Leaves the queue, or writes a tombstone against an acquire that may still arrive.
    ///
    /// Returns [`Reply::Left`], or [`Reply::AlreadyGranted`] and changes nothing. If the owner is unknown its tombstone is kept
    /// for a ttl, so that a late [`Op::Acquire`] of this owner does nothing. (`late_acquire_is_defeated`)
    Leave(Arc<Attempt>),
    /// Extends the lease to its full ttl from now. Returns [`Reply::Renewed`] or [`Reply::NotHeld`]; it never revives an expired
    /// lease. (`expired_lease_is_not_revived`)
    Renew(Grant),
    /// Releases the locks and grants them to the first waiter, in one step. Returns [`Reply::Released`] or [`Reply::NotHeld`], and
    /// changes no other owner's grant. (`stale_owner_cannot_release`)
    Release(Grant),
    /// Reads the lock's cell. Returns [`Reply::Cell`].
    ReadCell(LockName),
    /// Writes the lock's cell if the grant is live. Returns [`Reply::Written`] or [`Reply::NotHeld`].
    WriteCell {
        /// The grant of the holder.
        grant: Grant,
        /// Which of the grant's names.
        name: LockName,
        /// The value.
        bytes: Arc<[u8]>,
        /// How long to keep it.
        keep: Keep,
    },
    /// Removes the holder with this token, and grants the lock to the first waiter. Returns [`Reply::Released`] or
    /// [`Reply::NotHeld`]. (`break_is_refused_when_the_token_moved_on`)
    Break {
        /// The lock.
        name: LockName,
        /// The token of the holder, as in [`LockState`].
        token: FencingToken,
    },
}

/// What an attempt does if the lock is not free.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OnBusy {
    /// Returns [`Reply::Busy`].
    Return,
    /// Joins the queue.
    Wait,
}

/// The reply to an [`Op`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reply {
    /// The locks are held.
    Granted(Award),
    /// Another owner holds a lock or waits for it, and the attempt does not wait.
    Busy,
    /// The attempt is in the queue.
    Waiting {
        /// The time after which an [`Op::Check`] is worthwhile without a push: by then the lock may be free if no lease ahead is
        /// renewed.
        check_after: Duration,
    },
    /// There is no such ticket; its lease may have expired.
    NoTicket,
    /// The attempt has left the queue.
    Left,
    /// The attempt could not leave the queue: the lock had been granted, and is held.
    AlreadyGranted(Award),
    /// The lease was extended.
    Renewed {
        /// Its length from now.
        ttl: Duration,
    },
    /// The lock was released.
    Released,
    /// This owner does not hold the lock.
    NotHeld,
    /// The cell, if there is one.
    Cell(Option<Cell>),
    /// The cell was written.
    Written,
}

/// A push of a backend.
#[derive(Clone, Debug)]
pub enum Wakeup {
    /// The ticket was granted.
    Granted {
        /// The ticket.
        attempt: Arc<Attempt>,
        /// Its award.
        award: Award,
    },
    /// The lock is free for this ticket, which acquires it by a check. Until then the lock is idle.
    Offered {
        /// The ticket.
        attempt: Arc<Attempt>,
    },
    /// A check of this ticket is worthwhile: it may be first.
    Check {
        /// The ticket's owner.
        owner: Owner,
    },
    /// A grant was lost.
    Lost {
        /// The grant's owner.
        owner: Owner,
        /// The reason.
        reason: LostReason,
    },
    /// Pushes may have been lost: renew and check everything.
    CheckAll,
}

/// How long a cell is kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Keep {
    /// Until the grant that wrote it ends.
    WhileHeld,
    /// For this long after it was written.
    For(Duration),
    /// Until it is overwritten.
    Always,
}

/// A small value that is stored with the lock. Only the current holder can write it; the backend checks that.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cell {
    /// The token of the grant that wrote it.
    pub token: FencingToken,
    /// The value.
    pub bytes: Arc<[u8]>,
}

impl Cell {
    /// The largest value, in bytes.
    pub const MAX_BYTES: usize = 64 * 1024;
}

/// The state of a lock.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct LockState {
    /// The lock.
    pub name: LockName,
    /// Its holders; more than one if it is shared or a semaphore.
    pub holders: Vec<HolderState>,
    /// The first [`LockState::MAX_WAITERS`] waiters, in the order of the queue.
    pub waiters: Vec<WaiterState>,
    /// The length of the queue, listed or not.
    pub waiter_count: usize,
    /// The cell, if there is one.
    pub cell: Option<Cell>,
}

impl LockState {
    /// The number of waiters that are listed at most.
    pub const MAX_WAITERS: usize = 100;

    /// Returns the state of a lock that is not in use.
    pub fn new(name: LockName) -> Self {
        Self { name, holders: Vec::new(), waiters: Vec::new(), waiter_count: 0, cell: None }
    }

    /// Returns whether it has no holder, no waiter and no cell.
    pub fn is_idle(&self) -> bool {
        self.holders.is_empty() && self.waiter_count == 0 && self.cell.is_none()
    }
}

/// One holder of a lock.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct HolderState {
    /// The grant's token; `None` for a holder that is not a Fencepost client and has none.
    pub token: Option<FencingToken>,
    /// The mode.
    pub mode: Mode,
    /// The label of the holder.
    pub label: Arc<str>,
    /// Keys and values that are shown with it.
    pub meta: Arc<[(String, String)]>,
    /// The length of the lease, or [`HolderState::NO_EXPIRY`]; `None` if it is not known.
    pub ttl: Option<Duration>,
    /// How much of the lease is left, or [`HolderState::NO_EXPIRY`]; `None` if it is not known.
    pub expires_in: Option<Duration>,
    /// How long the lock has been held, by the wall clock: for display only. `None` if the backend does not record it.
    pub held_for: Option<Duration>,
}

impl HolderState {
    /// The `ttl` and `expires_in` of a lease that never ends. Foreign clients can hold a lock without expiry.
    pub const NO_EXPIRY: Duration = Duration::MAX;

    /// Returns a holder of which nothing else is known.
    pub fn new(mode: Mode, label: impl Into<Arc<str>>) -> Self {
        let (label, meta) = (label.into(), [].into());
        Self { token: None, mode, label, meta, ttl: None, expires_in: None, held_for: None }
    }

    /// Returns whether this is the same holder as `other`, seen at another time. Holders without a token are told apart by
    /// their labels.
    pub(crate) fn is_same(&self, other: &Self) -> bool {
        self.token == other.token && (self.token.is_some() || self.label == other.label)
    }

    /// Returns how much of the lease is left after this time, at least.
    pub(crate) fn expires_in_after(&self, elapsed: Duration) -> Duration {
        match self.expires_in {
            Some(Self::NO_EXPIRY) => Self::NO_EXPIRY,
            left => left.unwrap_or_default().saturating_sub(elapsed),
        }
    }
}

/// One waiter of a lock.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct WaiterState {
    /// The mode.
    pub mode: Mode,
    /// The label of the waiter.
    pub label: Arc<str>,
    /// How long it has been waiting, by the wall clock: for display only. `None` if the backend does not record it.
    pub waiting_for: Option<Duration>,
}

impl WaiterState {
    /// Returns a waiter of which nothing else is known.
    pub fn new(mode: Mode, label: impl Into<Arc<str>>) -> Self {
        Self { mode, label: label.into(), waiting_for: None }
    }
}

/// Which page of a list.
#[derive(Clone, Debug)]
#[non_exhaustive]
#[must_use = "a page does nothing until it is listed"]
pub struct Page {
    /// The page begins after this name; the first page if `None`.
    pub after: Option<LockName>,
    /// The number of locks at most.
    pub limit: usize,
}

impl Page {
    /// Returns the first page, of up to `limit` locks.
    pub fn new(limit: usize) -> Self {
        Self { after: None, limit }
    }

    /// Continues after this name, usually [`ListPage::next`].
    pub fn after(mut self, name: impl Into<Option<LockName>>) -> Self {
        self.after = name.into();
        self
    }
}

/// One page of a list.
#[derive(Clone, Debug)]
pub struct ListPage {
    /// The locks, sorted by name.
    pub locks: Vec<LockState>,
    /// Where the next page begins, if there is one.
    pub next: Option<LockName>,
}
