//! The test bench for named locks.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use fencepost_core::{Backend, Client, LockName, Options, Owner, Result};
use fencepost_testkit::servers::mariadb::{MariadbServer, MariadbServerConfig, shared};
use fencepost_testkit::wire::Wire;
use fencepost_testkit::{SessionBench, StoredCounts, TestBench, WireBench, wait};

use crate::bench::{MariadbBench, Server};

/// The condition that the connection of a row lives.
const IS_LIVE: &str = "IS_USED_LOCK(CONCAT('fp_s_', LOWER(HEX(session)))) = connection";

/// A bench with its own namespace on a server that other tests may use too.
pub(crate) struct NamedBench {
    wire: Wire,
    url: String,
    server: Server,
    namespace: String,
}

impl NamedBench {
    pub(crate) fn plain() -> Self {
        Self::with("&connections=110")
    }

    /// Starts a server for one test, which may break it.
    pub(crate) fn on(config: &MariadbServerConfig) -> Self {
        Self::at(Server::Own(Arc::new(MariadbServer::start(config))), "")
    }

    /// A bench on the shared server, with further options.
    pub(crate) fn with(more: &str) -> Self {
        Self::at(Server::Shared(shared()), more)
    }

    fn at(server: Server, more: &str) -> Self {
        let namespace = format!("t_{}", &Owner::random().to_hex()[..7]);
        let wire = Wire::to(server.get().port());
        let port = |port: u16| format!(":{port}/");
        let at = server.get().url().replace(&port(server.get().port()), &port(wire.port()));
        let url = format!("{at}?mode=named&namespace={namespace}{more}");
        Self { wire, url, server, namespace }
    }

    pub(crate) fn server(&self) -> &MariadbServer {
        self.server.get()
    }

    pub(crate) fn namespace(&self) -> &str {
        &self.namespace
    }

    /// Runs a statement with `mariadb`, in which `{sessions}` is the table of connections, outside of the test's runtime.
    pub(crate) async fn try_sql(&self, sql: &str) -> std::result::Result<String, String> {
        let sql = sql.replace("{sessions}", &format!("`{}_named_sessions`", self.namespace));
        let server = self.server.clone();
        tokio::task::spawn_blocking(move || server.get().try_sql(&sql)).await.expect("it does not panic")
    }

    pub(crate) async fn sql(&self, sql: &str) -> String {
        self.try_sql(sql).await.unwrap_or_else(|error| panic!("{sql:?} failed: {error}"))
    }

    /// Returns the connections of this lock's holder (`1`) or of its waiters (`0`).
    pub(crate) async fn connections(&self, name: &str, granted: u8) -> Vec<u64> {
        let literal = MariadbBench::literal(name);
        let found = self
            .sql(&format!(
                "SELECT connection FROM {{sessions}} WHERE name = {literal} AND granted = {granted} AND {IS_LIVE}"
            ))
            .await;
        found.lines().map(|line| line.parse().expect("a number")).collect()
    }
}

impl TestBench for NamedBench {
    fn connect(&self) -> impl Future<Output = Result<Arc<dyn Backend>>> + Send + 'static {
        Self::open(self.url.clone())
    }

    async fn peek(&self) -> StoredCounts {
        let sql = format!(
            "SELECT COUNT(IF(granted, 1, NULL)), COUNT(IF(granted, NULL, 1)) FROM {{sessions}} WHERE {IS_LIVE}"
        );
        // Without a client, there are no tables.
        let Ok(counts) = self.try_sql(&sql).await else { return StoredCounts::default() };
        let counts: Vec<usize> = counts.split('\t').map(|count| count.parse().expect("a count")).collect();
        StoredCounts { holders: counts[0], tickets: counts[1], ..StoredCounts::default() }
    }

    /// Kills the connections of the holders, as an administrator does, and waits for their end.
    async fn steal(&self, name: &LockName) {
        let (ids, server) = (self.connections(name.as_str(), 1).await, self.server.clone());
        let kill = move || {
            for id in ids {
                server.get().sql(&format!("KILL {id}"));
                let left = format!("SELECT COUNT(*) FROM information_schema.PROCESSLIST WHERE ID = {id}");
                wait::block_until("the connection has ended", || server.get().sql(&left) == "0");
            }
        };
        tokio::task::spawn_blocking(kill).await.expect("it does not panic");
    }

    async fn read_only_client(&self) -> Option<Result<Client>> {
        Some(fencepost_mysql::connect_with(&self.url, Options::new().only_existing()).await)
    }

    async fn cut(&self) {
        self.wire.cut();
    }

    async fn heal(&self) {
        self.wire.heal();
    }

    // In this time a client opens its connections, on a busy machine.
    fn ttl(&self) -> Duration {
        Duration::from_secs(2)
    }

    fn has_entry_per_waiter(&self) -> bool {
        true
    }

    fn notifies_holders(&self) -> bool {
        false
    }

    fn entries_per_client(&self) -> usize {
        60
    }

    fn crowd_size(&self) -> usize {
        60
    }
}

impl WireBench for NamedBench {
    fn wire(&self) -> &Wire {
        &self.wire
    }

    fn url(&self) -> &str {
        &self.url
    }

    async fn open(url: String) -> Result<Arc<dyn Backend>> {
        fencepost_mysql::open(&url).await
    }

    fn acquire_bytes(&self) -> &'static [u8] {
        b"@fp_got = GET_LOCK("
    }

    fn release_bytes(&self) -> &'static [u8] {
        b"RELEASE_ALL_LOCKS"
    }
}

impl SessionBench for NamedBench {
    /// A name, and the hashed form of another one.
    fn names_with_the_same_key(&self) -> (&'static str, [String; 2]) {
        ("madelson", ["MyLock", "mylock6isuyjwnkexb4ujf4m7j37hstmoxe3vx"].map(String::from))
    }

    fn has_shared_locks(&self) -> bool {
        false
    }
}
