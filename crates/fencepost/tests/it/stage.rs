//! A backend in memory on a manual clock, with a scheme per test.

use std::ops::RangeInclusive;
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

/// A backend, its clock and its scheme.
#[derive(Clone)]
pub(crate) struct Stage {
    pub(crate) scheme: &'static str,
    pub(crate) memory: Memory,
    pub(crate) clock: ManualClock,
}

/// Runs a test on a new stage. The metrics of the process share one registry, so each test has its own scheme.
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

    /// Returns a client whose requests can be blocked.
    pub(crate) async fn proxied(&self, options: Options) -> (Client, Proxy) {
        let proxy = Proxy::default();
        let backend: Arc<dyn Backend> = Arc::new(self.backend());
        let connecting = proxy.clone().in_front_of(std::future::ready(Ok(backend)));
        (options.clock(self.clock.clone()).connect(connecting).await.unwrap(), proxy)
    }

    fn backend(&self) -> Named {
        Named { scheme: self.scheme, ttls: None, inner: Arc::new(self.memory.backend()) }
    }

    /// Returns a client of a backend that keeps only these ttls.
    pub(crate) fn limited_to(&self, ttls: RangeInclusive<Duration>) -> Client {
        let backend = Named { ttls: Some(ttls), ..self.backend() };
        Options::new().clock(self.clock.clone()).client(Arc::new(backend)).unwrap()
    }

    /// Acquires a lock in a separate task, and returns when it is in the queue.
    pub(crate) async fn queued(&self, client: &Client, name: &str) -> JoinHandle<Result<Guard>> {
        let before = self.memory.count().tickets;
        let lock = client.lock(name).ttl(TTL);
        let waiter = tokio::spawn(async move { lock.acquire().await });
        wait::until("it is in the queue", async || self.memory.count().tickets > before).await;
        waiter
    }

    /// Advances the clock second by second until the task has ended, and returns how many it took.
    pub(crate) async fn seconds_until_over<T>(&self, task: &JoinHandle<T>) -> u32 {
        let mut seconds = 0;
        wait::until("the task has ended", async || {
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

/// A backend with another scheme and range of ttls.
struct Named {
    scheme: &'static str,
    ttls: Option<RangeInclusive<Duration>>,
    inner: Arc<dyn Backend>,
}

#[async_trait]
impl Backend for Named {
    fn info(&self) -> BackendInfo {
        let mut info = self.inner.info();
        info.scheme = self.scheme;
        if let Some(ttls) = &self.ttls {
            (info.min_ttl, info.max_ttl) = (*ttls.start(), *ttls.end());
        }
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
