//! The test bench for locks in a table of another program: a table of its own for each test.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use fencepost_core::{Backend, LockName, Result};
use fencepost_testkit::servers::postgres::shared;
use fencepost_testkit::wire::Wire;
use fencepost_testkit::{StoredCounts, TestBench};

use crate::bench::{DATABASE, drive};

/// `ShedLock`'s table as its documentation has it, with the precision that its other databases have.
pub(super) const SHEDLOCK: &str = "name VARCHAR(64) NOT NULL PRIMARY KEY, lock_until TIMESTAMP(3) NOT NULL, \
    locked_at TIMESTAMP(3) NOT NULL, locked_by VARCHAR(255) NOT NULL";
/// A home-made table.
pub(super) const HOME_MADE: &str =
    "lock_name text PRIMARY KEY, owner_id uuid NOT NULL, expires_at timestamptz, note text DEFAULT 'none'";
/// One without an end of leases.
pub(super) const WITHOUT_EXPIRY: &str = "lock_name text PRIMARY KEY, owner_id varchar(36) NOT NULL";

/// The options of a home-made table.
pub(super) const OPTIONS: &str = "dialect=table&name=lock_name&owner=owner_id";

pub(super) struct TableBench {
    pub(super) wire: Wire,
    url: String,
    pub(super) table: String,
    /// The column with the lock's name, and the condition for a lock that is held.
    name: &'static str,
    held: &'static str,
}

impl TableBench {
    pub(super) fn shedlock() -> Self {
        let held = "lock_until > timezone('UTC', clock_timestamp())";
        Self::new(SHEDLOCK, "dialect=shedlock", "name", held)
    }

    pub(super) fn with_expiry() -> Self {
        let held = "(expires_at IS NULL OR expires_at > clock_timestamp())";
        Self::new(HOME_MADE, &format!("{OPTIONS}&expires=expires_at"), "lock_name", held)
    }

    pub(super) fn without_expiry() -> Self {
        Self::new(WITHOUT_EXPIRY, OPTIONS, "lock_name", "true")
    }

    /// A table with these columns.
    pub(super) fn new(columns: &str, options: &str, name: &'static str, held: &'static str) -> Self {
        let (server, table) = (shared(), format!("Table {:016x}", rand::random::<u64>()));
        server.psql_in(DATABASE, &format!("CREATE TABLE \"{table}\" ({columns})"));
        let wire = Wire::to(server.port());
        let url = server.url(DATABASE).replace(&format!(":{}", server.port()), &format!(":{}", wire.port()));
        let encoded = table.replace(' ', "%20");
        Self { wire, url: format!("{url}?{options}&table={encoded}"), table, name, held }
    }

    pub(super) fn url(&self) -> &str {
        &self.url
    }

    /// Runs statements with psql; `@` is the table.
    pub(super) fn psql(&self, sql: &str) -> String {
        shared().psql_in(DATABASE, &sql.replace('@', &format!("\"{}\"", self.table))).trim_end().to_owned()
    }
}

impl TestBench for TableBench {
    fn connect(&self) -> impl Future<Output = Result<Arc<dyn Backend>>> + Send + 'static {
        let url = self.url.clone();
        async move { fencepost_postgres::open(&url).await }
    }

    /// Rows whose leases have ended stay: `ShedLock` needs them, and a home-made table keeps them until the name is used again.
    async fn peek(&self) -> StoredCounts {
        let driver = drive(&shared().url(DATABASE)).await;
        let sql = format!("SELECT count(*) FROM \"{}\" WHERE {}", self.table, self.held);
        let found = driver.query_one(&sql, &[]).await.expect("the table is there");
        let holders = usize::try_from(found.get::<_, i64>(0)).expect("a count");
        StoredCounts { holders, ..StoredCounts::default() }
    }

    async fn steal(&self, name: &LockName) {
        let driver = drive(&shared().url(DATABASE)).await;
        let sql = format!("DELETE FROM \"{}\" WHERE {} = $1", self.table, self.name);
        driver.execute(&sql, &[&name.as_str()]).await.expect("the row is deleted");
    }

    async fn cut(&self) {
        self.wire.cut();
    }

    async fn heal(&self) {
        self.wire.heal();
    }

    fn yields_to_foreign_clients(&self) -> bool {
        true
    }

    fn ttl(&self) -> Duration {
        Duration::from_millis(900)
    }

    fn crowd_size(&self) -> usize {
        500
    }
}
