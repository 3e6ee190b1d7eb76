//! What both prototypes share: a backend that executes flights of acquires, checks, leaves, renewals and releases of one
//! exclusive lock each, for the waiters of its own process. What a lock needs besides (modes, several names, cells, tombstones,
//! other processes, lost connections) is left out, so that the figures are upper bounds of the design.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use fencepost_core::backend::{Backend, BackendInfo, ListPage, LockState, Op, Page, Reply, Scope, Wakeup};
use fencepost_core::push::{self, Pusher, Pushes};
use fencepost_core::{Error, ErrorKind, LockName, Result, StorageId};
use futures_util::stream::BoxStream;
use tokio::sync::{Mutex, MutexGuard};

/// As many as the shipped backends have in use at the same time.
pub(crate) const CONNECTIONS: usize = 2;

/// The result of a flight: a reply to each operation, and pushes to waiters of this client.
pub(crate) type Flown = Result<(Vec<Reply>, Vec<Wakeup>)>;

/// A design of where the rules run.
#[async_trait]
pub(crate) trait Prototype: Send + Sync + 'static {
    /// Executes the operations in one transaction.
    async fn fly(&self, ops: &[Op]) -> Flown;
}

/// A prototype as the backend of one client.
pub(crate) struct PrototypeBackend<P> {
    prototype: P,
    storage_id: StorageId,
    pusher: Pusher,
    pushes: Pushes,
}

impl<P: Prototype> PrototypeBackend<P> {
    pub(crate) fn start(prototype: P) -> Arc<dyn Backend> {
        let (pusher, wakeups) = push::channel();
        Arc::new(Self { prototype, storage_id: StorageId::random(), pusher, pushes: wakeups })
    }
}

#[async_trait]
impl<P: Prototype> Backend for PrototypeBackend<P> {
    fn info(&self) -> BackendInfo {
        let mut info = BackendInfo::new("trial", "trial:", Scope::Process, self.storage_id);
        info.max_flights = CONNECTIONS;
        info
    }

    async fn execute(&self, ops: Vec<Op>) -> Vec<Result<Reply>> {
        match self.prototype.fly(&ops).await {
            Ok((replies, wakeups)) => {
                for wakeup in wakeups {
                    self.pusher.push(wakeup);
                }
                replies.into_iter().map(Ok).collect()
            }
            Err(error) => ops.iter().map(|_| Err(error.clone())).collect(),
        }
    }

    fn wakeups(&self) -> BoxStream<'static, Wakeup> {
        self.pushes.stream()
    }

    async fn inspect(&self, _name: &LockName) -> Result<LockState> {
        Err(failed("it is a prototype"))
    }

    async fn list(&self, _prefix: &str, _page: Page) -> Result<ListPage> {
        Err(failed("it is a prototype"))
    }

    async fn close(&self) {}
}

/// Returns the one error that prototypes have.
pub(crate) fn failed(why: impl std::fmt::Display) -> Error {
    Error::new(ErrorKind::Backend, format!("the trial failed: {why}"))
}

/// The connections of a prototype, each used by one flight at a time.
pub(crate) struct Connections<C>([Mutex<C>; CONNECTIONS]);

impl<C> Connections<C> {
    pub(crate) fn new(connections: [C; CONNECTIONS]) -> Self {
        Self(connections.map(Mutex::new))
    }

    /// Returns a connection that is not in use.
    pub(crate) async fn get(&self) -> MutexGuard<'_, C> {
        let free = self.0.iter().find_map(|connection| connection.try_lock().ok());
        match free {
            Some(connection) => connection,
            None => self.0[0].lock().await,
        }
    }
}

/// Returns the name of the only lock of an operation.
pub(crate) fn name_of(op: &Op) -> Result<&LockName> {
    op.names().next().ok_or_else(|| failed("an operation without a name"))
}

/// When a waiter checks: long after every bench has ended, as each is woken by a push.
pub(crate) const CHECK_AFTER: Duration = Duration::from_secs(10);
