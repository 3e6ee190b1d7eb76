//! The test bench for MariaDB.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use fencepost_core::{Backend, Client, LockName, Options, Owner, Result};
use fencepost_testkit::servers::mariadb::{MariadbServer, MariadbServerConfig, shared};
use fencepost_testkit::wire::Wire;
use fencepost_testkit::{StoredCounts, TestBench, WireBench};

/// The server of a bench.
#[derive(Clone)]
pub(crate) enum Server {
    Shared(&'static MariadbServer),
    Own(Arc<MariadbServer>),
}

impl Server {
    pub(crate) fn get(&self) -> &MariadbServer {
        match self {
            Self::Shared(server) => server,
            Self::Own(server) => server,
        }
    }
}

/// A bench with its own namespace on a server that other tests may use too.
pub(crate) struct MariadbBench {
    /// The proxy in front of the server.
    wire: Wire,
    /// The URL for clients, through the wire.
    url: String,
    server: Server,
    namespace: String,
}

impl MariadbBench {
    pub(crate) fn plain() -> Self {
        Self::at(Server::Shared(shared()))
    }

    /// Starts a server for one test, which may break it.
    pub(crate) fn on(config: &MariadbServerConfig) -> Self {
        Self::at(Server::Own(Arc::new(MariadbServer::start(config))))
    }

    /// A bench on this server, for its administrator.
    pub(crate) fn at(server: Server) -> Self {
        let url = server.get().url();
        Self::through_a_wire(server, &url, "")
    }

    /// A bench whose clients connect to this URL of the server, with further options, through a proxy.
    pub(crate) fn through_a_wire(server: Server, url: &str, more: &str) -> Self {
        let namespace = format!("t_{}", &Owner::random().to_hex()[..12]);
        let port = server.get().port();
        let wire = Wire::to(port);
        let url = url.replace(&format!(":{port}/"), &format!(":{}/", wire.port()));
        let url = format!("{url}?namespace={namespace}{more}");
        Self { wire, url, server, namespace }
    }

    pub(crate) fn server(&self) -> &MariadbServer {
        self.server.get()
    }

    pub(crate) fn server_handle(&self) -> Server {
        self.server.clone()
    }

    /// Runs a statement with `mariadb`, in which `{kind}` is the table of that kind.
    #[track_caller]
    pub(crate) fn sql(&self, sql: &str) -> String {
        self.server().sql(&self.with_tables(sql))
    }

    /// Runs a statement outside of the test's runtime: it may wait for a flight whose bytes this runtime forwards.
    pub(crate) async fn try_sql(&self, sql: &str) -> std::result::Result<String, String> {
        let (server, sql) = (self.server.clone(), self.with_tables(sql));
        tokio::task::spawn_blocking(move || server.get().try_sql(&sql)).await.expect("it does not panic")
    }

    pub(crate) fn with_tables(&self, sql: &str) -> String {
        let kinds = ["locks", "holders", "tickets", "cells", "tombstones", "notices", "tokens", "storage"];
        let table = |kind: &str| format!("`{}_{kind}`", self.namespace);
        kinds.iter().fold(sql.to_owned(), |sql, kind| sql.replace(&format!("{{{kind}}}"), &table(kind)))
    }

    /// Connects with the bare driver, without a proxy, as the administrator.
    pub(crate) async fn driver(&self) -> mysql_async::Conn {
        let opts = mysql_async::Opts::from_url(&self.server().url()).expect("the URL is valid");
        mysql_async::Conn::new(opts).await.expect("the server answers")
    }

    pub(crate) fn namespace(&self) -> &str {
        &self.namespace
    }

    /// Returns the literal of a name.
    pub(crate) fn literal(name: &str) -> String {
        let digits: Vec<String> = name.bytes().map(|byte| format!("{byte:02x}")).collect();
        format!("x'{}'", digits.concat())
    }
}

impl TestBench for MariadbBench {
    fn connect(&self) -> impl Future<Output = Result<Arc<dyn Backend>>> + Send + 'static {
        Self::open(self.url.clone())
    }

    async fn peek(&self) -> StoredCounts {
        let counts = "SELECT (SELECT COUNT(*) FROM {holders}), (SELECT COUNT(*) FROM {tickets}), \
            (SELECT COUNT(*) FROM {cells}), (SELECT COUNT(*) FROM {tombstones}) + (SELECT COUNT(*) FROM {notices}) \
            + (SELECT COUNT(*) FROM {locks})";
        // Without a client, there are no tables.
        let Ok(counts) = self.try_sql(counts).await else {
            return StoredCounts::default();
        };
        let counts: Vec<usize> = counts.split('\t').map(|count| count.parse().unwrap()).collect();
        StoredCounts { holders: counts[0], tickets: counts[1], cells: counts[2], others: counts[3] }
    }

    async fn steal(&self, name: &LockName) {
        let sql = format!("DELETE FROM {{holders}} WHERE name = {}", Self::literal(name.as_str()));
        self.try_sql(&sql).await.expect("it can be deleted");
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

    async fn listeners(&self) -> Option<usize> {
        let connected = "SELECT COUNT(*) FROM (SELECT client FROM {tickets} UNION SELECT client FROM {holders}) AS c \
            WHERE IS_USED_LOCK(CONCAT('fencepost.', client)) IS NOT NULL";
        self.try_sql(connected).await.ok()?.parse().ok()
    }

    fn ttl(&self) -> Duration {
        Duration::from_secs(1)
    }

    fn crowd_size(&self) -> usize {
        1_000
    }
}

impl WireBench for MariadbBench {
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
        b"_tokens` (id) VALUES (NULL)"
    }

    fn release_bytes(&self) -> &'static [u8] {
        b"DELETE d FROM "
    }

    fn grants_in_one_request(&self) -> bool {
        false
    }
}
