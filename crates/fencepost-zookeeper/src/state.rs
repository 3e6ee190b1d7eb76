//! The state of one client: its sessions, its registry, its background tasks and the channel for wake-ups.

use std::collections::HashMap;
use std::future::Future;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use fencepost_core::backend::Wakeup;
use fencepost_core::clock::Clock;
use fencepost_core::push::Pusher;
use fencepost_core::{Error, ErrorKind, Finding, LockName, LostReason, Result, StorageId};
use tokio::sync::OnceCell;
use tokio::task::JoinSet;

use crate::about;
use crate::ensemble::Ensemble;
use crate::maintenance;
use crate::registry::Registry;
use crate::session::Session;

/// How long closing waits until the owners of broken grants have read their notices.
const BREAK_NOTICE_TIMEOUT: Duration = Duration::from_millis(250);

/// The maximum number of locks with a stored remark.
const MAX_REMARKS: usize = 256;

type Slot = Arc<OnceCell<Arc<Session>>>;

/// The state of one client.
#[derive(Debug)]
pub(crate) struct ClientState {
    pub(crate) ensemble: Ensemble,
    pub(crate) clock: Clock,
    sessions: Mutex<HashMap<Duration, Slot>>,
    registry: Mutex<Registry>,
    tasks: Mutex<JoinSet<()>>,
    /// The nodes that notify owners that this client broke their grants. The owner deletes its notice after reading it;
    /// otherwise it ends with this client's session.
    break_notices: Mutex<Vec<String>>,
    /// Remarks about locks, until they are taken.
    remarks: Mutex<HashMap<LockName, Finding>>,
    pusher: Pusher,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl ClientState {
    pub(crate) fn new(ensemble: Ensemble, pusher: Pusher) -> Self {
        Self {
            ensemble,
            clock: Clock::system(),
            sessions: Mutex::default(),
            registry: Mutex::new(Registry::new(pusher.clone())),
            tasks: Mutex::default(),
            break_notices: Mutex::default(),
            remarks: Mutex::default(),
            pusher,
        }
    }

    pub(crate) fn registry(&self) -> MutexGuard<'_, Registry> {
        lock(&self.registry)
    }

    pub(crate) fn push(&self, wakeup: Wakeup) {
        self.pusher.push(wakeup);
    }

