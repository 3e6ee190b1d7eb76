//! The test bench of this backend.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use fencepost_core::{Backend, Client, LockName, Options, Result};
use fencepost_testkit::servers::zookeeper::{ZooKeeperServer, shared};
use fencepost_testkit::wire::Wire;
use fencepost_testkit::{StoredCounts, TestBench, WireBench};
use zookeeper_client as zk;

/// A chroot of its own on a shared server.
pub(crate) struct ZooKeeperBench {
    /// The proxy in front of the server.
    wire: Wire,
    /// The URL of clients, through the proxy.
    url: String,
    /// The address for the driver, without the proxy.
    server: String,
    chroot: String,
}

impl ZooKeeperBench {
    pub(crate) fn plain() -> Self {
        Self::with(shared(), "")
    }

    /// Creates a bench on this server. `query` is appended to its URL: `?dialect=plain`.
    pub(crate) fn with(server: &ZooKeeperServer, query: &str) -> Self {
        let wire = Wire::to(server.port());
        let chroot = format!("/test-{:016x}", rand::random::<u64>());
        let url = format!("zk://127.0.0.1:{}{chroot}{query}", wire.port());
        Self { wire, url, server: format!("127.0.0.1:{}", server.port()), chroot }
    }

    /// Returns the URL of the server without the proxy.
    pub(crate) fn direct(&self) -> String {
        format!("zk://{}{}", self.server, self.chroot)
    }

    /// Connects with the driver alone.
    pub(crate) async fn driver(&self) -> zk::Client {
        zk::Client::connect(&self.server).await.expect("the server runs")
    }

    /// Returns the path of this lock's node.
    pub(crate) fn lock_path(&self, node: &str) -> String {
        format!("{}/{node}", self.chroot)
    }

    /// Returns the paths of all contenders of this lock.
    pub(crate) async fn contenders(&self, driver: &zk::Client, node: &str) -> Vec<String> {
        let parent = self.lock_path(node);
        let children = driver.list_children(&parent).await.unwrap_or_default();
        let mut nodes: Vec<String> = children.iter().map(|child| format!("{parent}/{child}")).collect();
        nodes.sort_by_key(|node| node[node.len() - 10..].to_owned());
        nodes
    }
}

impl TestBench for ZooKeeperBench {
    fn connect(&self) -> impl Future<Output = Result<Arc<dyn Backend>>> + Send + 'static {
        Self::open(self.url.clone())
    }

    async fn peek(&self) -> StoredCounts {
        let mut counts = StoredCounts::default();
        let driver = self.driver().await;
        for lock in driver.list_children(&self.chroot).await.unwrap_or_default() {
            if lock == "_fencepost" {
                continue;
            }
            // The first contender holds the lock, and it may be the only holder. The server removes the lock's own
            // node.
            let contenders = self.contenders(&driver, &lock).await.len();
            counts.holders += contenders.min(1);
            counts.tickets += contenders.saturating_sub(1);
        }
        let reserved = format!("{}/_fencepost", self.chroot);
        counts.cells = driver.list_children(&format!("{reserved}/cells2")).await.unwrap_or_default().len();
        counts.others = driver.list_children(&format!("{reserved}/broken")).await.unwrap_or_default().len();
        counts
    }

    async fn steal(&self, name: &LockName) {
        let driver = self.driver().await;
        if let Some(first) = self.contenders(&driver, name.as_str()).await.first() {
            driver.delete(first, None).await.expect("the node can be deleted");
        }
    }

    async fn read_only_client(&self) -> Option<Result<Client>> {
        Some(fencepost_zookeeper::connect_with(&self.url, Options::new().only_existing()).await)
    }

    async fn cut(&self) {
        self.wire.cut();
    }

    async fn heal(&self) {
        self.wire.heal();
    }

    fn ttl(&self) -> Duration {
        Duration::from_millis(600)
    }

    fn has_entry_per_waiter(&self) -> bool {
        true
    }

    fn creates_entries_before_reading(&self) -> bool {
        true
    }

    fn entries_per_client(&self) -> usize {
        64
    }

    fn crowd_size(&self) -> usize {
        400
    }
}

impl WireBench for ZooKeeperBench {
    fn wire(&self) -> &Wire {
        &self.wire
    }

    fn url(&self) -> &str {
        &self.url
    }

    async fn open(url: String) -> Result<Arc<dyn Backend>> {
        fencepost_zookeeper::open(&url).await
    }

    /// Occurs in every request that creates a contender's node, and in no other.
    fn acquire_bytes(&self) -> &'static [u8] {
        b"\"label\""
    }

    /// The beginning of the sequence number of a node.
    fn release_bytes(&self) -> &'static [u8] {
        b"-lock-00000"
    }

    fn ttl_above_read_timeout(&self) -> Duration {
        self.ttl() * 8
    }
}
