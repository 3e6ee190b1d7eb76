//! One client's connection to a database: hands flights to the writer, and hears wake-ups.

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

use crate::inbox::{Inbox, Job};
use crate::locate::rows_of;
use crate::lookout::Waiters;
use crate::preflight::preflight_of;
use crate::wake::{FULL_QUEUE, LONGEST, Sockets, decode};

pub(crate) struct SqliteBackend {
    pub(crate) path: PathBuf,
    pub(crate) storage_id: StorageId,
    pub(crate) client: ClientId,
    pub(crate) inbox: Arc<Inbox>,
    pub(crate) sockets: Arc<Sockets>,
    /// What our own writer pushes.
    pub(crate) pushes: Pushes,
    /// Until the engine listens.
    pub(crate) ears: Mutex<Option<Ears>>,
}

/// Where pushes of other processes come in.
pub(crate) struct Ears {
    socket: UnixDatagram,
    inbox: Arc<Inbox>,
    waiters: Waiters,
    /// What came with one datagram.
    heard: VecDeque<Wakeup>,
    letters: Vec<u8>,
}

impl Ears {
    pub(crate) fn new(socket: UnixDatagram, inbox: Arc<Inbox>, waiters: Waiters) -> Self {
        Self { socket, inbox, waiters, heard: VecDeque::new(), letters: vec![0; LONGEST] }
    }

    async fn hear(mut self) -> Option<(Wakeup, Self)> {
        loop {
            if let Some(wakeup) = self.heard.pop_front() {
                return Some((wakeup, self));
            }
            self.socket.readable().await.ok()?;
            self.read_all();
        }
    }

    /// Empties the queue of the socket. If it was full, other datagrams may have been dropped before the first was read;
    /// what they told of is committed, so a look from now on finds it.
    fn read_all(&mut self) {
        let (mut count, mut look) = (0, false);
        while let Ok(length) = self.socket.try_recv(&mut self.letters) {
            count += 1;
            match decode(&self.letters[..length], &self.waiters) {
                Some(wakeups) => self.heard.extend(wakeups),
                None => look = true,
            }
        }
        if look || count >= FULL_QUEUE {
            self.inbox.push(Job::Look);
        }
    }
}

impl SqliteBackend {
    async fn ask<T>(&self, job: impl FnOnce(oneshot::Sender<T>) -> Job) -> Result<T> {
        let (answer, reply) = oneshot::channel();
        self.inbox.push(job(answer));
        reply.await.map_err(|_| Error::new(ErrorKind::Closed, "the database is closed"))
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
        info.flights = 2;
        info.batch = 1024;
        info
    }

    async fn execute(&self, ops: Vec<Op>) -> Vec<Result<Reply>> {
        let count = ops.len();
        match self.ask(|answer| Job::Execute((ops, answer))).await {
            Ok(replies) => replies,
            Err(error) => (0..count).map(|_| Err(error.clone())).collect(),
        }
    }

    fn wakeups(&self) -> BoxStream<'static, Wakeup> {
        match self.ears.lock().unwrap_or_else(PoisonError::into_inner).take() {
            Some(ears) => {
                stream::select(self.pushes.stream(), stream::unfold(ears, Ears::hear).boxed()).boxed()
            }
            None => stream::empty().boxed(),
        }
    }

    async fn inspect(&self, name: &LockName) -> Result<LockState> {
        let name = name.clone();
        self.ask(|answer| Job::Inspect { name, answer }).await?
    }

    async fn list(&self, prefix: &str, page: Page) -> Result<ListPage> {
        let prefix = prefix.to_owned();
        self.ask(|answer| Job::List { prefix, page, answer }).await?
    }

    async fn diagnose(&self) -> Vec<Finding> {
        let findings = self.ask(|answer| Job::Examine { answer }).await;
        findings.unwrap_or_else(|closed| vec![Finding::failed("answer", &closed)])
    }

    /// Only what is seen from outside: the rest was checked when the database was opened, but for its integrity, which takes
    /// the longer the larger the file is, and keeps the writer from its work.
    async fn warnings(&self) -> Vec<Finding> {
        Finding::concerns(preflight_of(&self.path))
    }

    async fn locate(&self, name: &LockName) -> Vec<Finding> {
        vec![rows_of(&self.path, name)]
    }

    async fn close(&self) {
        self.sockets.remove(self.client);
        let _ = self.ask(|answer| Job::Stop { answer }).await;
    }
}

impl Drop for SqliteBackend {
    fn drop(&mut self) {
        self.sockets.remove(self.client);
        let (answer, _) = oneshot::channel();
        self.inbox.push(Job::Stop { answer });
    }
}
