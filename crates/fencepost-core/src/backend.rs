//! What a storage system must do: [`Backend`], the [`Op`]s it executes, the [`Reply`]s it gives, the [`Wakeup`]s it
//! pushes.
//!
//! A backend executes each operation of a batch once. It may reconnect, follow redirections, split a batch and repeat a
//! request that is known to have had no effect, within [`crate::request_timeout`]; and it may keep a session or a watch alive
//! in the background. It never repeats a request whose outcome is unknown, never keeps what the engine has not renewed for a
//! ttl, never decides that a lock is lost because time has passed, and never logs: the engine does that, the same way for
//! every storage.

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

/// A storage system that keeps locks.
///
/// Each promise below is checked by a behaviour of the test kit, which is named after it in brackets.
#[async_trait]
pub trait Backend: Send + Sync + 'static {
    /// What this storage is and what it can do. Constant for the life of the backend.
    fn info(&self) -> BackendInfo;

    /// Executes the operations as one flight; answers come in the same order, one per operation.
    ///
    /// # Contract
    /// * Each operation is atomic, and takes effect at most once per send. An operation that fails does not keep the
    ///   others of its flight from succeeding. (`batching`)
    /// * Expiry is judged by the storage's time only. (`expiry`)
    /// * A dropped future may or may not have had its effect. (`cancellation`)
    /// * The engine never has two acquires, checks, leaves or releases of one owner in flight, unless the client closes; and it
    ///   drops the future before it sends such an operation again. Renewals may be in flight beside them.
    /// * An error of kind `Unreachable` means that nothing took effect; if that is not certain the kind is
    ///   `OutcomeUnknown`. (`failure`)
    async fn execute(&self, ops: Vec<Op>) -> Vec<Result<Reply>>;

    /// What the storage pushes to this client. Called once, on the client's thread.
    ///
    /// # Contract
    /// * Pushes may be lost or repeated: a ticket's heartbeat finds out all the same. (`waiting`)
    /// * A storage that was set back may push to a ticket that this client has given up. The client then gives back what
    ///   the push names. (`a_grant_that_the_client_does_not_know_is_given_back`)
    fn wakeups(&self) -> BoxStream<'static, Wakeup>;

    /// Who holds the lock and who waits for it.
    async fn inspect(&self, name: &LockName) -> Result<LockState>;

    /// The locks that are held, waited for or have a cell and whose name begins with `prefix`, in the order of their
    /// names, a page at a time.
    async fn list(&self, prefix: &str, page: Page) -> Result<ListPage>;

    /// Looks at itself, for people who want to know whether locks are safe here: version, durability, rights, clocks. It
    /// only reads.
    ///
    /// # Contract
    /// What cannot be checked is a finding that says so ([`Finding::not_checked`]), never a failure. No finding shows a
    /// secret, and what is checked keeps its name from one release to the next.
    /// (`an_examination_finds_no_problem_and_changes_nothing`)
    async fn diagnose(&self) -> Vec<Finding> {
        Vec::new()
    }

    /// Returns what a program should log when it connects: of [`Backend::diagnose`], what is not fine and quickly found out.
    /// Called only if there is a subscriber.
    ///
    /// # Contract
    /// That of [`Backend::diagnose`].
    async fn warnings(&self) -> Vec<Finding> {
        Finding::concerns(self.diagnose().await)
    }

    /// Where a lock lives, for people who want to find it with the storage's own tools (the file, the exact keys), and
    /// whether something else lies there. It only reads.
    ///
    /// # Contract
    /// That of [`Backend::diagnose`].
    async fn locate(&self, name: &LockName) -> Vec<Finding> {
        let _ = name;
        Vec::new()
    }

    /// Returns, and forgets, what was noticed about a lock while it was taken or waited for and its user should know: something
    /// there that ours and others may not both wait for.
    ///
    /// # Contract
    /// It asks the storage nothing and does not block. A finding is never fine, and each is returned once.
    fn remarks(&self, name: &LockName) -> Vec<Finding> {
        let _ = name;
        Vec::new()
    }

    /// Lets go of connections, threads and files. Nothing is executed afterwards.
    async fn close(&self);
}

