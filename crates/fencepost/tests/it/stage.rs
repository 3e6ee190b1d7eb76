//! Where the layers are watched: a storage in memory on a clock that stands still, under a name of its own.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use fencepost::clock::ManualClock;
use fencepost::memory::Memory;
use fencepost::{Client, Finding, Guard, ListPage, LockName, LockState, Options, Page, Result};
use fencepost_core::backend::{Backend, BackendInfo, Op, Reply, Wakeup};
use fencepost_testkit::proxy::Proxy;
use fencepost_testkit::suite::under_watchdog;
use fencepost_testkit::wait;
use futures_util::stream::BoxStream;
use tokio::task::JoinHandle;

/// The lease of every lock.
pub(crate) const TTL: Duration = Duration::from_secs(12);

/// A storage, its clock, and what it calls itself.
#[derive(Clone)]
pub(crate) struct Stage {
    pub(crate) scheme: &'static str,
    pub(crate) memory: Memory,
    pub(crate) clock: ManualClock,
}

/// Runs a test on a fresh stage. Metrics of the whole process lie in one heap, so each test has a scheme of its own.
pub(crate) fn on_stage(scheme: &'static str, test: impl AsyncFnOnce(Stage) + Send + 'static) {
    under_watchdog(scheme, move || {
        let runtime =
            tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        let clock = ManualClock::new();
        let memory = Memory::with_clock(clock.clone());
        runtime.block_on(test(Stage { scheme, memory, clock }));
    });
}

impl Stage {
    pub(crate) fn client(&self) -> Client {
        self.client_with(Options::new())
    }

    pub(crate) fn client_with(&self, options: Options) -> Client {
        options.clock(self.clock.clone()).client(Arc::new(self.backend())).unwrap()
    }

    /// A client whose way to the storage can be blocked.
    pub(crate) async fn proxied(&self, options: Options) -> (Client, Proxy) {
        let proxy = Proxy::default();
        let backend: Arc<dyn Backend> = Arc::new(self.backend());
        let connecting = proxy.clone().in_front_of(std::future::ready(Ok(backend)));
        (options.clock(self.clock.clone()).connect(connecting).await.unwrap(), proxy)
    }

    fn backend(&self) -> Named {
        Named { scheme: self.scheme, inner: Arc::new(self.memory.backend()) }
    }

    /// Waits for a lock in a task of its own, and returns when it stands in line.
    pub(crate) async fn in_line(&self, client: &Client, name: &str) -> JoinHandle<Result<Guard>> {
        let before = self.memory.count().tickets;
        let lock = client.lock(name).ttl(TTL);
        let waiter = tokio::spawn(async move { lock.acquire().await });
        wait::until("it stands in line", async || self.memory.count().tickets > before).await;
        waiter
    }

    /// Moves the clock on second by second until the task is over, and returns how many it took.
    pub(crate) async fn seconds_until_over<T>(&self, task: &JoinHandle<T>) -> u32 {
        let mut seconds = 0;
        wait::until("the task is over", async || {
            if !task.is_finished() {
                self.clock.advance(Duration::from_secs(1));
                seconds += 1;
            }
            task.is_finished()
        })
        .await;
        seconds
    }
}

/// A backend under another name.
struct Named {
    scheme: &'static str,
    inner: Arc<dyn Backend>,
}

#[async_trait]
impl Backend for Named {
    fn info(&self) -> BackendInfo {
        let mut info = self.inner.info();
        info.scheme = self.scheme;
        info
    }

    async fn execute(&self, ops: Vec<Op>) -> Vec<Result<Reply>> {
        self.inner.execute(ops).await
    }

    fn wakeups(&self) -> BoxStream<'static, Wakeup> {
        self.inner.wakeups()
    }

    async fn inspect(&self, name: &LockName) -> Result<LockState> {
        self.inner.inspect(name).await
    }

    async fn list(&self, prefix: &str, page: Page) -> Result<ListPage> {
        self.inner.list(prefix, page).await
    }

    async fn diagnose(&self) -> Vec<Finding> {
        self.inner.diagnose().await
    }

    async fn locate(&self, name: &LockName) -> Vec<Finding> {
        self.inner.locate(name).await
    }

    async fn close(&self) {
        self.inner.close().await;
    }
}