    /// Runs a task that ends with this client.
    pub(crate) fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) {
        let mut tasks = lock(&self.tasks);
        while tasks.try_join_next().is_some() {}
        tasks.spawn(task);
    }

    /// Returns the storage id. Creates and converts the chroot unless it must exist.
    pub(crate) async fn storage_id(self: &Arc<Self>, must_exist: bool) -> Result<StorageId> {
        let client = self.ensemble.connect_control().await?;
        about::storage_id(&self.ensemble, &client, must_exist).await
    }

    /// Returns the control session, connected.
    pub(crate) async fn control_session(self: &Arc<Self>) -> Result<Arc<Session>> {
        self.session(Duration::ZERO).await
    }

    /// Returns the session for leases of this ttl, connected. Opens one if there is none.
    pub(crate) async fn session(self: &Arc<Self>, ttl: Duration) -> Result<Arc<Session>> {
        if let Some(session) = self.existing_session(ttl) {
            match session.wait_connected(&self.ensemble, &self.clock).await {
                Ok(()) => return Ok(session),
                // The session ended while it was disconnected: a new one is opened.
                Err(_) if session.is_over() => {}
                Err(error) => return Err(error),
            }
            // This removes the ended session.
            drop(self.existing_session(ttl));
        }
        let slot = lock(&self.sessions).entry(ttl).or_default().clone();
        let session = slot.get_or_try_init(|| self.open_session(ttl)).await?.clone();
        session.touch(self.clock.now());
        Ok(session)
    }

    /// Returns the session for leases of this ttl, if there is one that is not over.
    fn existing_session(&self, ttl: Duration) -> Option<Arc<Session>> {
        let mut sessions = lock(&self.sessions);
        let session = sessions.get(&ttl)?.get()?.clone();
        if session.is_over() {
            sessions.remove(&ttl);
            return None;
        }
        session.touch(self.clock.now());
        Some(session)
    }

    async fn open_session(self: &Arc<Self>, ttl: Duration) -> Result<Arc<Session>> {
        let session = Arc::new(Session::open(&self.ensemble, ttl, &self.clock).await?);
        session.touch(self.clock.now());
        if !ttl.is_zero() {
            self.spawn(maintenance::maintain(
                Arc::downgrade(self),
                Arc::downgrade(&session),
                session.states(),
            ));
            if self.ensemble.range.has_followers {
                let (interval, clock) = (self.ensemble.range.probe_interval(ttl), self.clock.clone());
                self.spawn(maintenance::probe_periodically(Arc::downgrade(&session), interval, clock));
            }
        }
        Ok(session)
    }

    /// Drops a session that was not used for its whole timeout and has no entries. Returns whether it did.
    pub(crate) fn drop_if_idle(&self, session: &Arc<Session>) -> bool {
        let mut sessions = lock(&self.sessions);
        let is_idle = session.last_used() + session.timeout() < self.clock.now();
        // The slot and the caller hold one reference each; every entry holds another.
        let is_unused = is_idle && Arc::strong_count(session) <= 2;
        if is_unused {
            sessions.remove(&session.ttl);
        }
        is_unused
    }

    /// Removes a session that is over, and everything in it.
    pub(crate) fn on_session_over(&self, session: &Arc<Session>, reason: LostReason) {
        let is_same = |slot: &Slot| slot.get().is_some_and(|there| Arc::ptr_eq(there, session));
        lock(&self.sessions).retain(|_, slot| !is_same(slot));
        session.abandon();
        self.registry().remove_session(session, reason);
    }

    /// Records the node of a break notice.
    pub(crate) fn add_break_notice(&self, node: &str) {
        lock(&self.break_notices).push(node.to_owned());
    }

    /// Stores a remark about a lock.
    pub(crate) fn remark(&self, name: &LockName, finding: Finding) {
        let mut remarks = lock(&self.remarks);
        // Bounded for programs that never take their remarks.
        if remarks.len() < MAX_REMARKS {
            remarks.insert(name.clone(), finding);
        }
    }

    /// Removes and returns the remark about a lock.
    pub(crate) fn take_remark(&self, name: &LockName) -> Option<Finding> {
        lock(&self.remarks).remove(name)
    }

    /// Waits until the owners of broken grants have read their notices, but not for long: their processes may be dead.
    pub(crate) async fn wait_for_break_notices(&self) {
        let break_notices = std::mem::take(&mut *lock(&self.break_notices));
        let control = lock(&self.sessions).get(&Duration::ZERO).and_then(|slot| slot.get().cloned());
        let Some(session) = control.filter(|_| !break_notices.is_empty()) else { return };
        let read = async {
            for node in break_notices {
                while let Ok((Some(_), watcher)) = session.client.check_and_watch_stat(&node).await {
                    watcher.changed().await;
                }
            }
        };
        tokio::select! {
            () = read => {}
            _ = self.clock.sleep_until(self.clock.now() + BREAK_NOTICE_TIMEOUT) => {}
        }
    }

    /// Removes and returns all sessions, and stops all tasks.
    pub(crate) fn take_sessions(&self) -> Vec<Arc<Session>> {
        lock(&self.tasks).abort_all();
        *self.registry() = Registry::new(self.pusher.clone());
        let slots: Vec<Slot> = lock(&self.sessions).drain().map(|(_, slot)| slot).collect();
        slots.into_iter().filter_map(|slot| slot.get().cloned()).collect()
    }

    /// Returns the path of a lock's node, the parent of its contenders.
    pub(crate) fn lock_path(&self, name: &LockName) -> String {
        self.ensemble.layout.lock(name)
    }

    /// Returns the error for nodes that disappeared after they were created.
    pub(crate) fn node_removed(&self) -> Error {
        Error::new(
            ErrorKind::Unreachable,
            format!("another client removed the node of this attempt in {}", self.ensemble.location),
        )
    }
}
