//! The test bench for etcd, in all of its configurations.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use fencepost_core::{Backend, Client, LockName, Options, Result};
use fencepost_testkit::servers::etcd::{EtcdCluster, EtcdServer, EtcdServerConfig, shared};
use fencepost_testkit::wire::Wire;
use fencepost_testkit::{StoredCounts, TestBench, WireBench};

/// The server that `etcdctl` connects to.
#[derive(Clone)]
pub(crate) enum Server {
    Shared(&'static EtcdServer),
    Own(Arc<EtcdServer>),
    Cluster(Arc<EtcdCluster>),
    SharedCluster(&'static EtcdCluster),
}

impl Server {
    /// Runs `etcdctl` on the first member that responds.
    pub(crate) fn ctl(&self, args: &[&str]) -> String {
        let members = match self {
            Self::Shared(server) => return server.ctl(args),
            Self::Own(server) => return server.ctl(args),
            Self::Cluster(cluster) => cluster.members(),
            Self::SharedCluster(cluster) => cluster.members(),
        };
        let output = members.iter().find_map(|member| member.try_ctl(args).ok());
        output.unwrap_or_else(|| panic!("no member responded to {args:?}"))
    }
}

/// A bench with its own namespace on servers that other tests may use too.
pub(crate) struct EtcdBench {
    /// The proxy in front of the server, if the connection can be cut.
    wire: Option<Wire>,
    /// The URL for clients.
    url: String,
    server: Server,
    namespace: String,
    is_raw: bool,
}

impl EtcdBench {
    pub(crate) fn plain() -> Self {
        let wire = Wire::to(shared().port());
        let url = format!("etcd://127.0.0.1:{}", wire.port());
        Self { wire: Some(wire), ..Self::at(&url, "", Server::Shared(shared())) }
    }

    /// Returns a bench at this URL, which has no options yet.
    pub(crate) fn at(url: &str, options: &str, server: Server) -> Self {
        let namespace = format!("test-{:016x}", rand::random::<u64>());
        let url = format!("{url}?namespace={namespace}{options}");
        Self { wire: None, url, server, namespace, is_raw: false }
    }

    /// Starts a server for one test, which may break it.
    pub(crate) fn on(config: &EtcdServerConfig) -> (Self, Arc<EtcdServer>) {
        let server = Arc::new(EtcdServer::start(config));
        (Self::at(&server.url(), "", Server::Own(server.clone())), server)
    }

    /// Returns a bench with `layout=raw`. Its keys are in no namespace, so it has its own server.
    pub(crate) fn raw() -> Self {
        let server = Arc::new(EtcdServer::start(&EtcdServerConfig::plain()));
        Self { is_raw: true, ..Self::at(&server.url(), "&layout=raw", Server::Own(server)) }
    }

    pub(crate) fn url(&self) -> &str {
        &self.url
    }

    pub(crate) fn namespace(&self) -> &str {
        &self.namespace
    }

    pub(crate) fn ctl(&self, args: &[&str]) -> String {
        self.server.ctl(args)
    }

    /// Returns all keys of the namespace, without the prefix.
    pub(crate) fn keys(&self) -> Vec<String> {
        let prefix = format!("{}/", self.namespace);
        let found = self.ctl(&["get", "--prefix", &prefix, "--keys-only"]);
        let keys = found.lines().filter_map(|line| line.strip_prefix(&prefix));
        keys.map(str::to_owned).collect()
    }

    /// Returns the keys in the queue of the lock `name`, which needs no escaping, in order.
    pub(crate) fn queue(&self, name: &str) -> Vec<String> {
        let prefix = format!("{}/lock/{name}/", self.namespace);
        let found = self.ctl(&["get", "--prefix", &prefix, "--keys-only", "--sort-by=create"]);
        found.lines().filter(|key| !key.is_empty()).map(str::to_owned).collect()
    }

    /// Returns the revision that created a key, or `None` if it does not exist.
    pub(crate) fn create_revision(&self, key: &str) -> Option<i64> {
        let found = self.ctl(&["get", key, "--write-out=json"]);
        let (_, revision) = found.split_once("\"create_revision\":")?;
        revision.chars().take_while(char::is_ascii_digit).collect::<String>().parse().ok()
    }

    /// Revokes the lease of a key with `etcdctl`.
    pub(crate) fn revoke_lease_of(&self, key: &str) {
        let found = self.ctl(&["get", key, "--write-out=json"]);
        let (_, lease) = found.split_once("\"lease\":").expect("it has a lease");
        let digits: String = lease.chars().take_while(char::is_ascii_digit).collect();
        let id: i64 = digits.parse().expect("it is a number");
        self.ctl(&["lease", "revoke", &format!("{id:x}")]);
    }
}

impl TestBench for EtcdBench {
    fn connect(&self) -> impl Future<Output = Result<Arc<dyn Backend>>> + Send + 'static {
        Self::open(self.url.clone())
    }

    async fn peek(&self) -> StoredCounts {
        let mut left = StoredCounts::default();
        if self.is_raw {
            let keys = self.ctl(&["get", "--prefix", "", "--keys-only"]);
            let is_ours = |key: &&str| !key.is_empty() && !key.starts_with(&self.namespace);
            left.tickets = keys.lines().filter(is_ours).count();
        }
        for key in self.keys() {
            match key.split('/').next() {
                Some("about") => {}
                Some("lock") => left.tickets += 1,
                Some("cell") => left.cells += 1,
                _ => left.others += 1,
            }
        }
        left
    }

    async fn steal(&self, name: &LockName) {
        let prefix = if self.is_raw {
            format!("{name}/")
        } else {
            format!("{}/lock/{}/", self.namespace, name.as_str().replace('%', "%25").replace('/', "%2F"))
        };
        self.ctl(&["del", "--prefix", &prefix]);
    }

    async fn read_only_client(&self) -> Option<Result<Client>> {
        Some(fencepost_etcd::connect_with(&self.url, Options::new().only_existing()).await)
    }

    async fn cut(&self) {
        self.wire().cut();
    }

    async fn heal(&self) {
        self.wire().heal();
    }

    /// The shortest ttl that this server grants.
    fn ttl(&self) -> Duration {
        Duration::from_secs(1)
    }

    fn has_entry_per_waiter(&self) -> bool {
        true
    }

    fn entries_per_client(&self) -> usize {
        64
    }

    fn crowd_size(&self) -> usize {
        500
    }
}

impl WireBench for EtcdBench {
    fn wire(&self) -> &Wire {
        self.wire.as_ref().expect("the bench has a wire")
    }

    fn url(&self) -> &str {
        &self.url
    }

    async fn open(url: String) -> Result<Arc<dyn Backend>> {
        fencepost_etcd::open(&url).await
    }

    /// Bytes that occur only in a request that creates an entry.
    fn acquire_bytes(&self) -> &'static [u8] {
        b"\"since\":"
    }

    fn release_bytes(&self) -> &'static [u8] {
        b"/lock/"
    }

    fn ttl_above_read_timeout(&self) -> Duration {
        Duration::from_secs(6)
    }
}
