//! The state of one client: its attempts, each with a task, and sessions that can be used again.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use fencepost_core::backend::{OnBusy, Reply};
use fencepost_core::clock::{Clock, Moment};
use fencepost_core::push::Pusher;
use fencepost_core::{Attempt, Error, ErrorKind, LockName, Owner, Result};
use fencepost_net::Coalesced;
use tokio::sync::mpsc::{UnboundedSender, unbounded_channel};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, oneshot};
use tokio_postgres::types::{ToSql, Type};
use tokio_postgres::{Client, Row};

use super::holding::Holding;
use super::keys::Key;
use super::session::{Session, collision};
use crate::config::KeyRule;
use crate::error::{call_failed, unreachable};
use crate::link::Link;

/// How many sessions are opened at once: the server starts a process for each.
const MAX_OPENING: usize = 8;

/// The parameters of a statement, with their types.
pub(super) type Parameters<'a> = [(&'a (dyn ToSql + Sync), Type)];

/// A request to the task of an attempt.
#[derive(Clone, Copy, Debug)]
pub(super) enum Request {
    Acquire(OnBusy),
    Check,
    Leave,
    Renew,
    Release,
}

/// A request, and where its reply goes.
pub(super) struct Call {
    pub(super) request: Request,
    pub(super) reply: oneshot::Sender<Result<Reply>>,
}

/// The state of one client.
pub(super) struct ClientState {
    pub(super) link: Link,
    pub(super) clock: Clock,
    pub(super) rule: KeyRule,
    pub(super) pusher: Pusher,
    /// How long an attempt waits in the server's queue before it joins it again.
    pub(super) wait_slice: Duration,
    control: Coalesced<Arc<Client>>,
    permits: Arc<Semaphore>,
    /// Permits to open a session.
    opening: Semaphore,
    tables: Mutex<Tables>,
}

#[derive(Default)]
struct Tables {
    attempts: HashMap<Owner, UnboundedSender<Call>>,
    /// The names of the keys in use, and by how many attempts.
    keys: HashMap<Key, (LockName, usize)>,
    /// Owners that have left before their acquire arrived, and until when that is remembered.
    tombstones: HashMap<Owner, Moment>,
    idle: Vec<Session>,
    is_closed: bool,
}

impl ClientState {
    pub(super) fn new(
        link: Link,
        rule: KeyRule,
        connections: usize,
        wait_slice: Duration,
        pusher: Pusher,
    ) -> Self {
        Self {
            link,
            clock: Clock::system(),
            rule,
            pusher,
            wait_slice,
            control: Coalesced::default(),
            permits: Arc::new(Semaphore::new(connections)),
            opening: Semaphore::new(MAX_OPENING),
            tables: Mutex::default(),
        }
    }

    fn tables(&self) -> MutexGuard<'_, Tables> {
        self.tables.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the connection for everything but holding and waiting.
    pub(super) async fn control(&self) -> Result<Arc<Client>> {
        let open = async || Ok(Arc::new(self.link.open(None).await?));
        self.control.get(|client| !client.is_closed(), open).await
    }

    /// Executes a query that changes nothing: if its connection is lost, again on a new one.
    pub(super) async fn read(&self, query: &str, parameters: &Parameters<'_>) -> Result<Vec<Row>> {
        let control = self.control().await?;
        let failed = |error: tokio_postgres::Error| call_failed(self.link.location(), &error);
        match control.query_typed(query, parameters).await.map_err(failed) {
            Err(error) if error.kind() == ErrorKind::OutcomeUnknown => {
                self.control.clear().await;
                let control = self.control().await?;
                control.query_typed(query, parameters).await.map_err(failed)
            }
            outcome => outcome,
        }
    }

    /// Returns the error of a query without a reply in time.
    pub(super) fn no_reply(&self) -> Error {
        unreachable(self.link.location()).with_source("no reply in time")
    }

    /// Sends a request to the task of an attempt. `None` if there is none, or if it ended meanwhile.
    pub(super) async fn call(&self, owner: Owner, request: Request) -> Option<Result<Reply>> {
        let task = self.tables().attempts.get(&owner)?.clone();
        let (reply, receiver) = oneshot::channel();
        task.send(Call { request, reply }).ok()?;
        receiver.await.ok()
    }

