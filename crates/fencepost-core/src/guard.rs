//! The guard of a grant.

use std::fmt;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use tokio::sync::Notify;

use crate::backend::{Cell, Keep, Op, Reply};
use crate::clock::Moment;
use crate::error::{Error, ErrorKind, Result};
use crate::grant::{Grant, LostReason, Want};
use crate::handle::{Command, Handle};
use crate::layers::{HoldObserver, Renewal};
use crate::machine::Input;
use crate::name::LockName;
use crate::response::{Responder, response};
use crate::token::{FencingToken, StorageId};

/// The state of a grant, shared by the engine and the guards.
pub(crate) struct GuardState {
    pub(crate) grant: Grant,
    valid_until: AtomicU64,
    hold_until: Moment,
    lost: OnceLock<LostReason>,
    changed: Notify,
    /// The number of guards that share the grant.
    shares: AtomicUsize,
    pub(crate) holding: HoldObserver,
}

impl GuardState {
    pub(crate) fn new(grant: Grant, valid_until: Moment, hold_until: Moment, holding: HoldObserver) -> Self {
        let valid_until = AtomicU64::new(valid_until.min(hold_until).as_nanos());
        let (lost, changed, shares) = (OnceLock::new(), Notify::new(), AtomicUsize::new(1));
        Self { grant, valid_until, hold_until, lost, changed, shares, holding }
    }

    /// Sets when it expires now; returns false if it is lost, which is final.
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

    /// Marks the grant as lost, unless it is already, and returns the reason.
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

/// A lock that is held. It is renewed automatically and released when the guard is dropped.
///
/// At the time of [`Guard::is_valid`] no other owner held the lock in an incompatible mode, as long as clocks differ in speed by
/// less than 1 %. A process that is stopped between that check and its effect can still act too late: send [`Guard::token`] along with the effect, and let the
/// resource reject a token that is smaller than one it has seen.
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
    state: Arc<GuardState>,
    handle: Arc<Handle>,
    /// The names relative to the client's namespace, if it has one.
    relative_names: Option<Arc<[LockName]>>,
    /// Its share of the grant has been given up.
    is_released: bool,
}

impl Guard {
    pub(crate) fn new(state: Arc<GuardState>, handle: Arc<Handle>) -> Self {
        let wants = state.grant.held().iter();
        let relative = |want: &Want| handle.defaults.relative(&want.name);
        let relative_names = handle.defaults.has_namespace().then(|| wants.map(relative).collect());
        Self { state, handle, relative_names, is_released: false }
    }

    /// Gives up this share, and releases the lock if it is the last one. Returns whether it is.
    fn release_share(&mut self, responder: Option<Responder<()>>) -> Result<bool> {
        self.is_released = true;
        if self.state.shares.fetch_sub(1, Ordering::AcqRel) > 1 {
            return Ok(false);
        }
        let lost = match self.state.lose(LostReason::Released) {
            LostReason::Released => None,
            earlier => Some(earlier),
        };
        let owner = self.state.grant.attempt.owner;
        self.handle.submit(Command::Machine(Input::Release { owner, lost, responder }))?;
        Ok(true)
    }

    /// Returns the fencing token: larger for every later grant of this lock.
    pub fn token(&self) -> FencingToken {
        self.state.grant.award.token
    }

    /// Returns the id within which tokens are ordered; see [`StorageId`].
    pub fn storage_id(&self) -> StorageId {
        self.handle.info.storage_id
    }

    /// Returns the name that is held; the first one if there are several.
    pub fn name(&self) -> &LockName {
        self.relative_names.as_ref().map_or(&self.wants()[0].name, |names| &names[0])
    }

    /// Returns the names that are held: one, unless the guard is of [`crate::Client::lock_all`].
    pub fn names(&self) -> impl Iterator<Item = &LockName> {
        let relative = self.relative_names.iter().flat_map(|names| names.iter());
        let full = self.wants().iter().map(|want| &want.name).filter(|_| self.relative_names.is_none());
        relative.chain(full)
    }

    fn wants(&self) -> &[Want] {
        self.state.grant.held()
    }

    /// Returns the label under which the holder is shown.
    pub fn label(&self) -> &str {
        &self.state.grant.attempt.label
    }

    /// Returns the length of the lease, as the backend granted it.
    pub fn ttl(&self) -> Duration {
        self.state.grant.award.ttl
    }

    /// Returns how long the lock stays held if no further renewal succeeds. Zero if it is lost.
    #[must_use]
    pub fn remaining(&self) -> Duration {
        match self.state.lost.get() {
            Some(_) => Duration::ZERO,
            None => self.state.valid_until().since(self.handle.clock.now()),
        }
    }

    /// Returns when [`Guard::remaining`] will be zero if no further renewal succeeds. The value is on the host's clock, so
    /// that other processes of this host can use it.
    pub fn valid_until(&self) -> Moment {
        self.state.valid_until()
    }

