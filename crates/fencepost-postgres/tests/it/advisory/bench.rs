//! The test bench for advisory locks.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use fencepost_core::{Backend, Client, LockName, Options, Result};
use fencepost_testkit::servers::postgres::{PostgresServer, shared};
use fencepost_testkit::wire::Wire;
use fencepost_testkit::{SessionBench, StoredCounts, TestBench, WireBench};

use crate::bench::{DATABASE, drive};

/// A bench with its own namespace on a server that other tests may use too.
pub(crate) struct AdvisoryBench {
    wire: Wire,
    url: String,
    /// The URL of the bare driver.
    direct: String,
    namespace: String,
}

impl AdvisoryBench {
    pub(crate) fn plain() -> Self {
        Self::on(shared(), "&connections=110")
    }

    /// A bench on this server, with further options.
    pub(crate) fn on(server: &PostgresServer, more: &str) -> Self {
        let wire = Wire::to(server.port());
        let direct = server.url(DATABASE);
        let namespace = format!("test_{:016x}", rand::random::<u64>());
        let at = direct.replace(&format!(":{}", server.port()), &format!(":{}", wire.port()));
        let url = format!("{at}?mode=advisory&namespace={namespace}&application_name={namespace}{more}");
        Self { wire, url, direct, namespace }
    }

    pub(crate) fn url(&self) -> &str {
        &self.url
    }

    pub(crate) fn namespace(&self) -> &str {
        &self.namespace
    }

    /// Connects with the bare driver.
    pub(crate) async fn driver(&self) -> tokio_postgres::Client {
        drive(&self.direct).await
    }
}

impl TestBench for AdvisoryBench {
    fn connect(&self) -> impl Future<Output = Result<Arc<dyn Backend>>> + Send + 'static {
        Self::open(self.url.clone())
    }

    async fn peek(&self) -> StoredCounts {
        let sql = "SELECT count(*) FILTER (WHERE granted), count(*) FILTER (WHERE NOT granted) FROM pg_locks \
            JOIN pg_stat_activity USING (pid) WHERE locktype = 'advisory' AND application_name = $1";
        let row = self.driver().await.query_one(sql, &[&self.namespace]).await.expect("the server answers");
        let count = |index| usize::try_from(row.get::<_, i64>(index)).expect("a count");
        StoredCounts { holders: count(0), tickets: count(1), ..StoredCounts::default() }
    }

    /// Ends the sessions of the holders, as an administrator does.
    async fn steal(&self, name: &LockName) {
        let sql = format!(
            "SELECT pg_terminate_backend(s.pid, 10000) FROM \"{}\".advisory_sessions AS s JOIN pg_locks AS l USING (pid) \
             WHERE s.name = $1 AND l.granted AND l.locktype = 'advisory'",
            self.namespace
        );
        self.driver().await.query(&sql, &[&name.as_str()]).await.expect("the sessions are ended");
    }

    async fn read_only_client(&self) -> Option<Result<Client>> {
        Some(fencepost_postgres::connect_with(&self.url, Options::new().only_existing()).await)
    }

    async fn cut(&self) {
        self.wire.cut();
    }

    async fn heal(&self) {
        self.wire.heal();
    }

    fn ttl(&self) -> Duration {
        Duration::from_secs(1)
    }

    fn has_entry_per_waiter(&self) -> bool {
        true
    }

    fn entries_per_client(&self) -> usize {
        60
    }

    fn crowd_size(&self) -> usize {
        60
    }
}

impl WireBench for AdvisoryBench {
    fn wire(&self) -> &Wire {
        &self.wire
    }

    fn url(&self) -> &str {
        &self.url
    }

    async fn open(url: String) -> Result<Arc<dyn Backend>> {
        fencepost_postgres::open(&url).await
    }

    fn acquire_bytes(&self) -> &'static [u8] {
        b".advisory_try("
    }

    fn release_bytes(&self) -> &'static [u8] {
        b"pg_advisory_unlock_all"
    }
}

impl SessionBench for AdvisoryBench {
    /// Two names whose MD5 begins with the same two bytes, computed by the server.
    fn names_with_the_same_key(&self) -> (&'static str, [String; 2]) {
        let sql = "SELECT min(n), max(n) FROM (SELECT 'n' || i AS n FROM generate_series(1, 2000) AS i) AS s \
            GROUP BY left(md5(n), 4) HAVING count(*) > 1 LIMIT 1";
        let pair = shared().psql(sql);
        let (first, second) = pair.split_once('|').expect("two of so many have");
        ("tooz", [first.into(), second.into()])
    }
}
