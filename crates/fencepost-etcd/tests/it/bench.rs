//! etcd on the test bench, in every way in which it can be set up.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use fencepost_core::{Backend, Client, LockName, Options, Result};
use fencepost_testkit::servers::etcd::{EtcdCluster, EtcdServer, EtcdServerConfig, shared};
use fencepost_testkit::wire::Wire;
use fencepost_testkit::{StoredCounts, TestBench, WireBench};

/// Where `etcdctl` looks.
#[derive(Clone)]
pub(crate) enum Server {
    Shared(&'static EtcdServer),
    Own(Arc<EtcdServer>),
    Cluster(Arc<EtcdCluster>),
    SharedCluster(&'static EtcdCluster),
}

impl Server {
    /// Runs `etcdctl` on whoever answers.
    pub(crate) fn ctl(&self, words: &[&str]) -> String {
        let members = match self {
            Self::Shared(server) => return server.ctl(words),
            Self::Own(server) => return server.ctl(words),
            Self::Cluster(cluster) => cluster.members(),
            Self::SharedCluster(cluster) => cluster.members(),
        };
        let said = members.iter().find_map(|member| member.try_ctl(words).ok());
        said.unwrap_or_else(|| panic!("{words:?} was answered by nobody"))
    }
}

/// A namespace of its own on servers that others may use too.
pub(crate) struct EtcdBench {
    /// What stands before the server, if it is one that can be cut off.
    wire: Option<Wire>,
    /// Where clients connect.
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

    /// Where this URL leads, which has no options yet.
    pub(crate) fn at(url: &str, more: &str, server: Server) -> Self {
        let namespace = format!("test-{:016x}", rand::random::<u64>());
        let url = format!("{url}?namespace={namespace}{more}");
        Self { wire: None, url, server, namespace, is_raw: false }
    }

    /// A server that nobody else uses, and that may be hurt.
    pub(crate) fn on(setup: &EtcdServerConfig) -> (Self, Arc<EtcdServer>) {
        let server = Arc::new(EtcdServer::start(setup));
        (Self::at(&server.url(), "", Server::Own(server.clone())), server)
    }

    /// Locks as the official recipe has them. Their keys are in no namespace, so the server is their own.
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

    pub(crate) fn ctl(&self, words: &[&str]) -> String {
        self.server.ctl(words)
    }

    /// All keys of the namespace, without it.
    pub(crate) fn keys(&self) -> Vec<String> {
        let prefix = format!("{}/", self.namespace);
        let found = self.ctl(&["get", "--prefix", &prefix, "--keys-only"]);
        let keys = found.lines().filter_map(|line| line.strip_prefix(&prefix));
        keys.map(str::to_owned).collect()
    }

    /// The keys of those who contend for the lock `name`, which is plain, in their order.
    pub(crate) fn line(&self, name: &str) -> Vec<String> {
        let line = format!("{}/lock/{name}/", self.namespace);
        let found = self.ctl(&["get", "--prefix", &line, "--keys-only", "--sort-by=create"]);
        found.lines().filter(|key| !key.is_empty()).map(str::to_owned).collect()
    }

    /// The revision that made a key; nothing if it is not there.
    pub(crate) fn made(&self, key: &str) -> Option<i64> {
        let found = self.ctl(&["get", key, "--write-out=json"]);
        let (_, made) = found.split_once("\"create_revision\":")?;
        made.chars().take_while(char::is_ascii_digit).collect::<String>().parse().ok()
    }

    /// Ends the lease of a key by hand, and all that hangs on it.
    pub(crate) fn revoke_lease_of(&self, key: &str) {
        let found = self.ctl(&["get", key, "--write-out=json"]);
        let (_, lease) = found.split_once("\"lease\":").expect("it hangs on a lease");
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
        let line = if self.is_raw {
            format!("{name}/")
        } else {
            format!("{}/lock/{}/", self.namespace, name.as_str().replace('%', "%25").replace('/', "%2F"))
        };
        self.ctl(&["del", "--prefix", &line]);
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

    /// The shortest lease that etcd gives here.
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
        self.wire.as_ref().expect("it was made with a wire")
    }

    fn url(&self) -> &str {
        &self.url
    }

    async fn open(url: String) -> Result<Arc<dyn Backend>> {
        fencepost_etcd::open(&url).await
    }

    /// What stands only in a request that makes a contender's key.
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