    /// Waits until a renewal has changed [`Guard::valid_until`] from `known`, and returns the new value.
    ///
    /// # Errors
    /// Why the lock was lost, if it is.
    ///
    /// # Cancel safety
    /// Dropping the future loses nothing; it may be called again.
    pub async fn renewed(&self, known: Moment) -> std::result::Result<Moment, LostReason> {
        loop {
            let changed = self.state.changed.notified();
            tokio::pin!(changed);
            // Registered before the state is read, so that no change is missed.
            changed.as_mut().enable();
            if let Some(reason) = self.state.lost.get() {
                return Err(*reason);
            }
            let valid_until = self.valid_until();
            if valid_until != known {
                return Ok(valid_until);
            }
            changed.await;
        }
    }

    /// Returns whether the lock is held now. Reads the clock, no I/O; once false it stays false.
    #[must_use]
    pub fn is_valid(&self) -> bool {
        if !self.remaining().is_zero() {
            return true;
        }
        // Independent of the engine: a grant that was seen as expired stays lost.
        let held_too_long = self.handle.clock.now() >= self.state.hold_until;
        self.state.lose(if held_too_long { LostReason::MaxHold } else { LostReason::Expired });
        false
    }

    /// Waits until the lock is no longer held, and returns the reason.
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

    /// Returns why the lock was lost, if it was.
    #[must_use]
    pub fn lost_reason(&self) -> Option<LostReason> {
        self.state.lost.get().copied()
    }

    /// Returns an error if the lock is no longer held.
    ///
    /// # Errors
    /// [`ErrorKind::Lost`] with the reason.
    pub fn check(&self) -> Result<()> {
        if self.is_valid() {
            return Ok(());
        }
        let reason = self.lost_reason().unwrap_or(LostReason::Expired);
        Err(Error::lost(&self.state.grant.attempt.describe(), reason))
    }

    /// Returns another guard of the same grant, for another task: the lock is released when the last one is dropped.
    pub fn share(&self) -> Self {
        self.state.shares.fetch_add(1, Ordering::Relaxed);
        Self {
            state: self.state.clone(),
            handle: self.handle.clone(),
            relative_names: self.relative_names.clone(),
            is_released: false,
        }
    }

    /// Writes the lock's cell, up to [`Cell::MAX_BYTES`]. The backend checks that the lock is still held.
    ///
    /// # Errors
    /// [`ErrorKind::Lost`] if it is not; [`ErrorKind::BadConfig`] if the value is too large.
    ///
    /// # Cancel safety
    /// If the future is dropped the cell may or may not have been written.
    pub async fn write_cell(&self, bytes: impl Into<Arc<[u8]>>, keep: Keep) -> Result<()> {
        let bytes = bytes.into();
        if bytes.len() > Cell::MAX_BYTES {
            let text =
                format!("a cell may have at most {} bytes, this value has {}", Cell::MAX_BYTES, bytes.len());
            return Err(Error::new(ErrorKind::BadConfig, text));
        }
        self.check()?;
        let grant = self.state.grant.clone();
        let describe = grant.attempt.describe();
        let op = Op::WriteCell { grant, name: self.wants()[0].name.clone(), bytes, keep };
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
        read_cell(&self.handle, self.wants()[0].name.clone()).await
    }

    /// Releases the lock and waits until the backend has confirmed it. If the grant is shared, only this share is given up.
    ///
    /// # Errors
    /// [`ErrorKind::Lost`] if it was no longer held; [`ErrorKind::OutcomeUnknown`] or [`ErrorKind::Unreachable`] if the
    /// backend did not confirm it before the lease expired.
    ///
    /// # Cancel safety
    /// Dropping the future does not undo the release, which continues in the background.
    pub async fn release(mut self) -> Result<()> {
        let (responder, outcome) = response();
        let outcome = match self.release_share(Some(responder)) {
            Ok(true) => outcome.await,
            Ok(false) => Ok(()),
            Err(error) => Err(error),
        };
        match (outcome, self.state.lost.get()) {
            // The client was closed, or `max_hold` reached, before: the lock has been released.
            (Err(error), Some(reason)) if error.kind() == ErrorKind::Closed => {
                let reason = if *reason == LostReason::Released { LostReason::Closed } else { *reason };
                Err(Error::lost(&self.state.grant.attempt.describe(), reason))
            }
            (outcome, _) => outcome,
        }
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        if !self.is_released {
            // A closed client has released everything.
            let _ = self.release_share(None);
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

/// Sends one operation and waits for its reply.
pub(crate) async fn call(handle: &Handle, op: Op) -> Result<Reply> {
    let (responder, reply) = response();
    handle.submit(Command::Call { op, responder })?;
    reply.await
}

pub(crate) async fn read_cell(handle: &Handle, name: LockName) -> Result<Option<Cell>> {
    match call(handle, Op::ReadCell(name)).await? {
        Reply::Cell(cell) => Ok(cell),
        _ => Ok(None),
    }
}
