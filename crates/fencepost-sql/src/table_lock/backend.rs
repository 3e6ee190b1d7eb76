//! The backend of one client for locks in a table of another program.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use fencepost_core::backend::{
    Backend, BackendInfo, HolderState, ListPage, LockState, OnBusy, Op, Page, Reply, Scope, Wakeup,
};
use fencepost_core::clock::{Clock, Moment};
use fencepost_core::push::{self, Pusher, Pushes};
use fencepost_core::{
    Attempt, Award, Error, ErrorKind, FencingToken, Finding, Grant, LockName, LostReason, Mode, Owner,
    Result, request_timeout,
};
use futures_util::stream::BoxStream;
use tokio::sync::watch;
use tokio::task::AbortHandle;

use super::cleanup;
use super::owner::MarkPattern;
use super::rows::{AcquireRequest, AcquireResult, HeldRow, LockRows};
use super::state::{Decision, State};

/// What a table of another program cannot guarantee.
const EXCEPTIONS: [&str; 2] = [
    "waiters of one client are served in order, those of different clients in any order",
    "tokens are the server's time at the grant: they grow unless its clock is set back, and holders of other programs have none",
];
/// What one without a column for the end of leases cannot guarantee.
const EXCEPTIONS_WITHOUT_EXPIRY: [&str; 3] = [
    EXCEPTIONS[0],
    EXCEPTIONS[1],
    "the table has no column for the end of leases: the row of a client that crashed stays until it is broken or deleted",
];
/// How many operations are executed at once.
const MAX_FLIGHTS: usize = 64;

/// A backend for locks in the rows `R`.
pub struct TableBackend<R> {
    shared: Arc<Shared<R>>,
    pushes: Pushes,
    cleanup: AbortHandle,
}

/// What a backend shares with its cleanup.
pub(super) struct Shared<R> {
    pub(super) rows: R,
    state: Mutex<State>,
    pub(super) clock: Clock,
    pusher: Pusher,
}

impl<R: LockRows> TableBackend<R> {
    /// Creates the backend of one client. `server_time` was returned by a request that was sent at `sent`. Must be called
    /// inside the runtime in which it will be used.
    pub fn new(rows: R, server_time: u64, sent: Moment) -> Self {
        let (pusher, wakeups) = push::channel();
        let mut state = State::default();
        state.set_server_time(server_time, sent);
        let shared = Arc::new(Shared { rows, state: Mutex::new(state), clock: Clock::system(), pusher });
        let cleanup = tokio::spawn(cleanup::run(Arc::downgrade(&shared))).abort_handle();
        Self { shared, pushes: wakeups, cleanup }
    }
}

impl<R> Drop for TableBackend<R> {
    fn drop(&mut self) {
        self.cleanup.abort();
    }
}

impl<R> Shared<R> {
    pub(super) fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Asks the engine to check the first waiter.
    pub(super) fn wake(&self, first: Option<Owner>) {
        if let Some(owner) = first {
            self.pusher.push(Wakeup::Check { owner });
        }
    }
}

impl<R: LockRows> Shared<R> {
    async fn execute(self: &Arc<Self>, op: &Op) -> Result<Reply> {
        let name = self.check_supported(op)?;
        if !matches!(op, Op::Renew(_)) {
            self.finish_pending(op.owner()).await;
        }
        let now = self.clock.now();
        match op {
            Op::Acquire { attempt, on_busy } => {
                let decision = self.state().on_acquire(name, attempt, *on_busy, now);
                self.decided(name, attempt, *on_busy, decision).await
            }
            Op::Check(attempt) => {
                let decision = self.state().on_check(name, attempt, now);
                self.decided(name, attempt, OnBusy::Wait, decision).await
            }
            Op::Leave(attempt) => self.leave(name, attempt).await,
            Op::Renew(grant) => self.renew(name, grant).await,
            Op::Release(grant) => self.release(name, grant).await,
            Op::Break { token, .. } => self.break_lock(name, *token).await,
            Op::ReadCell(_) | Op::WriteCell { .. } => Err(self.unsupported("have no cell")),
        }
    }

