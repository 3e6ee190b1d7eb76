//! What the parts of one client share: its sessions, its entries, and where its pushes go.

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
use crate::registry::Registry;
use crate::session::Session;
use crate::setup::Setup;
use crate::tender;

/// For how long it is waited that an owner reads that its grant was broken.
const READ: Duration = Duration::from_millis(250);

/// How many locks are remembered of which something was noticed.
const MOST_REMARKS: usize = 256;

type Slot = Arc<OnceCell<Arc<Session>>>;

/// What the parts of one client share.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) setup: Setup,
    pub(crate) clock: Clock,
    sessions: Mutex<HashMap<Duration, Slot>>,
    registry: Mutex<Registry>,
    tasks: Mutex<JoinSet<()>>,
    /// What tells owners that their grants were broken by us; it goes when they have read it, or with us.
    told: Mutex<Vec<String>>,
    /// What was noticed about locks, until it is asked for.
    remarks: Mutex<HashMap<LockName, Finding>>,
    push: Pusher,
}

fn lock<T>(shared: &Mutex<T>) -> MutexGuard<'_, T> {
    shared.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Shared {
    pub(crate) fn new(setup: Setup, push: Pusher) -> Self {
        Self {
            setup,
            clock: Clock::system(),
            sessions: Mutex::default(),
            registry: Mutex::new(Registry::new(push.clone())),
            tasks: Mutex::default(),
            told: Mutex::default(),
            remarks: Mutex::default(),
            push,
        }
    }

    pub(crate) fn registry(&self) -> MutexGuard<'_, Registry> {
        lock(&self.registry)
    }

    pub(crate) fn push(&self, wakeup: Wakeup) {
        self.push.push(wakeup);
    }

    /// Lets something run that ends with this client.
    pub(crate) fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) {
        let mut tasks = lock(&self.tasks);
        while tasks.try_join_next().is_some() {}
        tasks.spawn(task);
    }

    /// Which storage this is. Makes the session in which nothing is held, and what must be there.
    pub(crate) async fn storage_id(self: &Arc<Self>, existing: bool) -> Result<StorageId> {
        let client = self.setup.connect_to_look().await?;
        about::storage_id(&self.setup, &client, existing).await
    }

    /// The session in which nothing is held, connected.
    pub(crate) async fn looking(self: &Arc<Self>) -> Result<Arc<Session>> {
        self.session(Duration::ZERO).await
    }

    /// The session for leases of this length, connected. It is opened if there is none.
    pub(crate) async fn session(self: &Arc<Self>, ttl: Duration) -> Result<Arc<Session>> {
        if let Some(session) = self.open_session(ttl) {
            match session.connected(&self.setup, &self.clock).await {
                Ok(()) => return Ok(session),
                // It came back only to hear that it has ended: the next one is not to blame.
                Err(_) if session.is_over() => {}
                Err(away) => return Err(away),
            }
            drop(self.open_session(ttl));
        }
        let slot = lock(&self.sessions).entry(ttl).or_default().clone();
        let session = slot.get_or_try_init(|| self.begin(ttl)).await?.clone();
        session.touch(self.clock.now());
        Ok(session)
    }

    /// The session for leases of this length, if there is one that is not over.
    fn open_session(&self, ttl: Duration) -> Option<Arc<Session>> {
        let mut sessions = lock(&self.sessions);
        let session = sessions.get(&ttl)?.get()?.clone();
        if session.is_over() {
            sessions.remove(&ttl);
            return None;
        }
        session.touch(self.clock.now());
        Some(session)
    }

    async fn begin(self: &Arc<Self>, ttl: Duration) -> Result<Arc<Session>> {
        let session = Arc::new(Session::open(&self.setup, ttl, &self.clock).await?);
        session.touch(self.clock.now());
        if !ttl.is_zero() {
            self.spawn(tender::tend(Arc::downgrade(self), Arc::downgrade(&session), session.states()));
            if self.setup.range.has_followers {
                let (pause, clock) = (self.setup.range.pause(ttl), self.clock.clone());
                self.spawn(tender::keep_probing(Arc::downgrade(&session), pause, clock));
            }
        }
        Ok(session)
    }

    /// Gives up a session that was not used for its whole time and in which nothing is left.
    pub(crate) fn give_up_idle(&self, session: &Arc<Session>) -> bool {
        let mut sessions = lock(&self.sessions);
        let is_idle = session.used() + session.timeout() < self.clock.now();
        // The slot and the caller hold it, and every entry in it.
        let gives_up = is_idle && Arc::strong_count(session) <= 2;
        if gives_up {
            sessions.remove(&session.ttl);
        }
        gives_up
    }

    /// Forgets a session that is over, and everything in it.
    pub(crate) fn session_is_over(&self, session: &Arc<Session>, why: LostReason) {
        let is_it = |slot: &Slot| slot.get().is_some_and(|there| Arc::ptr_eq(there, session));
        lock(&self.sessions).retain(|_, slot| !is_it(slot));
        session.give_up();
        self.registry().end(session, why);
    }

    /// Remembers that an owner is told of its loss by this node.
    pub(crate) fn tell(&self, node: &str) {
        lock(&self.told).push(node.to_owned());
    }

    /// Remembers what was noticed about a lock.
    pub(crate) fn remark(&self, name: &LockName, finding: Finding) {
        let mut remarks = lock(&self.remarks);
        // A program that never asks does not pay for it.
        if remarks.len() < MOST_REMARKS {
            remarks.insert(name.clone(), finding);
        }
    }

    /// Returns what was noticed about a lock, and forgets it.
    pub(crate) fn take_remark(&self, name: &LockName) -> Option<Finding> {
        lock(&self.remarks).remove(name)
    }

    /// Waits until those who were told have read it, but not for long: they may be dead.
    pub(crate) async fn until_read(&self) {
        let told = std::mem::take(&mut *lock(&self.told));
        let looking = lock(&self.sessions).get(&Duration::ZERO).and_then(|slot| slot.get().cloned());
        let Some(session) = looking.filter(|_| !told.is_empty()) else { return };
        let read = async {
            for node in told {
                while let Ok((Some(_), watcher)) = session.client.check_and_watch_stat(&node).await {
                    watcher.changed().await;
                }
            }
        };
        tokio::select! {
            () = read => {}
            _ = self.clock.sleep_until(self.clock.now() + READ) => {}
        }
    }

    /// All sessions, which are no longer used then, and everything that ran for them has ended.
    pub(crate) fn take_sessions(&self) -> Vec<Arc<Session>> {
        lock(&self.tasks).abort_all();
        *self.registry() = Registry::new(self.push.clone());
        let slots: Vec<Slot> = lock(&self.sessions).drain().map(|(_, slot)| slot).collect();
        slots.into_iter().filter_map(|slot| slot.get().cloned()).collect()
    }

    /// The node of this lock that has all contenders below it.
    pub(crate) fn line(&self, name: &LockName) -> String {
        self.setup.paths.lock(name)
    }

    /// What it means that nodes which were just made have vanished.
    pub(crate) fn vanished(&self) -> Error {
        Error::new(ErrorKind::Unreachable, format!("somebody removed our node in {}", self.setup.location))
    }
}
