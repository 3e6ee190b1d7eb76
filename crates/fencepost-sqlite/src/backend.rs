//! The backend of one client: passes flights to the writer thread, and receives wake-ups.

use std::collections::VecDeque;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use fencepost_core::backend::{Backend, BackendInfo, ListPage, LockState, Op, Page, Reply, Scope, Wakeup};
use fencepost_core::push::Pushes;
use fencepost_core::record::ClientId;
use fencepost_core::{Error, ErrorKind, Finding, LockName, Result, StorageId};
use futures_util::StreamExt;
use futures_util::stream::{self, BoxStream};
use tokio::net::UnixDatagram;
use tokio::sync::oneshot;

use crate::diagnose::locate::rows_of;
use crate::diagnose::preflight::preflight_of;
use crate::inbox::{Inbox, Job};
use crate::waiter_poll::Waiters;
use crate::wake::{FULL_QUEUE, MAX_DATAGRAM, Sockets, decode};

pub(crate) struct SqliteBackend {
    pub(crate) path: PathBuf,
    pub(crate) storage_id: StorageId,
    pub(crate) client: ClientId,
    pub(crate) inbox: Arc<Inbox>,
    pub(crate) sockets: Arc<Sockets>,
    /// The wake-ups that this client's writer thread pushes.
    pub(crate) pushes: Pushes,
    /// The receiver of wake-ups, until the engine takes it.
    pub(crate) receiver: Mutex<Option<WakeupReceiver>>,
}

/// Receives the wake-ups that other processes send.
pub(crate) struct WakeupReceiver {
    socket: UnixDatagram,
    inbox: Arc<Inbox>,
    waiters: Waiters,
    received: VecDeque<Wakeup>,
    buffer: Vec<u8>,
}

impl WakeupReceiver {
    pub(crate) fn new(socket: UnixDatagram, inbox: Arc<Inbox>, waiters: Waiters) -> Self {
        Self { socket, inbox, waiters, received: VecDeque::new(), buffer: vec![0; MAX_DATAGRAM] }
    }

    async fn receive(mut self) -> Option<(Wakeup, Self)> {
        loop {
            if let Some(wakeup) = self.received.pop_front() {
                return Some((wakeup, self));
            }
            self.socket.readable().await.ok()?;
            self.read_all();
        }
    }

    /// Reads all datagrams in the socket's queue. If it was full, others may have been dropped before the first was read; what
    /// they announced is committed, so a poll finds it.
    fn read_all(&mut self) {
        let (mut count, mut is_poll_requested) = (0, false);
        while let Ok(length) = self.socket.try_recv(&mut self.buffer) {
            count += 1;
            match decode(&self.buffer[..length], &self.waiters) {
                Some(wakeups) => self.received.extend(wakeups),
                None => is_poll_requested = true,
            }
        }
        if is_poll_requested || count >= FULL_QUEUE {
            self.inbox.push(Job::Poll);
        }
    }
}

impl SqliteBackend {
    /// Sends a job to the writer thread and returns its reply.
    async fn request<T>(&self, job: impl FnOnce(oneshot::Sender<T>) -> Job) -> Result<T> {
        let (reply, receiver) = oneshot::channel();
        self.inbox.push(job(reply));
        receiver.await.map_err(|_| Error::new(ErrorKind::Closed, "the database is closed"))
    }
}

#[async_trait]
impl Backend for SqliteBackend {
    fn info(&self) -> BackendInfo {
        let mut info = BackendInfo::new(
            "sqlite",
            format!("sqlite:{}", self.path.display()),
            Scope::Host,
            self.storage_id,
        );
        info.min_ttl = Duration::from_millis(100);
        info.max_flights = 2;
        info.max_batch = 1024;
        info
    }

    async fn execute(&self, ops: Vec<Op>) -> Vec<Result<Reply>> {
        let count = ops.len();
        match self.request(|reply| Job::Execute((ops, reply))).await {
            Ok(replies) => replies,
            Err(error) => (0..count).map(|_| Err(error.clone())).collect(),
        }
    }

    fn wakeups(&self) -> BoxStream<'static, Wakeup> {
        match self.receiver.lock().unwrap_or_else(PoisonError::into_inner).take() {
            Some(receiver) => {
                let from_others = stream::unfold(receiver, WakeupReceiver::receive).boxed();
                stream::select(self.pushes.stream(), from_others).boxed()
            }
            None => stream::empty().boxed(),
        }
    }

    async fn inspect(&self, name: &LockName) -> Result<LockState> {
        let name = name.clone();
        self.request(|reply| Job::Inspect { name, reply }).await?
    }

    async fn list(&self, prefix: &str, page: Page) -> Result<ListPage> {
        let prefix = prefix.to_owned();
        self.request(|reply| Job::List { prefix, page, reply }).await?
    }

    async fn diagnose(&self) -> Vec<Finding> {
        let findings = self.request(|reply| Job::Diagnose { reply }).await;
        findings.unwrap_or_else(|closed| vec![Finding::failed("answer", &closed)])
    }

    /// Only checks from outside. The rest was checked when the database was opened, except its integrity, which takes time in
    /// proportion to the size of the file and blocks the writer thread.
    async fn warnings(&self) -> Vec<Finding> {
        Finding::concerns(preflight_of(&self.path))
    }

    async fn locate(&self, name: &LockName) -> Vec<Finding> {
        vec![rows_of(&self.path, name)]
    }

    async fn close(&self) {
        self.sockets.remove(self.client);
        let _ = self.request(|reply| Job::Stop { reply }).await;
    }
}

impl Drop for SqliteBackend {
    fn drop(&mut self) {
        self.sockets.remove(self.client);
        let (reply, _) = oneshot::channel();
        self.inbox.push(Job::Stop { reply });
    }
}
