//! etcd on the test bench, in every way in which it can be set up.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use fencepost_core::{Backend, LockName, Result};
use fencepost_testkit::servers::etcd::{EtcdServer, shared};
use fencepost_testkit::wire::Wire;
use fencepost_testkit::{Leftovers, TestBench};

/// A namespace of its own on servers that others use too.
pub(crate) struct EtcdBench {
    /// What stands before the server, if it is one that can be cut off.
    wire: Option<Wire>,
    /// Where clients connect.
    url: String,
    /// Where `etcdctl` looks.
    server: &'static EtcdServer,
    namespace: String,
}

impl EtcdBench {
    pub(crate) fn plain() -> Self {
        let wire = Wire::to(shared().port());
        let url = format!("etcd://127.0.0.1:{}", wire.port());
        Self { wire: Some(wire), ..Self::at(&url, "", shared()) }
    }

    /// Where this URL leads, which has no options yet.
    pub(crate) fn at(url: &str, more: &str, server: &'static EtcdServer) -> Self {
        let namespace = format!("test-{:016x}", rand::random::<u64>());
        Self { wire: None, url: format!("{url}?namespace={namespace}{more}"), server, namespace }
    }

    fn wire(&self) -> &Wire {
        self.wire.as_ref().expect("it was made with a wire")
    }

    /// All keys of the namespace, without it.
    pub(crate) fn keys(&self) -> Vec<String> {
        let prefix = format!("{}/", self.namespace);
        let found = self.server.ctl(&["get", "--prefix", &prefix, "--keys-only"]);
        let keys = found.lines().filter_map(|line| line.strip_prefix(&prefix));
        keys.map(str::to_owned).collect()
    }
}

impl TestBench for EtcdBench {
    fn connect(&self) -> impl Future<Output = Result<Arc<dyn Backend>>> + Send + 'static {
        let url = self.url.clone();
        async move { fencepost_etcd::open(&url).await }
    }

    async fn peek(&self) -> Leftovers {
        let mut left = Leftovers::default();
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
        let name = name.as_str().replace('%', "%25").replace('/', "%2F");
        let line = format!("{}/lock/{name}/", self.namespace);
        self.server.ctl(&["del", "--prefix", &line]);
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

    fn goes_by_entries(&self) -> bool {
        true
    }

    fn crowd(&self) -> usize {
        500
    }
}
