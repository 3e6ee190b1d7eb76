//! The state of one client: its attempts, each with a task, and connections that can be used again.

use std::collections::HashMap;
use std::pin::pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use fencepost_core::backend::{OnBusy, Reply};
use fencepost_core::clock::{Clock, Moment};
use fencepost_core::push::Pusher;
use fencepost_core::{Attempt, Error, ErrorKind, LockName, Owner, Result};
use tokio::sync::mpsc::{UnboundedSender, unbounded_channel};
use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore, oneshot};

use super::holding::Holding;
use super::keys::derive;
use super::session::Session;
use crate::config::{Config, KeyRule};
use crate::session::{Connector, Rows};
use crate::sessions::Sessions;

/// How many connections are opened at once.
const MAX_OPENING: usize = 4;

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
    pub(super) config: Config,
    rule: KeyRule,
    /// The connections for everything but holding and waiting.
    pub(super) control: Sessions,
    pub(super) clock: Clock,
    pub(super) pusher: Pusher,
    /// How long an attempt waits in the server's queue before it joins it again.
    pub(super) wait_slice: Duration,
    permits: Arc<Semaphore>,
    /// Permits to open a connection.
    opening: Semaphore,
    /// A connection is no longer in use.
    returned: Notify,
    attempts: Mutex<Attempts>,
}

#[derive(Default)]
struct Attempts {
    tasks: HashMap<Owner, UnboundedSender<Call>>,
    /// Owners that have left before their acquire arrived, and until when that is remembered.
    tombstones: HashMap<Owner, Moment>,
    idle: Vec<Session>,
    is_closed: bool,
}

impl ClientState {
    pub(super) fn new(
        config: Config,
        control: Sessions,
        (rule, connections): (KeyRule, usize),
        wait_slice: Duration,
        pusher: Pusher,
    ) -> Self {
        Self {
            config,
            rule,
            clock: control.connector.clock.clone(),
            control,
            pusher,
            wait_slice,
            permits: Arc::new(Semaphore::new(connections)),
            opening: Semaphore::new(MAX_OPENING),
            returned: Notify::new(),
            attempts: Mutex::default(),
        }
    }

    fn attempts(&self) -> MutexGuard<'_, Attempts> {
        self.attempts.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn connector(&self) -> &Connector {
        &self.control.connector
    }

    pub(super) fn location(&self) -> &str {
        &self.connector().location
    }

    /// Returns the server's name of a lock.
    pub(super) fn key(&self, name: &LockName) -> Result<String> {
        derive(self.rule, &self.config, name)
    }

    /// Returns the table with a row for each connection, quoted.
    pub(super) fn table(&self) -> String {
        self.config.named_table("named_sessions")
    }

    /// Runs statements that may be repeated.
    pub(super) async fn query(&self, sql: &str) -> Result<Vec<Rows>> {
        self.control.query(sql).await
    }

    /// Sends a request to the task of an attempt. `None` if there is none, or if it ended meanwhile.
    pub(super) async fn call(&self, owner: Owner, request: Request) -> Option<Result<Reply>> {
        let task = self.attempts().tasks.get(&owner)?.clone();
        let (reply, receiver) = oneshot::channel();
        task.send(Call { request, reply }).ok()?;
        receiver.await.ok()
    }

    /// Starts the task of an attempt, unless it has one.
    pub(super) fn start(self: &Arc<Self>, attempt: &Arc<Attempt>) -> Result<()> {
        let key = self.key(&attempt.wants[0].name)?;
        let (sender, calls) = unbounded_channel();
        let mut attempts = self.attempts();
        if attempts.is_closed || attempts.tasks.contains_key(&attempt.owner) {
            return Ok(());
        }
        let no_timer =
            |error| Error::new(ErrorKind::Backend, "the system has no timer left").with_source(error);
        let timer = self.clock.timer().map_err(no_timer)?;
        attempts.tasks.insert(attempt.owner, sender);
        drop(attempts);
        tokio::spawn(Holding::new(self.clone(), attempt.clone(), key, (calls, timer)).run());
        Ok(())
    }

    /// Ends an attempt: its task takes no more requests.
    pub(super) fn end(&self, owner: Owner) {
        self.attempts().tasks.remove(&owner);
    }

    /// Records that an owner has left, so that its acquire does nothing if it arrives later.
    pub(super) fn bar(&self, attempt: &Attempt) {
        let now = self.clock.now();
        let mut attempts = self.attempts();
        attempts.tombstones.retain(|_, until| *until > now);
        attempts.tombstones.insert(attempt.owner, now + attempt.ttl);
    }

    pub(super) fn is_barred(&self, owner: Owner) -> bool {
        let now = self.clock.now();
        self.attempts().tombstones.get(&owner).is_some_and(|until| *until > now)
    }

    /// Takes a permit for a connection; `None` if as many as allowed are in use.
    pub(super) fn try_permit(&self) -> Option<OwnedSemaphorePermit> {
        self.permits.clone().try_acquire_owned().ok()
    }

    /// Waits for a permit, behind those that have waited for longer.
    pub(super) async fn permit(&self) -> Result<OwnedSemaphorePermit> {
        self.permits.clone().acquire_owned().await.map_err(|_| closed())
    }

    /// Returns a connection: one that is not in use, or a new one.
    pub(super) async fn session(&self, permit: OwnedSemaphorePermit) -> Result<Session> {
        let mut turn = pin!(self.opening.acquire());
        let mut session = loop {
            if let Some(session) = self.take_idle() {
                break session;
            }
            tokio::select! {
                biased;
                () = self.returned.notified() => {}
                turn = &mut turn => {
                    let _turn = turn.map_err(|_| closed())?;
                    break Session::open(self.connector(), &self.config).await?;
                }
            }
        };
        session.permit = Some(permit);
        Ok(session)
    }

    fn take_idle(&self) -> Option<Session> {
        let mut attempts = self.attempts();
        attempts.idle.retain(Session::is_usable);
        attempts.idle.pop()
    }

    /// Keeps a connection without locks for the next attempt.
    pub(super) fn put_back(&self, mut session: Session) {
        let mut attempts = self.attempts();
        session.is_reused = true;
        let permit = session.permit.take();
        if !attempts.is_closed && session.is_usable() {
            attempts.idle.push(session);
            self.returned.notify_one();
        }
        drop(attempts);
        drop(permit);
    }

    pub(super) fn is_closed(&self) -> bool {
        self.attempts().is_closed
    }

    /// Ends all tasks and connections.
    pub(super) async fn close(&self) {
        let ended = {
            let mut attempts = self.attempts();
            attempts.is_closed = true;
            (std::mem::take(&mut attempts.tasks), std::mem::take(&mut attempts.idle))
        };
        drop(ended);
        self.permits.close();
        self.control.close().await;
    }
}

fn closed() -> Error {
    Error::new(ErrorKind::Closed, "the client is closed")
}