    /// Returns the lock of an operation that such locks support.
    fn check_supported<'a>(&self, op: &'a Op) -> Result<&'a LockName> {
        if matches!(op, Op::ReadCell(_) | Op::WriteCell { .. }) {
            return Err(self.unsupported("have no cell"));
        }
        let (wants, mut names) = (op.wants(), op.names());
        let (Some(name), None) = (names.next(), names.next()) else {
            return Err(self.unsupported("are acquired one by one"));
        };
        if wants.iter().any(|want| want.mode != Mode::Exclusive) {
            return Err(self.unsupported("are exclusive"));
        }
        self.check_name(name)?;
        Ok(name)
    }

    fn check_name(&self, name: &LockName) -> Result<()> {
        let info = self.rows.info();
        match info.max_name.filter(|max| name.as_str().chars().count() > *max) {
            None => Ok(()),
            Some(max) => {
                let message = format!("lock {name:?} is too long for its column in {}", info.location);
                let hint = format!("with {} a name has at most {max} characters", info.option);
                Err(Error::new(ErrorKind::BadName, message).with_hint(hint))
            }
        }
    }

    fn unsupported(&self, what: &str) -> Error {
        let message = format!("locks with {} {what}", self.rows.info().option);
        let hint = "without that option in the URL locks are in Fencepost's own tables, which support it";
        Error::new(ErrorKind::Unsupported, message).with_hint(hint)
    }

    /// Waits for an earlier acquire of the attempt whose future was dropped: only then its outcome is known.
    async fn finish_pending(&self, owner: Option<Owner>) {
        let pending = owner.and_then(|owner| self.state().take_pending(owner));
        if let Some(mut finished) = pending {
            // It ends with the error that the sender was dropped.
            let _ = finished.changed().await;
        }
    }

    async fn decided(
        self: &Arc<Self>,
        name: &LockName,
        attempt: &Arc<Attempt>,
        on_busy: OnBusy,
        decision: Decision,
    ) -> Result<Reply> {
        match decision {
            Decision::Ask => {
                let (finished, pending) = watch::channel(());
                self.state().on_pending(attempt.owner, pending);
                let (shared, name, owner) = (self.clone(), name.clone(), attempt.owner);
                let attempt = attempt.clone();
                // A task of its own completes, and records the outcome, although the caller may be gone.
                let asked = tokio::spawn(async move {
                    let _finished = finished;
                    shared.ask(&name, &attempt, on_busy).await
                });
                let unknown = |_| Error::new(ErrorKind::OutcomeUnknown, "the request was aborted");
                let reply = asked.await.map_err(unknown)?;
                self.state().take_pending(owner);
                reply
            }
            Decision::Busy => Ok(Reply::Busy),
            Decision::Wait(check_after) => Ok(Reply::Waiting { check_after }),
            Decision::NoTicket => Ok(Reply::NoTicket),
            Decision::Renew(token) => {
                let grant = Grant { attempt: attempt.clone(), award: award(attempt, token) };
                match self.renew(name, &grant).await? {
                    Reply::Renewed { .. } => Ok(Reply::Granted(grant.award)),
                    _ => Ok(Reply::NoTicket),
                }
            }
        }
    }

    /// Tries to acquire the row.
    async fn ask(&self, name: &LockName, attempt: &Arc<Attempt>, on_busy: OnBusy) -> Result<Reply> {
        let sent = self.clock.now();
        let asked = self.send(name, attempt).await;
        let now = self.clock.now();
        let result = asked?;
        let info = self.rows.info();
        let token =
            result.granted.as_deref().and_then(|value| info.owner.read(value)).map(|(_, token, _)| token);
        if let Some(token) = token {
            let first = self.state().on_granted(name, attempt, token, sent);
            self.wake(first);
            return Ok(Reply::Granted(award(attempt, token)));
        }
        let check_after = self.state().on_busy(name, &result, info.owner, now);
        Ok(if on_busy == OnBusy::Wait { Reply::Waiting { check_after } } else { Reply::Busy })
    }

    /// Sends an acquire; a second one if the server's clock has made a step, so that it rejected the first.
    async fn send(&self, name: &LockName, attempt: &Arc<Attempt>) -> Result<AcquireResult> {
        let timeout = request_timeout(attempt.ttl);
        let mut was_unanswered = false;
        for _ in 0..2 {
            let sent = self.clock.now();
            let not_after = {
                let mut state = self.state();
                was_unanswered |= state.on_sent(attempt.owner, timeout, sent);
                state.not_after(timeout, sent)
            };
            let (owner, label, ttl) = (attempt.owner, &*attempt.label, attempt.ttl);
            let result = self.rows.acquire(AcquireRequest { name, owner, label, ttl, not_after }).await;
            let mut state = self.state();
            if !was_unanswered && !matches!(&result, Err(error) if error.kind() == ErrorKind::OutcomeUnknown)
            {
                state.on_answered(owner);
            }
            let result = result?;
            if let Some(time) = result.server_time {
                state.set_server_time(time, sent);
            }
            if !result.is_late {
                return Ok(result);
            }
        }
        let message = format!("{} took too long for a request", self.rows.info().location);
        Err(Error::new(ErrorKind::Unreachable, message))
    }

    async fn leave(&self, name: &LockName, attempt: &Arc<Attempt>) -> Result<Reply> {
        let now = self.clock.now();
        let (first, may_hold) = {
            let mut state = self.state();
            let was_first = state.queues.remove(attempt.owner);
            (was_first.then(|| state.queues.first(name, now)).flatten(), state.may_hold(attempt.owner))
        };
        self.wake(first);
        if may_hold {
            let format = self.rows.info().owner;
            let row = self.rows.find(name).await?;
            let found = row.as_ref().and_then(|row| format.read(&row.owner));
            if let Some((_, token, _)) = found.filter(|(_, _, tail)| *tail == format.tail(attempt.owner)) {
                return Ok(Reply::AlreadyGranted(award(attempt, token)));
            }
        }
        let mut state = self.state();
        state.on_ended(attempt.owner);
        state.on_left(name, attempt, now);
        Ok(Reply::Left)
    }

    async fn renew(&self, name: &LockName, grant: &Grant) -> Result<Reply> {
        let (owner, ttl, sent) = (grant.attempt.owner, grant.award.ttl, self.clock.now());
        let mark = MarkPattern::grant(self.rows.info().owner, owner, grant.award.token);
        if self.rows.renew(name, &mark, ttl).await? {
            self.state().on_renewed(owner, sent + ttl);
            return Ok(Reply::Renewed { ttl });
        }
        self.ended(name, owner);
        Ok(Reply::NotHeld)
    }

    async fn release(&self, name: &LockName, grant: &Grant) -> Result<Reply> {
        let owner = grant.attempt.owner;
        // Whatever the reply is, the waiters of this client look at the row again.
        self.state().on_ended(owner);
        let mark = MarkPattern::grant(self.rows.info().owner, owner, grant.award.token);
        let released = self.rows.release(name, &mark).await?;
        let first = self.state().on_released(name, self.clock.now());
        self.wake(first);
        Ok(if released { Reply::Released } else { Reply::NotHeld })
    }

    async fn break_lock(&self, name: &LockName, token: FencingToken) -> Result<Reply> {
        let mark = MarkPattern::token(self.rows.info().owner, token);
        if !self.rows.release(name, &mark).await? {
            return Ok(Reply::NotHeld);
        }
        let ours = self.state().owner_of(name, token);
        if let Some(owner) = ours {
            self.pusher.push(Wakeup::Lost { owner, reason: LostReason::Broken });
            self.ended(name, owner);
        }
        Ok(Reply::Released)
    }

    /// Records that a grant has ended, and wakes the first waiter.
    fn ended(&self, name: &LockName, owner: Owner) {
        let first = {
            let mut state = self.state();
            state.on_ended(owner);
            state.queues.first(name, self.clock.now())
        };
        self.wake(first);
    }

    /// Returns the state of a lock with this row.
    fn lock_state(&self, name: LockName, row: Option<HeldRow>) -> LockState {
        let mut state = LockState::new(name);
        let format = self.rows.info().owner;
        state.holders.extend(row.map(|row| {
            let (label, token) = match format.read(&row.owner) {
                Some(("", token, _)) => ("a Fencepost client".to_owned(), Some(token)),
                Some((label, token, _)) => (label.to_owned(), Some(token)),
                None if row.owner.is_empty() => ("not a Fencepost client".to_owned(), None),
                None => (format!("{} (not a Fencepost client)", row.owner), None),
            };
            let mut holder = HolderState::new(Mode::Exclusive, label);
            holder.token = token;
            holder.expires_in = Some(row.left.unwrap_or(HolderState::NO_EXPIRY));
            holder.held_for = row.held_for;
            holder
        }));
        self.state().queues.describe(&mut state, self.clock.now());
        state
    }
}