/// What a backend is and what it can do.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct BackendInfo {
    /// The URL scheme: `sqlite`.
    pub scheme: &'static str,
    /// Where the locks live, without any secret: `sqlite:/var/lib/jobs.db`.
    pub location: String,
    /// How far a lock of this storage reaches.
    pub scope: Scope,
    /// The life of the storage within which tokens are ordered.
    pub storage_id: StorageId,
    /// The shortest ttl it can keep.
    pub min_ttl: Duration,
    /// The longest ttl it can keep.
    pub max_ttl: Duration,
    /// How many flights may be under way at once.
    pub flights: usize,
    /// How many operations one flight may carry.
    pub batch: usize,
    /// Returns whether two operations of different owners that name a common lock may leave in the same flight, the first before
    /// the second; what may not leaves in a later flight, in order. Two operations of one owner never share a flight then.
    /// `None` if the backend executes the operations of a flight one after the other, so that everything may share.
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
            flights: 1,
            batch: 128,
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

/// How far a lock reaches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Scope {
    /// Between the tasks and threads of one process.
    Process,
    /// Between the processes of one host.
    Host,
    /// Between all hosts that reach the storage.
    Fleet,
}

/// One operation. All operations of an attempt come from the client that made it.
#[derive(Clone, Debug)]
pub enum Op {
    /// Takes the locks if they are free and nobody waits for them; joins the line otherwise, if told to.
    ///
    /// Answers [`Reply::Granted`], [`Reply::Waiting`] or [`Reply::Busy`]. For an owner that holds already it renews
    /// and answers `Granted` with the same token, for one that waits already it is a [`Op::Check`]: a resend is
    /// harmless. For an owner that has left it answers `Busy`. (`acquire_is_idempotent`)
    Acquire {
        /// Who wants what.
        attempt: Arc<Attempt>,
        /// Whether to wait in line.
        on_busy: OnBusy,
    },
    /// The heartbeat of a ticket, and its claim: any call that finds the lock free gives it to the first in line.
    ///
    /// Answers [`Reply::Waiting`], [`Reply::Granted`] (and renews, so that the grant counts from this call) or
    /// [`Reply::NoTicket`].
    Check(Arc<Attempt>),
    /// Leaves the line, or defeats an acquire that may still arrive.
    ///
    /// Answers [`Reply::Left`], or [`Reply::AlreadyGranted`] and changes nothing. If the owner is unknown it is
    /// remembered for a ttl, so that a late [`Op::Acquire`] of this owner does nothing. (`late_acquire_is_defeated`)
    Leave(Arc<Attempt>),
    /// Extends the lease to its full ttl from now. Answers [`Reply::Renewed`] or [`Reply::NotHeld`]; it never revives
    /// a lease that has ended. (`expired_lease_is_not_revived`)
    Renew(Grant),
    /// Gives the locks back and hands them to the first in line, in one step. Answers [`Reply::Released`] or
    /// [`Reply::NotHeld`], and touches nobody else's grant. (`stale_owner_cannot_release`)
    Release(Grant),
    /// Reads the lock's cell. Answers [`Reply::Cell`].
    ReadCell(LockName),
    /// Writes the lock's cell if the grant is live. Answers [`Reply::Written`] or [`Reply::NotHeld`].
    WriteCell {
        /// The proof of holding.
        grant: Grant,
        /// Which of the grant's names.
        name: LockName,
        /// What to write.
        bytes: Arc<[u8]>,
        /// How long it stays.
        keep: Keep,
    },
    /// Takes the lock from the holder with this token, and hands it to the first in line. Answers [`Reply::Released`]
    /// or [`Reply::NotHeld`]. (`break_is_refused_when_the_token_moved_on`)
    Break {
        /// The lock.
        name: LockName,
        /// The holder, as seen in [`LockState`].
        token: FencingToken,
    },
}

/// Whether an attempt waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OnBusy {
    /// Now or never.
    Return,
    /// Join the line.
    Wait,
}

