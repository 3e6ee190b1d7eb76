//! The test bench for Redis, in every deployment.

use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use fencepost_core::{Backend, Client, LockName, Options, Result};
use fencepost_testkit::servers::redis::{RedisServer, shared};
use fencepost_testkit::wire::Wire;
use fencepost_testkit::{StoredCounts, TestBench, WireBench};
use redis::aio::MultiplexedConnection;

/// A namespace of its own on servers that other tests share.
pub(crate) struct RedisBench {
    /// The proxy in front of the server, if the connection can be cut.
    wire: Option<Wire>,
    /// The URL of clients.
    url: String,
    /// The URLs at which the bare driver reads keys and subscriptions.
    nodes: Vec<String>,
    namespace: String,
    /// How many clients were subscribed when the wire was cut.
    listeners_before_cut: AtomicUsize,
}

impl RedisBench {
    pub(crate) fn plain() -> Self {
        Self::with("")
    }

    /// A bench with further URL options: `&replicas=1`.
    pub(crate) fn with(more: &str) -> Self {
        Self::behind_a_wire(shared(), more)
    }

    /// A bench on this server, behind a proxy of its own.
    pub(crate) fn behind_a_wire(server: &RedisServer, more: &str) -> Self {
        Self::in_database(0, server, more)
    }

    /// A bench in this database of this server, behind a proxy of its own.
    pub(crate) fn in_database(db: usize, server: &RedisServer, more: &str) -> Self {
        let wire = Wire::to(server.port());
        let url = format!("redis://127.0.0.1:{}/{db}", wire.port());
        Self { wire: Some(wire), ..Self::at(&url, more, [format!("{}/{db}", server.url())]) }
    }

    /// A bench at this URL, which has no options yet.
    pub(crate) fn at(url: &str, more: &str, nodes: impl IntoIterator<Item = String>) -> Self {
        let namespace = format!("test-{:016x}", rand::random::<u64>());
        Self {
            wire: None,
            url: format!("{url}?namespace={namespace}{more}"),
            nodes: nodes.into_iter().collect(),
            namespace,
            listeners_before_cut: AtomicUsize::new(0),
        }
    }

    pub(crate) fn url(&self) -> &str {
        &self.url
    }

    pub(crate) fn namespace(&self) -> &str {
        &self.namespace
    }

    /// Connects to the first server with the bare driver.
    pub(crate) async fn driver(&self) -> MultiplexedConnection {
        drive(&self.nodes[0]).await
    }

    /// Returns all keys of the namespace.
    pub(crate) async fn keys(&self) -> Vec<String> {
        let mut keys = Vec::new();
        for node in &self.nodes {
            keys.extend(self.keys_on(&mut drive(node).await).await);
        }
        keys
    }

    async fn keys_on(&self, driver: &mut MultiplexedConnection) -> Vec<String> {
        keys_like(driver, &format!("{}:*", self.namespace)).await
    }

    /// Returns a key without the prefix of all keys of a lock; in a cluster that ends with a hash tag.
    fn kind_of<'a>(&self, key: &'a str) -> &'a str {
        let rest = key.strip_prefix(&self.namespace).and_then(|rest| rest.strip_prefix(':'));
        let rest = rest.expect("the key is in the namespace");
        let tagged = rest.strip_prefix('{').and_then(|rest| rest.split_once("}:"));
        tagged.map_or(rest, |(_, kind)| kind)
    }
}

/// Connects with the bare driver.
async fn drive(url: &str) -> MultiplexedConnection {
    let client = redis::Client::open(url).expect("the URL is valid");
    client.get_multiplexed_async_connection().await.expect("the server answers")
}

/// Returns all keys that match this pattern.
pub(crate) async fn keys_like(driver: &mut MultiplexedConnection, pattern: &str) -> Vec<String> {
    let mut keys = Vec::new();
    let mut cursor = 0;
    loop {
        let mut scan = redis::cmd("SCAN");
        scan.arg(cursor).arg("MATCH").arg(pattern).arg("COUNT").arg(10_000);
        let (next, found): (u64, Vec<String>) = scan.query_async(driver).await.expect("SCAN succeeds");
        keys.extend(found);
        if next == 0 {
            return keys;
        }
        cursor = next;
    }
}

impl TestBench for RedisBench {
    fn connect(&self) -> impl Future<Output = Result<Arc<dyn Backend>>> + Send + 'static {
        Self::open(self.url.clone())
    }

    async fn peek(&self) -> StoredCounts {
        let mut left = StoredCounts::default();
        for key in self.keys().await {
            match self.kind_of(&key) {
                "about" | "c" | "w" => {}
                key if key.starts_with("l:") => left.holders += 1,
                key if key.starts_with("t:") => left.tickets += 1,
                key if key.starts_with("v:") => left.cells += 1,
                _ => left.others += 1,
            }
        }
        left
    }

    async fn steal(&self, name: &LockName) {
        let kind = format!("l:{name}");
        for node in &self.nodes {
            let mut driver = drive(node).await;
            for key in self.keys_on(&mut driver).await.iter().filter(|key| self.kind_of(key) == kind) {
                let stolen: redis::RedisResult<()> =
                    redis::cmd("DEL").arg(key).query_async(&mut driver).await;
                stolen.expect("DEL succeeds");
            }
        }
    }

    async fn listeners(&self) -> Option<usize> {
        let mut command = redis::cmd("PUBSUB");
        command.arg("CHANNELS").arg(format!("{}:ch:*", self.namespace));
        let mut fewest = usize::MAX;
        for node in &self.nodes {
            let channels: Vec<String> =
                command.query_async(&mut drive(node).await).await.expect("PUBSUB succeeds");
            fewest = fewest.min(channels.len());
        }
        Some(fewest)
    }

    async fn read_only_client(&self) -> Option<Result<Client>> {
        Some(fencepost_redis::connect_with(&self.url, Options::new().only_existing()).await)
    }

    async fn cut(&self) {
        self.listeners_before_cut.store(self.listeners().await.unwrap_or(0), Ordering::Relaxed);
        self.wire().cut();
    }

    async fn heal(&self) {
        self.wire().heal();
        // A release skips clients that have not reconnected yet. Clients that were closed meanwhile do not reconnect, so the
        // wait is bounded.
        let listeners = Some(self.listeners_before_cut.load(Ordering::Relaxed));
        let mut ticks = tokio::time::interval(Duration::from_millis(50));
        for _ in 0..60 {
            if self.listeners().await >= listeners {
                return;
            }
            ticks.tick().await;
        }
    }
}

impl WireBench for RedisBench {
    fn wire(&self) -> &Wire {
        self.wire.as_ref().expect("the bench has a wire")
    }

    fn url(&self) -> &str {
        &self.url
    }

    async fn open(url: String) -> Result<Arc<dyn Backend>> {
        fencepost_redis::open(&url).await
    }

    fn acquire_bytes(&self) -> &'static [u8] {
        b"EVALSHA"
    }

    fn release_bytes(&self) -> &'static [u8] {
        b"EVALSHA"
    }
}
