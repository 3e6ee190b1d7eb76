//! What the user holds: the guard of a grant.

use std::fmt;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use tokio::sync::Notify;

use crate::answer::{Answer, answer};
use crate::backend::{Cell, Keep, Op, Reply};
use crate::clock::Moment;
use crate::error::{Error, ErrorKind, Result};
use crate::grant::{Grant, LostReason, Want};
use crate::handle::{Command, Handle};
use crate::layers::{Holding, Renewal};
use crate::machine::Input;
use crate::name::LockName;
use crate::token::{FencingToken, StorageId};

/// What the engine and the guards know together about one grant.
pub(crate) struct Hold {
    pub(crate) grant: Grant,
    valid_until: AtomicU64,
    ends_by: Moment,
    lost: OnceLock<LostReason>,
    changed: Notify,
    /// How many guards share the grant.
    shares: AtomicUsize,
    pub(crate) holding: Holding,
}

impl Hold {
    pub(crate) fn new(grant: Grant, valid_until: Moment, ends_by: Moment, holding: Holding) -> Self {
        let valid_until = AtomicU64::new(valid_until.min(ends_by).as_nanos());
        let (lost, changed, shares) = (OnceLock::new(), Notify::new(), AtomicUsize::new(1));
        Self { grant, valid_until, ends_by, lost, changed, shares, holding }
    }

    /// Sets until when it is valid now; false if it is lost, which is for ever.
    pub(crate) fn extend(&self, valid_until: Moment, now: Moment) -> bool {
        let margin = self.valid_until().since(now);
        self.valid_until.store(valid_until.as_nanos(), Ordering::Release);
        self.changed.notify_waiters();
        let kept = self.lost.get().is_none();
        if kept {
            self.holding.renewal(Renewal::Done { margin });
        }
        kept
    }

    /// Marks the grant as lost, unless it is already, and returns why.
    pub(crate) fn lose(&self, reason: LostReason) -> LostReason {
        let first = self.lost.set(reason).is_ok();
        self.changed.notify_waiters();
        if first {
            self.holding.ended(reason);
        }
        self.lost.get().copied().unwrap_or(reason)
    }

    fn valid_until(&self) -> Moment {
        Moment::from_nanos(self.valid_until.load(Ordering::Acquire))
    }
}

/// A lock that is held. It is renewed by itself and released when it is dropped.
///
/// Holding a guard means: at the time of [`Guard::is_valid`] nobody else held the lock, if clocks run at the same
/// speed. A process that is stopped between that check and its effect can still come too late; send
/// [`Guard::token`] along with the effect, and let the resource refuse a smaller one than it has seen.
///
/// ```no_run
/// # async fn example(client: fencepost_core::Client) -> fencepost_core::Result<()> {
/// let guard = client.lock("invoice/42").acquire().await?;
/// println!("holding it with token {}", guard.token());
/// guard.release().await?;
/// # Ok(())
/// # }
/// ```
#[must_use = "the lock is released as soon as its guard is dropped"]
pub struct Guard {
    hold: Arc<Hold>,
    handle: Arc<Handle>,
    /// Its share of the grant is given up already.
    is_settled: bool,
}

impl Guard {
    pub(crate) fn new(hold: Arc<Hold>, handle: Arc<Handle>) -> Self {
        Self { hold, handle, is_settled: false }
    }

    /// Gives up this share, and releases the lock if it is the last. Returns whether it is.
    fn settle(&mut self, told: Option<Answer<()>>) -> Result<bool> {
        self.is_settled = true;
        if self.hold.shares.fetch_sub(1, Ordering::AcqRel) > 1 {
            return Ok(false);
        }
        let lost = match self.hold.lose(LostReason::Released) {
            LostReason::Released => None,
            earlier => Some(earlier),
        };
        let owner = self.hold.grant.attempt.owner;
        self.handle.submit(Command::Machine(Input::Release { owner, lost, told }))?;
        Ok(true)
    }

    /// The fencing token: larger for every later grant of this lock.
    pub fn token(&self) -> FencingToken {
        self.hold.grant.award.token
    }

    /// The storage within which tokens are ordered.
    pub fn storage_id(&self) -> StorageId {
        self.handle.info.storage_id
    }

    /// The name that is held; the first one if there are several.
    pub fn name(&self) -> &LockName {
        &self.wants()[0].name
    }

    /// Every name that is held: one, unless the guard came from [`crate::Client::lock_all`].
    pub fn names(&self) -> impl Iterator<Item = &LockName> {
        self.wants().iter().map(|want| &want.name)
    }

    fn wants(&self) -> &[Want] {
        self.hold.grant.held()
    }

    /// Who holds it, as others see it.
    pub fn label(&self) -> &str {
        &self.hold.grant.attempt.label
    }

    /// The length of the lease, as the storage gave it.
    pub fn ttl(&self) -> Duration {
        self.hold.grant.award.ttl
    }

    /// For how long the lock is certainly held, should no renewal succeed from now on. Zero if it is lost.
    pub fn remaining(&self) -> Duration {
        match self.hold.lost.get() {
            Some(_) => Duration::ZERO,
            None => self.hold.valid_until().since(self.handle.clock.now()),
        }
    }

    /// The moment at which [`Guard::remaining`] will be zero, should no renewal succeed from now on. Another process of
    /// this host can be told of it: the clock is the machine's.
    pub fn valid_until(&self) -> Moment {
        self.hold.valid_until()
    }

