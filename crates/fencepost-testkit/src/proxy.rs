//! A proxy between one client and its backend that injects faults: the same ones on every backend.

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
enum Link {
    Open,
    Cut,
    Paused,
    Crashed,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fault {
    LoseRequest,
    LoseReply,
    Strand,
    PauseBeforeReply,
    HoldReply,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Pushes {
    Deliver,
    Drop,
    DeliverTwice,
}

struct Script {
    faults: Vec<(OpKind, Fault)>,
    stranded: Vec<Vec<Op>>,
    pushes: Pushes,
    counts: HashMap<OpKind, usize>,
    pushed: usize,
}

/// The connection of one client to its backend. Clones share it.
#[derive(Clone)]
pub struct Proxy(Arc<Shared>);

struct Shared {
    link: watch::Sender<Link>,
    /// Whether the replies of [`Proxy::hold_reply`] are held back.
    replies_wait: watch::Sender<bool>,
    script: Mutex<Script>,
    backend: Mutex<Option<Arc<dyn Backend>>>,
    /// Kept here and not by the client's thread, so that a crash ends it at once.
    pushes: Mutex<Option<BoxStream<'static, Wakeup>>>,
}

impl Default for Proxy {
    fn default() -> Self {
        let script = Script {
            faults: Vec::new(),
            stranded: Vec::new(),
            pushes: Pushes::Deliver,
            counts: HashMap::new(),
            pushed: 0,
        };
        Self(Arc::new(Shared {
            link: watch::Sender::new(Link::Open),
            replies_wait: watch::Sender::new(false),
            script: Mutex::new(script),
            backend: Mutex::new(None),
            pushes: Mutex::new(None),
        }))
    }
}

impl Proxy {
    /// Wraps the backend that is being connected.
    pub async fn in_front_of(
        self,
        connecting: impl Future<Output = Result<Arc<dyn Backend>>>,
    ) -> Result<Arc<dyn Backend>> {
        let backend = connecting.await?;
        let info = backend.info();
        *lock(&self.0.backend) = Some(backend);
        Ok(Arc::new(ProxiedBackend { proxy: self, info }))
    }

    /// Simulates the death of the process: nothing is sent or received any more, and connections are closed.
    pub fn crash(&self) {
        self.0.link.send_replace(Link::Crashed);
        lock(&self.0.backend).take();
        lock(&self.0.pushes).take();
    }

    /// Makes the backend unreachable for this client: requests fail at once, pushes wait.
    pub fn cut(&self) {
        self.0.link.send_replace(Link::Cut);
    }

    /// Simulates a paused process: requests, replies and pushes wait.
    pub fn pause(&self) {
        self.0.link.send_replace(Link::Paused);
    }

    /// Ends [`Proxy::cut`] and [`Proxy::pause`].
    pub fn resume(&self) {
        self.0.link.send_replace(Link::Open);
    }

    /// Drops the next flight with such an operation before it arrives; its outcome is unknown to the client.
    pub fn lose_request(&self, kind: OpKind) {
        self.script().faults.push((kind, Fault::LoseRequest));
    }

    /// Executes the next flight with such an operation, and drops its replies.
    pub fn lose_reply(&self, kind: OpKind) {
        self.script().faults.push((kind, Fault::LoseReply));
    }

    /// Delays the next flight with such an operation until [`Proxy::deliver_stranded`]; its outcome is unknown to the
    /// client.
    pub fn strand(&self, kind: OpKind) {
        self.script().faults.push((kind, Fault::Strand));
    }

    /// Pauses the process between the sending of the next such operation and the reading of its reply.
    pub fn pause_before_reply(&self, kind: OpKind) {
        self.script().faults.push((kind, Fault::PauseBeforeReply));
    }

    /// Executes the next flight with such an operation; its replies wait until [`Proxy::release_replies`], and pushes
    /// overtake them.
    pub fn hold_reply(&self, kind: OpKind) {
        self.0.replies_wait.send_replace(true);
        self.script().faults.push((kind, Fault::HoldReply));
    }

    /// Delivers the replies that were held back.
    pub fn release_replies(&self) {
        self.0.replies_wait.send_replace(false);
    }

    /// Returns how many pushes have arrived.
    pub fn pushed(&self) -> usize {
        self.script().pushed
    }

    /// Drops all pushes from now on.
    pub fn lose_pushes(&self) {
        self.script().pushes = Pushes::Drop;
    }

    /// Delivers every push twice from now on.
    pub fn repeat_pushes(&self) {
        self.script().pushes = Pushes::DeliverTwice;
    }

    /// Returns whether every fault was injected.
    pub fn all_faults_injected(&self) -> bool {
        self.script().faults.is_empty()
    }

    /// Returns whether the process is paused.
    pub fn is_paused(&self) -> bool {
        *self.0.link.borrow() == Link::Paused
    }

    /// Delivers the delayed flights. Returns their replies, which no caller waits for any more.
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

    /// Executes an operation as this client, without its engine.
    ///
    /// # Errors
    /// As the backend, or if the process has crashed.
    pub async fn execute_directly(&self, op: Op) -> Result<Reply> {
        let mut replies = self.reachable_backend().await?.execute(vec![op]).await;
        replies.pop().unwrap_or_else(|| Err(Error::new(ErrorKind::Backend, "there was no reply")))
    }

    /// Returns how many operations of this kind the client has sent.
    pub fn count(&self, kind: OpKind) -> usize {
        self.script().counts.get(&kind).copied().unwrap_or(0)
    }

    /// Returns how many operations the client has sent.
    pub fn count_all(&self) -> usize {
        self.script().counts.values().sum()
    }

    fn backend(&self) -> Option<Arc<dyn Backend>> {
        lock(&self.0.backend).clone()
    }

    fn script(&self) -> MutexGuard<'_, Script> {
        lock(&self.0.script)
    }

    fn fault_for(&self, ops: &[Op]) -> Option<Fault> {
        let mut script = self.script();
        for op in ops {
            *script.counts.entry(OpKind::of(op)).or_default() += 1;
        }
        let at = script.faults.iter().position(|(kind, _)| ops.iter().any(|op| OpKind::of(op) == *kind))?;
        let (_, fault) = script.faults.remove(at);
        if fault == Fault::Strand {
            script.stranded.push(ops.to_vec());
        }
        Some(fault)
    }

    /// Waits while the process is paused; then returns the backend, unless it is unreachable.
    async fn open_backend(&self) -> Option<Arc<dyn Backend>> {
        let mut link = self.0.link.subscribe();
        let open = link.wait_for(|link| *link != Link::Paused).await.is_ok_and(|link| *link == Link::Open);
        if open { self.backend() } else { None }
    }

    async fn reachable_backend(&self) -> Result<Arc<dyn Backend>> {
        self.open_backend()
            .await
            .ok_or_else(|| Error::new(ErrorKind::Unreachable, "the connection was cut by the proxy"))
    }

    /// Waits until pushes can be delivered; returns false if they never will.
    async fn delivers_pushes(&self) -> bool {
        let mut link = self.0.link.subscribe();
        link.wait_for(|link| matches!(link, Link::Open | Link::Crashed))
            .await
            .is_ok_and(|link| *link == Link::Open)
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
    ops.iter().map(|_| Err(Error::new(kind, "a fault was injected by the proxy"))).collect()
}

#[async_trait]
impl Backend for ProxiedBackend {
    fn info(&self) -> BackendInfo {
        self.info.clone()
    }

    async fn execute(&self, ops: Vec<Op>) -> Vec<Result<Reply>> {
        let fault = self.proxy.fault_for(&ops);
        if matches!(fault, Some(Fault::LoseRequest | Fault::Strand)) {
            return all(&ops, ErrorKind::OutcomeUnknown);
        }
        let Some(backend) = self.proxy.open_backend().await else {
            return all(&ops, ErrorKind::Unreachable);
        };
        let replies = backend.execute(ops.clone()).await;
        drop(backend);
        if fault == Some(Fault::PauseBeforeReply) {
            self.proxy.pause();
        }
        if fault == Some(Fault::HoldReply) {
            // Cannot fail: the proxy holds the sender.
            let _ = self.proxy.0.replies_wait.subscribe().wait_for(|wait| !wait).await;
        }
        if fault == Some(Fault::LoseReply) || self.proxy.open_backend().await.is_none() {
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
            if !proxy.delivers_pushes().await {
                return None;
            }
            let pushes = proxy.script().pushes;
            let arriving = match pushes {
                Pushes::Deliver => vec![push],
                Pushes::Drop => Vec::new(),
                Pushes::DeliverTwice => vec![push.clone(), push],
            };
            proxy.script().pushed += arriving.len();
            Some((stream::iter(arriving), proxy))
        });
        pushes.flatten().boxed()
    }

    async fn inspect(&self, name: &LockName) -> Result<LockState> {
        self.proxy.reachable_backend().await?.inspect(name).await
    }

    async fn list(&self, prefix: &str, page: Page) -> Result<ListPage> {
        self.proxy.reachable_backend().await?.list(prefix, page).await
    }

    async fn diagnose(&self) -> Vec<Finding> {
        match self.proxy.reachable_backend().await {
            Ok(backend) => backend.diagnose().await,
            Err(cut) => vec![Finding::failed("answer", &cut)],
        }
    }

    async fn locate(&self, name: &LockName) -> Vec<Finding> {
        match self.proxy.reachable_backend().await {
            Ok(backend) => backend.locate(name).await,
            Err(cut) => vec![Finding::failed("answer", &cut)],
        }
    }

    async fn sweep(&self) -> Result<Option<u64>> {
        self.proxy.reachable_backend().await?.sweep().await
    }

    async fn close(&self) {
        let backend = self.proxy.backend();
        if let Some(backend) = backend {
            backend.close().await;
        }
    }
}
