//! The state of one client: its attempts, each with a task, and sessions that can be used again.

use std::collections::HashMap;
use std::pin::pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use fencepost_core::backend::{OnBusy, Reply};
use fencepost_core::clock::{Clock, Moment};
use fencepost_core::push::Pusher;
use fencepost_core::{Attempt, Error, ErrorKind, FencingToken, LockName, Owner, Result};
use tokio::sync::mpsc::{UnboundedSender, unbounded_channel};
use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore, oneshot};

use super::attempt::AttemptTask;
use super::server::{LockServer, LockSession, ServerInfo};

/// A request to the task of an attempt.
#[derive(Clone, Copy, Debug)]
pub(super) enum Request {
    Acquire(OnBusy),
    Check,
    Leave,
    /// Of the grant with this token.
    Renew(FencingToken),
    /// Of the grant with this token.
    Release(FencingToken),
}

/// A request, and where its reply goes.
pub(super) struct Call {
    pub(super) request: Request,
    pub(super) reply: oneshot::Sender<Result<Reply>>,
}

/// A session in use. It is closed unless it is put back.
pub(super) struct Lent<S> {
    pub(super) session: S,
    /// Whether it has held another lock before: the server may have closed it meanwhile.
    pub(super) is_reused: bool,
    permit: OwnedSemaphorePermit,
}

/// The state of one client.
pub(super) struct ClientState<S: LockServer> {
    pub(super) server: S,
    pub(super) info: ServerInfo,
    pub(super) clock: Clock,
    pub(super) pusher: Pusher,
    permits: Arc<Semaphore>,
    /// Permits to open a session.
    opening: Semaphore,
    /// A session is no longer in use.
    returned: Notify,
    tables: Mutex<Tables<S>>,
}

struct Tables<S: LockServer> {
    attempts: HashMap<Owner, UnboundedSender<Call>>,
    /// The names of the keys in use, and by how many attempts.
    keys: HashMap<S::Key, (LockName, usize)>,
    /// Owners that have left before their acquire arrived, and until when that is remembered.
    tombstones: HashMap<Owner, Moment>,
    idle: Vec<S::Session>,
    is_closed: bool,
}

impl<S: LockServer> ClientState<S> {
    pub(super) fn new(server: S, info: ServerInfo, pusher: Pusher) -> Self {
        let tables = Tables {
            attempts: HashMap::new(),
            keys: HashMap::new(),
            tombstones: HashMap::new(),
            idle: Vec::new(),
            is_closed: false,
        };
        Self {
            server,
            clock: Clock::system(),
            pusher,
            permits: Arc::new(Semaphore::new(info.connections)),
            opening: Semaphore::new(info.max_opening),
            returned: Notify::new(),
            tables: Mutex::new(tables),
            info,
        }
    }

    fn tables(&self) -> MutexGuard<'_, Tables<S>> {
        self.tables.lock().unwrap_or_else(PoisonError::into_inner)
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
        let key = self.server.key(&attempt.wants[0].name)?;
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
        tokio::spawn(AttemptTask::new(self.clone(), attempt.clone(), key, (calls, timer)).run());
        Ok(())
    }

    /// Ends an attempt: its task takes no more requests.
    pub(super) fn end(&self, owner: Owner, key: Option<S::Key>) {
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
    pub(super) fn use_key(&self, key: S::Key, name: &LockName) -> Result<()> {
        let mut tables = self.tables();
        let (used_by, count) = tables.keys.entry(key).or_insert_with(|| (name.clone(), 0));
        if used_by != name {
            return Err(self.server.same_key(name, used_by));
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
    pub(super) async fn session(&self, permit: OwnedSemaphorePermit) -> Result<Lent<S::Session>> {
        let mut turn = pin!(self.opening.acquire());
        loop {
            if let Some(session) = self.take_idle() {
                return Ok(Lent { session, is_reused: true, permit });
            }
            tokio::select! {
                biased;
                () = self.returned.notified() => {}
                turn = &mut turn => {
                    let _turn = turn.map_err(|_| closed())?;
                    let session = self.server.open().await?;
                    return Ok(Lent { session, is_reused: false, permit });
                }
            }
        }
    }

    fn take_idle(&self) -> Option<S::Session> {
        let mut tables = self.tables();
        tables.idle.retain(LockSession::is_usable);
        tables.idle.pop()
    }

    /// Keeps a session without locks for the next attempt.
    pub(super) fn put_back(&self, lent: Lent<S::Session>) {
        let mut tables = self.tables();
        if !tables.is_closed && lent.session.is_usable() {
            tables.idle.push(lent.session);
            self.returned.notify_one();
        }
        drop(tables);
        drop(lent.permit);
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
        self.server.close().await;
    }
}

fn closed() -> Error {
    Error::new(ErrorKind::Closed, "the client is closed")
}