    /// Starts the task of an attempt, unless it has one.
    pub(super) fn start(self: &Arc<Self>, attempt: &Arc<Attempt>) -> Result<()> {
        let (sender, calls) = unbounded_channel();
        let mut tables = self.tables();
        if tables.is_closed || tables.attempts.contains_key(&attempt.owner) {
            return Ok(());
        }
        let no_timer =
            |error| Error::new(ErrorKind::Backend, "the system has no timer left").with_source(error);
        let timer = self.clock.timer().map_err(no_timer)?;
        tables.attempts.insert(attempt.owner, sender);
        drop(tables);
        tokio::spawn(Holding::new(self.clone(), attempt.clone(), calls, timer).run());
        Ok(())
    }

    /// Ends an attempt: its task takes no more requests.
    pub(super) fn end(&self, owner: Owner, key: Option<Key>) {
        let mut tables = self.tables();
        tables.attempts.remove(&owner);
        let Some(key) = key else { return };
        if let Some((_, count)) = tables.keys.get_mut(&key) {
            *count -= 1;
            if *count == 0 {
                tables.keys.remove(&key);
            }
        }
    }

    /// Records that an attempt uses this key.
    ///
    /// # Errors
    /// [`ErrorKind::Conflict`] if another lock of this client has the same.
    pub(super) fn use_key(&self, key: Key, name: &LockName) -> Result<()> {
        let mut tables = self.tables();
        let (used_by, count) = tables.keys.entry(key).or_insert_with(|| (name.clone(), 0));
        if used_by != name {
            return Err(collision(name.as_str(), used_by.as_str()));
        }
        *count += 1;
        Ok(())
    }

    /// Records that an owner has left, so that its acquire does nothing if it arrives later.
    pub(super) fn bar(&self, attempt: &Attempt) {
        let now = self.clock.now();
        let mut tables = self.tables();
        tables.tombstones.retain(|_, until| *until > now);
        tables.tombstones.insert(attempt.owner, now + attempt.ttl);
    }

    pub(super) fn is_barred(&self, owner: Owner) -> bool {
        let now = self.clock.now();
        self.tables().tombstones.get(&owner).is_some_and(|until| *until > now)
    }

    /// Takes a permit for a session; `None` if as many as allowed are in use.
    pub(super) fn try_permit(&self) -> Option<OwnedSemaphorePermit> {
        self.permits.clone().try_acquire_owned().ok()
    }

    /// Waits for a permit, behind those that have waited for longer.
    pub(super) async fn permit(&self) -> Result<OwnedSemaphorePermit> {
        self.permits.clone().acquire_owned().await.map_err(|_| closed())
    }

    /// Returns a session: one that is not in use, or a new one.
    pub(super) async fn session(&self, permit: OwnedSemaphorePermit) -> Result<Session> {
        let idle = {
            let mut tables = self.tables();
            tables.idle.retain(|session| !session.is_closed());
            tables.idle.pop()
        };
        let mut session = if let Some(session) = idle {
            session
        } else {
            let _turn = self.opening.acquire().await.map_err(|_| closed())?;
            Session::open(&self.link).await?
        };
        session.permit = Some(permit);
        Ok(session)
    }

    /// Keeps a session without locks for the next attempt.
    pub(super) fn put_back(&self, mut session: Session) {
        let mut tables = self.tables();
        session.is_reused = true;
        let permit = session.permit.take();
        if !tables.is_closed && !session.is_closed() {
            tables.idle.push(session);
        }
        drop(tables);
        drop(permit);
    }

    pub(super) fn is_closed(&self) -> bool {
        self.tables().is_closed
    }

    /// Ends all tasks and sessions.
    pub(super) async fn close(&self) {
        let ended = {
            let mut tables = self.tables();
            tables.is_closed = true;
            (std::mem::take(&mut tables.attempts), std::mem::take(&mut tables.idle))
        };
        drop(ended);
        self.permits.close();
        self.control.clear().await;
    }
}

fn closed() -> Error {
    Error::new(ErrorKind::Closed, "the client is closed")
}
