//! A Redis server on the test bench.

use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use fencepost_core::{Backend, LockName, Result};
use fencepost_testkit::servers::redis::{RedisServer, shared};
use fencepost_testkit::wire::Wire;
use fencepost_testkit::{Leftovers, TestBench};
use redis::aio::MultiplexedConnection;

/// A namespace of its own on a server that others use too, behind a wire of its own.
pub(crate) struct RedisBench {
    wire: Wire,
    server: &'static RedisServer,
    db: usize,
    pub(crate) namespace: String,
    more: String,
    /// How many listened when the wire was cut.
    listened: AtomicUsize,
}

impl RedisBench {
    pub(crate) fn plain() -> Self {
        Self::with("")
    }

    /// With more options in its URL: `&replicas=1`.
    pub(crate) fn with(more: &str) -> Self {
        Self::on(shared(), 0, more)
    }

    /// In this database of this server.
    pub(crate) fn on(server: &'static RedisServer, db: usize, more: &str) -> Self {
        let namespace = format!("test-{:016x}", rand::random::<u64>());
        Self {
            wire: Wire::to(server.port()),
            server,
            db,
            namespace,
            more: more.into(),
            listened: AtomicUsize::new(0),
        }
    }

    pub(crate) fn url(&self) -> String {
        let Self { wire, db, namespace, more, .. } = self;
        format!("redis://127.0.0.1:{}/{db}?namespace={namespace}{more}", wire.port())
    }

    /// The bare driver.
    pub(crate) async fn driver(&self) -> MultiplexedConnection {
        let client =
            redis::Client::open(format!("{}/{}", self.server.url(), self.db)).expect("the URL is fine");
        client.get_multiplexed_async_connection().await.expect("the server is there")
    }

    /// All keys of the namespace.
    pub(crate) async fn keys(&self) -> Vec<String> {
        self.keys_like(&format!("{}:*", self.namespace)).await
    }

    /// All keys that this pattern finds.
    pub(crate) async fn keys_like(&self, pattern: &str) -> Vec<String> {
        let mut driver = self.driver().await;
        let mut keys = Vec::new();
        let mut cursor = 0;
        loop {
            let mut scan = redis::cmd("SCAN");
            scan.arg(cursor).arg("MATCH").arg(pattern).arg("COUNT").arg(10_000);
            let (next, found): (u64, Vec<String>) = scan.query_async(&mut driver).await.expect("it scans");
            keys.extend(found);
            if next == 0 {
                return keys;
            }
            cursor = next;
        }
    }
}

impl TestBench for RedisBench {
    fn connect(&self) -> impl Future<Output = Result<Arc<dyn Backend>>> + Send + 'static {
        let url = self.url();
        async move { fencepost_redis::open(&url).await }
    }

    async fn peek(&self) -> Leftovers {
        let mut left = Leftovers::default();
        let prefix = format!("{}:", self.namespace);
        for key in self.keys().await {
            match key.strip_prefix(&prefix).expect("it was asked for") {
                "about" | "c" => {}
                key if key.starts_with("l:") => left.holders += 1,
                key if key.starts_with("t:") => left.tickets += 1,
                key if key.starts_with("v:") => left.cells += 1,
                _ => left.others += 1,
            }
        }
        left
    }

    async fn steal(&self, name: &LockName) {
        let key = format!("{}:l:{name}", self.namespace);
        let stolen: redis::RedisResult<()> =
            redis::cmd("DEL").arg(key).query_async(&mut self.driver().await).await;
        stolen.expect("it deletes");
    }

    async fn listeners(&self) -> Option<usize> {
        let mut question = redis::cmd("PUBSUB");
        question.arg("CHANNELS").arg(format!("{}:ch:*", self.namespace));
        let channels: Vec<String> = question.query_async(&mut self.driver().await).await.expect("it answers");
        Some(channels.len())
    }

    async fn cut(&self) {
        self.listened.store(self.listeners().await.unwrap_or(0), Ordering::Relaxed);
        self.wire.cut();
    }

    async fn heal(&self) {
        self.wire.heal();
        // A release passes over those who have not come back yet; whoever has gone meanwhile does not come.
        let listened = Some(self.listened.load(Ordering::Relaxed));
        let mut ticks = tokio::time::interval(Duration::from_millis(50));
        for _ in 0..60 {
            if self.listeners().await >= listened {
                return;
            }
            ticks.tick().await;
        }
    }
}
