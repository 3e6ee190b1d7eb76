//! ZooKeeper on the test bench.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use fencepost_core::{Backend, Client, LockName, Options, Result};
use fencepost_testkit::servers::zookeeper::{ZooKeeperServer, shared};
use fencepost_testkit::wire::Wire;
use fencepost_testkit::{StoredCounts, TestBench, WireBench};
use zookeeper_client as zk;

/// A chroot of its own on a server that others use too.
pub(crate) struct ZooKeeperBench {
    /// What stands before the server.
    wire: Wire,
    /// Where clients connect.
    url: String,
    /// Where the bare driver does.
    server: String,
    chroot: String,
}

impl ZooKeeperBench {
    pub(crate) fn plain() -> Self {
        Self::with(shared(), "")
    }

    /// On this server, with more in its URL: `?dialect=plain`.
    pub(crate) fn with(server: &ZooKeeperServer, more: &str) -> Self {
        let wire = Wire::to(server.port());
        let chroot = format!("/test-{:016x}", rand::random::<u64>());
        let url = format!("zk://127.0.0.1:{}{chroot}{more}", wire.port());
        Self { wire, url, server: format!("127.0.0.1:{}", server.port()), chroot }
    }

    /// Where clients connect that are never cut off.
    pub(crate) fn direct(&self) -> String {
        format!("zk://{}{}", self.server, self.chroot)
    }

    /// The bare driver.
    pub(crate) async fn driver(&self) -> zk::Client {
        zk::Client::connect(&self.server).await.expect("the server is there")
    }

    /// The node of this lock.
    pub(crate) fn line(&self, node: &str) -> String {
        format!("{}/{node}", self.chroot)
    }

    /// All contenders of this lock, with their parent.
    pub(crate) async fn contenders(&self, driver: &zk::Client, node: &str) -> Vec<String> {
        let parent = self.line(node);
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
        let mut left = StoredCounts::default();
        let driver = self.driver().await;
        for lock in driver.list_children(&self.chroot).await.unwrap_or_default() {
            if lock == "_fencepost" {
                continue;
            }
            // Whoever is first may be the only one that holds; a lock's own node is the server's to remove.
            let contenders = self.contenders(&driver, &lock).await.len();
            left.holders += contenders.min(1);
            left.tickets += contenders.saturating_sub(1);
        }
        let ours = format!("{}/_fencepost", self.chroot);
        left.cells = driver.list_children(&format!("{ours}/cells2")).await.unwrap_or_default().len();
        left.others = driver.list_children(&format!("{ours}/broken")).await.unwrap_or_default().len();
        left
    }

    async fn steal(&self, name: &LockName) {
        let driver = self.driver().await;
        if let Some(first) = self.contenders(&driver, name.as_str()).await.first() {
            driver.delete(first, None).await.expect("it deletes");
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

    /// What stands in every request that makes a node of a contender, and in no other.
    fn acquire_bytes(&self) -> &'static [u8] {
        b"\"label\""
    }

    /// The beginning of the number of a node that was made.
    fn release_bytes(&self) -> &'static [u8] {
        b"-lock-00000"
    }

    fn ttl_above_read_timeout(&self) -> Duration {
        self.ttl() * 8
    }
}