fn award(attempt: &Attempt, token: FencingToken) -> Award {
    Award { token, ttl: attempt.ttl, chosen: 0, elapsed: Duration::ZERO }
}

#[async_trait]
impl<R: LockRows> Backend for TableBackend<R> {
    fn info(&self) -> BackendInfo {
        let table = self.shared.rows.info();
        let mut info = BackendInfo::new(table.scheme, &table.location, Scope::Fleet, table.storage_id);
        info.min_ttl = table.min_ttl;
        info.max_flights = MAX_FLIGHTS;
        info.max_batch = 1;
        info.exceptions = if table.has_expiry { &EXCEPTIONS } else { &EXCEPTIONS_WITHOUT_EXPIRY };
        info
    }

    async fn execute(&self, ops: Vec<Op>) -> Vec<Result<Reply>> {
        let mut replies = Vec::with_capacity(ops.len());
        for op in &ops {
            replies.push(self.shared.execute(op).await);
        }
        replies
    }

    fn wakeups(&self) -> BoxStream<'static, Wakeup> {
        self.pushes.stream()
    }

    async fn inspect(&self, name: &LockName) -> Result<LockState> {
        let row = self.shared.rows.find(name).await?;
        Ok(self.shared.lock_state(name.clone(), row))
    }

    async fn list(&self, prefix: &str, page: Page) -> Result<ListPage> {
        let (mut locks, mut after) = (Vec::new(), page.after.map(|name| name.as_str().to_owned()));
        loop {
            let rows =
                self.shared.rows.list(prefix, after.as_deref().unwrap_or_default(), page.limit + 1).await?;
            let is_last = rows.len() <= page.limit;
            after = rows.last().map(|row| row.name.clone());
            // A foreign client may use names that Fencepost does not permit.
            let valid = rows.into_iter().filter_map(|row| Some((LockName::new(&row.name).ok()?, row)));
            locks.extend(valid.map(|(name, row)| self.shared.lock_state(name, Some(row))));
            if locks.len() > page.limit {
                locks.truncate(page.limit);
                let next = locks.last().map(|lock| lock.name.clone());
                return Ok(ListPage { locks, next });
            }
            if is_last {
                return Ok(ListPage { locks, next: None });
            }
        }
    }

    async fn diagnose(&self) -> Vec<Finding> {
        let mut findings = self.shared.rows.diagnose().await;
        findings.push(Finding::ok(
            "guarantees of the table",
            "exclusive locks of one name; first come, first served within one client only; waiters poll; the token is the \
             server's time at the grant, and foreign holders have none",
        ));
        let has_expiry = self.shared.rows.info().has_expiry;
        findings.push(if has_expiry {
            Finding::ok("end of leases", "the lock of a client that crashed is free after its ttl")
        } else {
            Finding::warning("end of leases", "the table has no column for it: the lock of a client that crashed stays held")
                .with_advice("add a timestamp column that all clients write and respect, and name it in the URL: &expires=COLUMN")
        });
        findings
    }

    async fn locate(&self, name: &LockName) -> Vec<Finding> {
        self.shared.rows.locate(name).await
    }

    async fn close(&self) {
        self.cleanup.abort();
        cleanup::remove_all(&self.shared).await;
        self.shared.rows.close().await;
    }
}
