//! Polls for what other clients have to tell this one: grants, and the loss of grants. MySQL has no pushes.
//!
//! The polling connection has a named lock, by which others see that this client is alive: a waiter of a dead client is passed
//! over, and keeps its position.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use fencepost_core::backend::{Op, Reply, Wakeup};
use fencepost_core::clock::Moment;
use fencepost_core::{Award, Error, ErrorKind, FencingToken, LostReason, Owner, Result};
use fencepost_net::{Backoff, CONNECT_TIMEOUT};
use fencepost_sql::{Row, codec};
use tokio::sync::Notify;

use crate::lease::flight::READ_TIMEOUT;
use crate::lease::interests::Interests;
use crate::lease::state::ClientState;
use crate::literal::Sql;
use crate::session::{ServerRow, Session};

/// How soon notices that were read are deleted.
const DELETE_INTERVAL: Duration = Duration::from_millis(20);
/// How long the connection is kept when nothing is expected.
const KEPT: Duration = Duration::from_secs(5);

/// What the polling task and the flights of a client share.
#[derive(Default)]
pub(crate) struct Poller {
    interests: Mutex<Interests>,
    /// Something may be expected sooner than the task knows.
    changed: Notify,
    /// Whether the connection with the named lock is there.
    is_ready: AtomicBool,
    /// Whether a flight wants it to be there.
    is_requested: AtomicBool,
    /// The connection is there, or could not be made.
    tried: Notify,
    is_closed: AtomicBool,
}

impl Poller {
    pub(crate) fn interests(&self) -> MutexGuard<'_, Interests> {
        self.interests.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn is_ready(&self) -> bool {
        self.is_ready.load(Ordering::Relaxed)
    }

    /// Asks for the polling connection, which a waiter will need.
    pub(crate) fn request(&self) {
        if !self.is_ready() && !self.is_requested.swap(true, Ordering::Relaxed) {
            self.changed.notify_one();
        }
    }

    /// Waits until the polling connection is there, or could not be made.
    pub(crate) async fn get_ready(&self) {
        let tried = self.tried.notified();
        self.is_requested.store(true, Ordering::Relaxed);
        self.changed.notify_one();
        if !self.is_ready() {
            // Whatever the outcome is: without the connection, the waiter is only passed over for a while.
            let _ = tokio::time::timeout(CONNECT_TIMEOUT, tried).await;
        }
    }

    /// Updates the interests after a flight.
    pub(crate) fn update(&self, ops: &[Op], replies: &[Result<Reply>], now: Moment) {
        let mut interests = self.interests();
        let before = interests.interval(now);
        interests.update(ops, replies, now);
        let after = interests.interval(now);
        drop(interests);
        if after.is_some_and(|after| before.is_none_or(|before| after < before)) {
            self.changed.notify_one();
        }
    }

    /// Ends the task.
    pub(crate) fn close(&self) {
        self.is_closed.store(true, Ordering::Relaxed);
        self.changed.notify_one();
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.is_closed.load(Ordering::Relaxed)
    }

    pub(super) fn set_ready(&self, is_ready: bool) {
        self.is_ready.store(is_ready, Ordering::Relaxed);
        if is_ready {
            self.is_requested.store(false, Ordering::Relaxed);
        }
        self.tried.notify_waiters();
    }
}

/// Polls until the client is dropped.
pub(crate) async fn poll(client: Weak<ClientState>) {
    let mut backoff = Backoff::default();
    let mut has_failed = false;
    loop {
        let Some((poller, clock)) = client.upgrade().map(|client| (client.poller.clone(), client.clock()))
        else {
            return;
        };
        if poller.is_closed() {
            return;
        }
        let is_expected = poller.interests().interval(clock.now()).is_some();
        if !is_expected && !poller.is_requested.load(Ordering::Relaxed) {
            poller.changed.notified().await;
            continue;
        }
        match Polling::begin(&client).await {
            Ok(Some(polling)) => {
                backoff = Backoff::default();
                if std::mem::take(&mut has_failed) {
                    // What happened meanwhile was not pushed, or the lock was not handed over.
                    polling.push(Wakeup::CheckAll);
                }
                has_failed = polling.run().await.is_err();
            }
            Ok(None) => return,
            Err(_) => {
                has_failed = true;
                poller.set_ready(false);
                backoff.wait(&clock).await;
            }
        }
    }
}

