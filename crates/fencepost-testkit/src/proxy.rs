//! What stands between one client and its storage and can be told to misbehave: the same faults on every storage.

use std::collections::HashMap;
use std::future::{Future, poll_fn};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};

use async_trait::async_trait;
use fencepost_core::backend::{Backend, BackendInfo, ListPage, LockState, Op, Page, Reply, Wakeup};
use fencepost_core::{Error, ErrorKind, Finding, LockName, Result};
use futures_util::StreamExt;
use futures_util::stream::{self, BoxStream};
use tokio::sync::watch;

pub use crate::op_kind::OpKind;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Road {
    Open,
    Cut,
    Stopped,
    Crashed,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Trouble {
    LoseRequest,
    LoseReply,
    Strand,
    StopBeforeReply,
    HoldReply,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Pushes {
    Arrive,
    Vanish,
    ArriveTwice,
}

struct Script {
    troubles: Vec<(OpKind, Trouble)>,
    stranded: Vec<Vec<Op>>,
    pushes: Pushes,
    counts: HashMap<OpKind, usize>,
    pushed: usize,
}

/// One client's way to its storage. Clones are the same way.
#[derive(Clone)]
pub struct Proxy(Arc<Shared>);

struct Shared {
    road: watch::Sender<Road>,
    /// Whether answers that were told to wait do so.
    replies_wait: watch::Sender<bool>,
    script: Mutex<Script>,
    backend: Mutex<Option<Arc<dyn Backend>>>,
    /// Here and not with the client's thread, so that a crash ends it at once.
    pushes: Mutex<Option<BoxStream<'static, Wakeup>>>,
}

impl Default for Proxy {
    fn default() -> Self {
        let script = Script {
            troubles: Vec::new(),
            stranded: Vec::new(),
            pushes: Pushes::Arrive,
            counts: HashMap::new(),
            pushed: 0,
        };
        Self(Arc::new(Shared {
            road: watch::Sender::new(Road::Open),
            replies_wait: watch::Sender::new(false),
            script: Mutex::new(script),
            backend: Mutex::new(None),
            pushes: Mutex::new(None),
        }))
    }
}

impl Proxy {
    /// Stands in front of the backend that is being made.
    pub async fn in_front_of(
        self,
        connecting: impl Future<Output = Result<Arc<dyn Backend>>>,
    ) -> Result<Arc<dyn Backend>> {
        let backend = connecting.await?;
        let info = backend.info();
        *lock(&self.0.backend) = Some(backend);
        Ok(Arc::new(ProxiedBackend { proxy: self, info }))
    }

    /// The process dies: nothing is sent any more, nothing is heard, and connections break.
    pub fn crash(&self) {
        self.0.road.send_replace(Road::Crashed);
        lock(&self.0.backend).take();
        lock(&self.0.pushes).take();
    }

    /// The storage is away for this client: what it sends fails at once, pushes wait.
    pub fn cut(&self) {
        self.0.road.send_replace(Road::Cut);
    }

    /// The process stands still: what it sends and what comes back waits, and so do pushes.
    pub fn pause(&self) {
        self.0.road.send_replace(Road::Stopped);
    }

    /// Everything goes on.
    pub fn resume(&self) {
        self.0.road.send_replace(Road::Open);
    }

    /// The next flight with such an operation gets lost before it arrives; nobody can tell.
    pub fn lose_request(&self, kind: OpKind) {
        self.script().troubles.push((kind, Trouble::LoseRequest));
    }

    /// The next flight with such an operation takes effect, but its answer gets lost.
    pub fn lose_reply(&self, kind: OpKind) {
        self.script().troubles.push((kind, Trouble::LoseReply));
    }

    /// The next flight with such an operation gets stuck on its way, until [`Proxy::deliver_stranded`]; the client
    /// is told that nothing is known about it.
    pub fn strand(&self, kind: OpKind) {
        self.script().troubles.push((kind, Trouble::Strand));
    }

    /// The process stands still between the sending of the next such operation and the reading of its answer.
    pub fn pause_before_reply(&self, kind: OpKind) {
        self.script().troubles.push((kind, Trouble::StopBeforeReply));
    }

    /// The next flight with such an operation takes effect; its answer waits until [`Proxy::release_replies`], and pushes
    /// overtake it.
    pub fn hold_reply(&self, kind: OpKind) {
        self.0.replies_wait.send_replace(true);
        self.script().troubles.push((kind, Trouble::HoldReply));
    }

    /// The answers that wait arrive now.
    pub fn release_replies(&self) {
        self.0.replies_wait.send_replace(false);
    }

    /// How many pushes have arrived.
    pub fn pushed(&self) -> usize {
        self.script().pushed
    }

    /// From now on pushes get lost.
    pub fn lose_pushes(&self) {
        self.script().pushes = Pushes::Vanish;
    }

    /// From now on every push comes twice.
    pub fn repeat_pushes(&self) {
        self.script().pushes = Pushes::ArriveTwice;
    }

    /// Whether every trouble has come to pass.
    pub fn all_faults_injected(&self) -> bool {
        self.script().troubles.is_empty()
    }

    /// Whether the process stands still.
    pub fn is_paused(&self) -> bool {
        *self.0.road.borrow() == Road::Stopped
    }

    /// What was stuck arrives now. Returns the storage's answers, which nobody waits for any more.
    pub async fn deliver_stranded(&self) -> Vec<Result<Reply>> {
        let stranded = std::mem::take(&mut self.script().stranded);
        let mut replies = Vec::new();
        for ops in stranded {
            if let Some(backend) = self.backend() {
                replies.extend(backend.execute(ops).await);
            }
        }
        replies
    }

    /// Executes an operation in the client's name of which its engine does not know.
    ///
    /// # Errors
    /// As the backend, or if the process has crashed.
    pub async fn execute_directly(&self, op: Op) -> Result<Reply> {
        let mut replies = self.reached().await?.execute(vec![op]).await;
        replies.pop().unwrap_or_else(|| Err(Error::new(ErrorKind::Backend, "there was no reply")))
    }

    /// How many operations of this kind the client has sent.
    pub fn count(&self, kind: OpKind) -> usize {
        self.script().counts.get(&kind).copied().unwrap_or(0)
    }

    /// How many operations the client has sent.
    pub fn count_all(&self) -> usize {
        self.script().counts.values().sum()
    }

    fn backend(&self) -> Option<Arc<dyn Backend>> {
        lock(&self.0.backend).clone()
    }

    fn script(&self) -> MutexGuard<'_, Script> {
        lock(&self.0.script)
    }

    fn trouble_for(&self, ops: &[Op]) -> Option<Trouble> {
        let mut script = self.script();
        for op in ops {
            *script.counts.entry(OpKind::of(op)).or_default() += 1;
        }
        let at = script.troubles.iter().position(|(kind, _)| ops.iter().any(|op| OpKind::of(op) == *kind))?;
        let (_, trouble) = script.troubles.remove(at);
        if trouble == Trouble::Strand {
            script.stranded.push(ops.to_vec());
        }
        Some(trouble)
    }

    /// Waits while the process stands still; then the backend, unless it cannot be reached.
    async fn way_through(&self) -> Option<Arc<dyn Backend>> {
        let mut road = self.0.road.subscribe();
        let open = road.wait_for(|road| *road != Road::Stopped).await.is_ok_and(|road| *road == Road::Open);
        if open { self.backend() } else { None }
    }

    async fn reached(&self) -> Result<Arc<dyn Backend>> {
        self.way_through()
            .await
            .ok_or_else(|| Error::new(ErrorKind::Unreachable, "the proxy has cut the way"))
    }

    /// Waits until pushes can come through; false if they never will.
    async fn lets_pushes_through(&self) -> bool {
        let mut road = self.0.road.subscribe();
        road.wait_for(|road| matches!(road, Road::Open | Road::Crashed))
            .await
            .is_ok_and(|road| *road == Road::Open)
    }

    fn poll_push(&self, cx: &mut Context<'_>) -> Poll<Option<Wakeup>> {
        match lock(&self.0.pushes).as_mut() {
            Some(pushes) => pushes.poll_next_unpin(cx),
            None => Poll::Ready(None),
        }
    }
}

fn lock<T>(shared: &Mutex<T>) -> MutexGuard<'_, T> {
    shared.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A backend behind a [`Proxy`].
struct ProxiedBackend {
    proxy: Proxy,
    info: BackendInfo,
}

fn all(ops: &[Op], kind: ErrorKind) -> Vec<Result<Reply>> {
    ops.iter().map(|_| Err(Error::new(kind, "the proxy was told to misbehave"))).collect()
}

#[async_trait]
impl Backend for ProxiedBackend {
    fn info(&self) -> BackendInfo {
        self.info.clone()
    }

    async fn execute(&self, ops: Vec<Op>) -> Vec<Result<Reply>> {
        let trouble = self.proxy.trouble_for(&ops);
        if matches!(trouble, Some(Trouble::LoseRequest | Trouble::Strand)) {
            return all(&ops, ErrorKind::OutcomeUnknown);
        }
        let Some(backend) = self.proxy.way_through().await else {
            return all(&ops, ErrorKind::Unreachable);
        };
        let replies = backend.execute(ops.clone()).await;
        drop(backend);
        if trouble == Some(Trouble::StopBeforeReply) {
            self.proxy.pause();
        }
        if trouble == Some(Trouble::HoldReply) {
            // It cannot fail: the proxy, which we have, holds the other end.
            let _ = self.proxy.0.replies_wait.subscribe().wait_for(|wait| !wait).await;
        }
        if trouble == Some(Trouble::LoseReply) || self.proxy.way_through().await.is_none() {
            return all(&ops, ErrorKind::OutcomeUnknown);
        }
        replies
    }

    fn wakeups(&self) -> BoxStream<'static, Wakeup> {
        if let Some(backend) = self.proxy.backend() {
            *lock(&self.proxy.0.pushes) = Some(backend.wakeups());
        }
        let pushes = stream::unfold(self.proxy.clone(), |proxy| async move {
            let push = poll_fn(|cx| proxy.poll_push(cx)).await?;
            if !proxy.lets_pushes_through().await {
                return None;
            }
            let pushes = proxy.script().pushes;
            let arriving = match pushes {
                Pushes::Arrive => vec![push],
                Pushes::Vanish => Vec::new(),
                Pushes::ArriveTwice => vec![push.clone(), push],
            };
            proxy.script().pushed += arriving.len();
            Some((stream::iter(arriving), proxy))
        });
        pushes.flatten().boxed()
    }

    async fn inspect(&self, name: &LockName) -> Result<LockState> {
        self.proxy.reached().await?.inspect(name).await
    }

    async fn list(&self, prefix: &str, page: Page) -> Result<ListPage> {
        self.proxy.reached().await?.list(prefix, page).await
    }

    async fn diagnose(&self) -> Vec<Finding> {
        match self.proxy.reached().await {
            Ok(backend) => backend.diagnose().await,
            Err(cut) => vec![Finding::failed("answer", &cut)],
        }
    }

    async fn locate(&self, name: &LockName) -> Vec<Finding> {
        match self.proxy.reached().await {
            Ok(backend) => backend.locate(name).await,
            Err(cut) => vec![Finding::failed("answer", &cut)],
        }
    }

    async fn close(&self) {
        let backend = self.proxy.backend();
        if let Some(backend) = backend {
            backend.close().await;
        }
    }
}