/// The answer to an [`Op`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reply {
    /// The locks are held.
    Granted(Award),
    /// Somebody else holds a lock or waits for it, and the attempt was not to wait.
    Busy,
    /// The attempt waits in line.
    Waiting {
        /// When the leases of all that stand before it will have ended, should nobody renew them: worth a
        /// [`Op::Check`] then.
        check_after: Duration,
    },
    /// The storage knows no such ticket: its lease ended.
    NoTicket,
    /// The line was left.
    Left,
    /// The line could not be left: the lock had been granted, and is held.
    AlreadyGranted(Award),
    /// The lease runs for this long from now.
    Renewed {
        /// The ttl really given.
        ttl: Duration,
    },
    /// The lock was given back.
    Released,
    /// This owner does not hold the lock.
    NotHeld,
    /// The cell, if there is one.
    Cell(Option<Cell>),
    /// The cell was written.
    Written,
}

/// What a storage pushes.
#[derive(Clone, Debug)]
pub enum Wakeup {
    /// The ticket was granted.
    Granted {
        /// The ticket.
        attempt: Arc<Attempt>,
        /// What it was awarded.
        award: Award,
    },
    /// The lock is free for this ticket, which must take it by a check. Until then the lock is idle.
    Offered {
        /// The ticket.
        attempt: Arc<Attempt>,
    },
    /// It may be this ticket's turn: check.
    Check {
        /// The ticket's owner.
        owner: Owner,
    },
    /// A grant is gone.
    Lost {
        /// The grant's owner.
        owner: Owner,
        /// Why.
        reason: LostReason,
    },
    /// Pushes may have been lost: renew and check everything.
    CheckAll,
}

/// How long a cell stays.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Keep {
    /// Until the grant that wrote it ends.
    WhileHeld,
    /// For this long after it was written.
    For(Duration),
    /// Until it is overwritten.
    Always,
}

/// A small value that lives with the lock. Only the current holder may write it, and the storage checks that.
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

/// A lock as it is now.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct LockState {
    /// The lock.
    pub name: LockName,
    /// Who holds it; more than one in shared and counting modes.
    pub holders: Vec<HolderState>,
    /// The first [`LockState::MAX_WAITERS`] waiters, in the order of the queue.
    pub waiters: Vec<WaiterState>,
    /// The length of the queue, listed or not.
    pub waiter_count: usize,
    /// The cell, if there is one.
    pub cell: Option<Cell>,
}

impl LockState {
    /// How many waiters are listed at most.
    pub const MAX_WAITERS: usize = 100;

    /// Returns the state of a lock that is not in use.
    pub fn new(name: LockName) -> Self {
        Self { name, holders: Vec::new(), waiters: Vec::new(), waiter_count: 0, cell: None }
    }

    /// Whether nobody holds it, nobody waits for it and it has no cell.
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
    /// How it is held.
    pub mode: Mode,
    /// Who holds it, for people.
    pub label: Arc<str>,
    /// More about it, for people.
    pub meta: Arc<[(String, String)]>,
    /// The length of the lease, or [`HolderState::NO_EXPIRY`]; `None` if it is not known.
    pub ttl: Option<Duration>,
    /// How much of the lease is left, or [`HolderState::NO_EXPIRY`]; `None` if it is not known.
    pub expires_in: Option<Duration>,
    /// How long the lock has been held, by the wall clock: for display only. `None` if the backend does not record it.
    pub held_for: Option<Duration>,
}

impl HolderState {
    /// The length and the rest of a lease that never ends. Other libraries that share a storage can hold a lock so.
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
    /// How it wants the lock.
    pub mode: Mode,
    /// Who waits, for people.
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

/// Which part of a list.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Page {
    /// Names after this one; the first page if none.
    pub after: Option<LockName>,
    /// How many at most.
    pub limit: usize,
}

impl Page {
    /// Returns the first page, of up to `limit` locks.
    pub fn new(limit: usize) -> Self {
        Self { after: None, limit }
    }

    /// Continues after this name, usually [`ListPage::next`].
    #[must_use]
    pub fn after(mut self, name: impl Into<Option<LockName>>) -> Self {
        self.after = name.into();
        self
    }
}

/// A part of a list.
#[derive(Clone, Debug)]
pub struct ListPage {
    /// The locks, in the order of their names.
    pub locks: Vec<LockState>,
    /// Where the next page begins, if there is one.
    pub next: Option<LockName>,
}