/// A polling connection.
struct Polling {
    client: Weak<ClientState>,
    poller: Arc<Poller>,
    session: Session,
    /// The owners and tokens of the notices that were read and are still stored.
    read: Vec<(Owner, Option<i64>)>,
}

impl Polling {
    async fn begin(client: &Weak<ClientState>) -> Result<Option<Self>> {
        let Some(state) = client.upgrade() else { return Ok(None) };
        let mut session = state.sessions.connector.connect().await?;
        let mut sql = Sql::default();
        sql.text("SELECT GET_LOCK('fencepost.").number(state.id.0.cast_signed()).text("', 0)");
        let locked = session.run(sql.as_str(), READ_TIMEOUT).await;
        locked.map_err(|failure| failure.into_error(state.location()))?;
        let poller = state.poller.clone();
        poller.set_ready(true);
        Ok(Some(Self { client: client.clone(), poller, session, read: Vec::new() }))
    }

    fn push(&self, push: Wakeup) {
        if let Some(client) = self.client.upgrade() {
            client.push(push);
        }
    }

    /// Polls until nothing is expected for a while, the client is dropped, or the connection is lost.
    async fn run(mut self) -> Result<()> {
        let outcome = self.try_run().await;
        self.poller.set_ready(false);
        if outcome.is_ok() {
            self.session.close().await;
        }
        outcome
    }

    async fn try_run(&mut self) -> Result<()> {
        let mut polled = Moment::START;
        let mut expected = self.now()?;
        while !self.poller.is_closed() {
            let now = self.now()?;
            let interval = self.poller.interests().interval(now);
            let interval = if self.read.is_empty() { interval } else { Some(DELETE_INTERVAL) };
            let due = match interval {
                Some(interval) => {
                    expected = now;
                    polled + interval
                }
                None if now.since(expected) >= KEPT => return Ok(()),
                None => Moment::NEVER,
            };
            if due <= now {
                self.poll_once().await?;
                polled = self.now()?;
            } else {
                // A change of interests may shorten the wait.
                let wait = due.since(now).min(KEPT);
                let _ = tokio::time::timeout(wait, self.poller.changed.notified()).await;
            }
        }
        Ok(())
    }

    /// Returns the time on the client's clock.
    fn now(&self) -> Result<Moment> {
        self.client.upgrade().map(|client| client.now()).ok_or_else(closed)
    }

    async fn poll_once(&mut self) -> Result<()> {
        let client = self.client.upgrade().ok_or_else(closed)?;
        let id = client.id.0.cast_signed();
        let mut sql = Sql::default();
        let table = &client.tables.notices;
        for (owner, token) in self.read.drain(..) {
            sql.text("DELETE d FROM ").text(table).text(" AS d WHERE d.client = ").number(id);
            sql.text(" AND d.owner = ").owner(owner).text(" AND d.token <=> ");
            match token {
                Some(token) => sql.number(token).text("; "),
                None => sql.text("NULL; "),
            };
        }
        sql.text("SELECT owner, token, ttl_ns, chosen FROM ").text(table).text(" WHERE client = ").number(id);
        let sets = self.session.run(sql.as_str(), READ_TIMEOUT).await;
        let sets = sets.map_err(|failure| failure.into_error(client.location()))?;
        for row in sets.last().into_iter().flatten() {
            let push = push_of(row, &client)?;
            self.read.push((row.owner(0)?, row.optional_integer(1)?));
            client.push(push);
        }
        Ok(())
    }
}

fn push_of(row: &ServerRow, client: &ClientState) -> Result<Wakeup> {
    let owner = row.owner(0)?;
    let Some(token) = row.optional_integer(1)? else {
        return Ok(Wakeup::Lost { owner, reason: LostReason::Broken });
    };
    let award = Award {
        token: FencingToken::new(codec::unsigned(token)),
        ttl: codec::duration(row.integer(2)?),
        chosen: usize::try_from(row.integer(3)?).unwrap_or(0),
        elapsed: Duration::ZERO,
    };
    let attempt = client.poller.interests().attempt(owner);
    Ok(attempt.map_or(Wakeup::Check { owner }, |attempt| Wakeup::Granted { attempt, award }))
}

fn closed() -> Error {
    Error::new(ErrorKind::Closed, "the client is closed")
}
