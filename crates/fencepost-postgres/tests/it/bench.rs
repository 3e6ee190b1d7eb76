//! The test bench for PostgreSQL, in all of its configurations.

use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use fencepost_core::{Backend, Client, LockName, Options, Result};
use fencepost_testkit::servers::postgres::{PostgresServer, shared};
use fencepost_testkit::wire::Wire;
use fencepost_testkit::{StoredCounts, TestBench, WireBench};
use tokio_postgres::NoTls;

/// The database of the tests.
pub(crate) const DATABASE: &str = "postgres";

/// A bench with its own namespace on a server that other tests may use too.
pub(crate) struct PostgresBench {
    /// The proxy in front of the server, if the connection can be cut.
    wire: Option<Wire>,
    /// The URL of clients.
    url: String,
    /// The URL of the bare driver.
    direct: String,
    namespace: String,
    is_pooled: bool,
    /// How many clients listened when the wire was cut.
    listeners_before_cut: AtomicUsize,
}

impl PostgresBench {
    pub(crate) fn plain() -> Self {
        Self::behind_a_wire(shared())
    }

    /// A bench on this server, behind a proxy of its own.
    pub(crate) fn behind_a_wire(server: &PostgresServer) -> Self {
        let direct = server.url(DATABASE);
        Self::through_a_wire(&direct, server.port(), "", &direct)
    }

    /// A bench whose clients connect to this URL, with further options, through a proxy of its own to the URL's port.
    pub(crate) fn through_a_wire(url: &str, port: u16, more: &str, direct: &str) -> Self {
        let wire = Wire::to(port);
        let url = url.replace(&format!(":{port}"), &format!(":{}", wire.port()));
        Self { wire: Some(wire), ..Self::at(&url, more, direct) }
    }

    /// A bench at this URL, which has no options yet.
    pub(crate) fn at(url: &str, more: &str, direct: &str) -> Self {
        let namespace = format!("test_{:016x}", rand::random::<u64>());
        let url = format!("{url}?namespace={namespace}&application_name={namespace}{more}");
        Self {
            wire: None,
            url,
            direct: direct.to_owned(),
            namespace,
            is_pooled: false,
            listeners_before_cut: AtomicUsize::new(0),
        }
    }

    /// A bench behind a pooler that shares sessions: the server cannot push to its clients.
    pub(crate) fn pooled(self) -> Self {
        Self { is_pooled: true, ..self }
    }

    /// A bench with the same namespace, for the superuser, without a proxy.
    pub(crate) fn without_wire(&self) -> Self {
        let options = self.url.split_once('?').map_or("", |(_, options)| options);
        Self {
            wire: None,
            url: format!("{}?{options}", self.direct),
            direct: self.direct.clone(),
            namespace: self.namespace.clone(),
            is_pooled: false,
            listeners_before_cut: AtomicUsize::new(0),
        }
    }

    pub(crate) fn url(&self) -> &str {
        &self.url
    }

    /// The URL of the bare driver.
    pub(crate) fn direct(&self) -> &str {
        &self.direct
    }

    pub(crate) fn namespace(&self) -> &str {
        &self.namespace
    }

    /// Connects with the bare driver.
    pub(crate) async fn driver(&self) -> tokio_postgres::Client {
        drive(&self.direct).await
    }

    /// Returns the result of a query for one number; 0 if the namespace does not exist yet.
    async fn count(&self, driver: &tokio_postgres::Client, sql: &str) -> usize {
        let sql = sql.replace("@.", &format!("\"{}\".", self.namespace));
        let found = driver.query_one(&sql, &[]).await.map(|row| row.get::<_, i64>(0));
        usize::try_from(found.unwrap_or_default()).expect("a count")
    }
}

/// Connects with the bare driver.
pub(crate) async fn drive(url: &str) -> tokio_postgres::Client {
    let (client, connection) = tokio_postgres::connect(url, NoTls).await.expect("the server answers");
    tokio::spawn(connection);
    client
}

impl TestBench for PostgresBench {
    fn connect(&self) -> impl Future<Output = Result<Arc<dyn Backend>>> + Send + 'static {
        Self::open(self.url.clone())
    }

    async fn peek(&self) -> StoredCounts {
        let driver = self.driver().await;
        StoredCounts {
            holders: self.count(&driver, "SELECT (SELECT count(*) FROM @.locks WHERE owner IS NOT NULL) + (SELECT count(*) FROM @.holders)").await,
            tickets: self.count(&driver, "SELECT count(*) FROM @.tickets").await,
            cells: self.count(&driver, "SELECT count(*) FROM @.cells").await,
            others: self.count(&driver, "SELECT count(*) FROM @.tombstones").await,
        }
    }

    async fn steal(&self, name: &LockName) {
        let driver = self.driver().await;
        let namespace = &self.namespace;
        let free = format!("UPDATE \"{namespace}\".locks SET owner = NULL WHERE name = $1");
        driver.execute(&free, &[&name.as_str()]).await.expect("the row is updated");
        let delete = format!("DELETE FROM \"{namespace}\".holders WHERE name = $1");
        driver.execute(&delete, &[&name.as_str()]).await.expect("the rows are deleted");
    }

    async fn listeners(&self) -> Option<usize> {
        let driver = self.driver().await;
        let sql = "SELECT count(*) FROM pg_locks JOIN pg_stat_activity USING (pid) WHERE locktype = 'advisory' AND \
            mode = 'ExclusiveLock' AND granted AND application_name = $1";
        let found = driver.query_one(sql, &[&self.namespace]).await.expect("the server answers");
        Some(usize::try_from(found.get::<_, i64>(0)).expect("a count"))
    }

    async fn read_only_client(&self) -> Option<Result<Client>> {
        Some(fencepost_postgres::connect_with(&self.url, Options::new().only_existing()).await)
    }

    async fn cut(&self) {
        self.listeners_before_cut.store(self.listeners().await.unwrap_or(0), Ordering::Relaxed);
        self.wire().cut();
    }

    async fn heal(&self) {
        self.wire().heal();
        // A release passes over clients that have not reconnected yet. Clients that were closed meanwhile do not reconnect, so
        // the wait is bounded.
        let listeners = Some(self.listeners_before_cut.load(Ordering::Relaxed));
        let mut ticks = tokio::time::interval(Duration::from_millis(50));
        for _ in 0..60 {
            if self.listeners().await >= listeners {
                return;
            }
            ticks.tick().await;
        }
    }

    fn notifies_holders(&self) -> bool {
        !self.is_pooled
    }

    /// Longer behind a pooler, whose few connections all tests share.
    fn ttl(&self) -> Duration {
        Duration::from_millis(if self.is_pooled { 3000 } else { 1500 })
    }

    /// Each hand-over is a commit.
    fn crowd_size(&self) -> usize {
        1_000
    }
}

impl WireBench for PostgresBench {
    fn wire(&self) -> &Wire {
        self.wire.as_ref().expect("the bench has a wire")
    }

    fn url(&self) -> &str {
        &self.url
    }

    async fn open(url: String) -> Result<Arc<dyn Backend>> {
        fencepost_postgres::open(&url).await
    }

    /// The end of the statement's name, and the formats of its arguments, in the message that executes a flight.
    fn acquire_bytes(&self) -> &'static [u8] {
        b"\0\0\x0f\0\x01\0\x01\0\x01\0\x01"
    }

    fn release_bytes(&self) -> &'static [u8] {
        self.acquire_bytes()
    }

    /// The server starts a process for each connection, which plans each statement.
    fn reconnect_time(&self) -> Duration {
        Duration::from_millis(150)
    }
}