    /// Returns when a renewal has moved [`Guard::valid_until`] away from `known`, with the new moment.
    ///
    /// # Errors
    /// Why the lock was lost, if it is.
    ///
    /// # Cancel safety
    /// Dropping the future loses nothing; it may be called again.
    pub async fn renewed(&self, known: Moment) -> std::result::Result<Moment, LostReason> {
        loop {
            let changed = self.hold.changed.notified();
            tokio::pin!(changed);
            // Enlisted before the look, so that no change slips between.
            changed.as_mut().enable();
            if let Some(reason) = self.hold.lost.get() {
                return Err(*reason);
            }
            let valid_until = self.valid_until();
            if valid_until != known {
                return Ok(valid_until);
            }
            changed.await;
        }
    }

    /// Whether the lock is held now. A look at the clock, no I/O; once false it stays false.
    pub fn is_valid(&self) -> bool {
        if !self.remaining().is_zero() {
            return true;
        }
        // Whatever the engine is doing, what has been seen as ended stays ended.
        let held_too_long = self.handle.clock.now() >= self.hold.ends_by;
        self.hold.lose(if held_too_long { LostReason::MaxHold } else { LostReason::Expired });
        false
    }

    /// Returns when the lock is no longer held, and says why.
    ///
    /// # Cancel safety
    /// Dropping the future loses nothing; it may be called again.
    pub async fn lost(&self) -> LostReason {
        let mut known = self.valid_until();
        loop {
            match self.renewed(known).await {
                Ok(renewed) => known = renewed,
                Err(reason) => return reason,
            }
        }
    }

    /// Why the lock was lost, if it was.
    pub fn lost_reason(&self) -> Option<LostReason> {
        self.hold.lost.get().copied()
    }

    /// An error if the lock is no longer held.
    ///
    /// # Errors
    /// [`ErrorKind::Lost`] with the reason.
    pub fn check(&self) -> Result<()> {
        if self.is_valid() {
            return Ok(());
        }
        let reason = self.lost_reason().unwrap_or(LostReason::Expired);
        Err(Error::lost(&self.hold.grant.attempt.describe(), reason))
    }

    /// Hands the same grant to another task: the lock is released when the last of its guards goes.
    pub fn share(&self) -> Self {
        self.hold.shares.fetch_add(1, Ordering::Relaxed);
        Self { hold: self.hold.clone(), handle: self.handle.clone(), is_settled: false }
    }

    /// Writes the lock's cell, up to [`Cell::MAX_BYTES`]. The storage checks that the lock is still held.
    ///
    /// # Errors
    /// [`ErrorKind::Lost`] if it is not; [`ErrorKind::BadConfig`] if the value is too large.
    ///
    /// # Cancel safety
    /// If the future is dropped the cell may or may not have been written.
    pub async fn write_cell(&self, bytes: impl Into<Arc<[u8]>>, keep: Keep) -> Result<()> {
        let bytes = bytes.into();
        if bytes.len() > Cell::MAX_BYTES {
            let text = format!("a cell may have {} bytes, this value has {}", Cell::MAX_BYTES, bytes.len());
            return Err(Error::new(ErrorKind::BadConfig, text));
        }
        self.check()?;
        let grant = self.hold.grant.clone();
        let describe = grant.attempt.describe();
        let op = Op::WriteCell { grant, name: self.name().clone(), bytes, keep };
        match call(&self.handle, op).await? {
            Reply::Written => Ok(()),
            _ => Err(Error::lost(&describe, LostReason::NotHeld)),
        }
    }

    /// Reads the lock's cell.
    ///
    /// # Cancel safety
    /// Dropping the future loses nothing.
    pub async fn read_cell(&self) -> Result<Option<Cell>> {
        read_cell(&self.handle, self.name().clone()).await
    }

    /// Gives the lock back and waits until the storage has it. If the grant is shared, only this share is given up.
    ///
    /// # Errors
    /// [`ErrorKind::Lost`] if it was no longer held; [`ErrorKind::OutcomeUnknown`] or [`ErrorKind::Unreachable`] if the
    /// storage could not be asked before the lease ended by itself.
    ///
    /// # Cancel safety
    /// Dropping the future does not undo the release, which goes on in the background.
    pub async fn release(mut self) -> Result<()> {
        let (told, outcome) = answer();
        let outcome = match self.settle(Some(told)) {
            Ok(true) => outcome.await,
            Ok(false) => Ok(()),
            Err(error) => Err(error),
        };
        match (outcome, self.hold.lost.get()) {
            // The client was closed, or the time was over, before: it has been released then.
            (Err(error), Some(reason)) if error.kind() == ErrorKind::Closed => {
                let reason = if *reason == LostReason::Released { LostReason::Closed } else { *reason };
                Err(Error::lost(&self.hold.grant.attempt.describe(), reason))
            }
            (outcome, _) => outcome,
        }
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        if !self.is_settled {
            // A closed client has released everything already.
            let _ = self.settle(None);
        }
    }
}

impl fmt::Debug for Guard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Guard")
            .field("names", &self.names().collect::<Vec<_>>())
            .field("token", &self.token())
            .field("lost", &self.lost_reason())
            .finish_non_exhaustive()
    }
}

/// Sends one operation and waits for its answer.
pub(crate) async fn call(handle: &Handle, op: Op) -> Result<Reply> {
    let (answer, reply) = answer();
    handle.submit(Command::Call { op, answer })?;
    reply.await
}

pub(crate) async fn read_cell(handle: &Handle, name: LockName) -> Result<Option<Cell>> {
    match call(handle, Op::ReadCell(name)).await? {
        Reply::Cell(cell) => Ok(cell),
        _ => Ok(None),
    }
}
