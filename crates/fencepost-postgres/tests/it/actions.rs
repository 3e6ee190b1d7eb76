//! Steps that the tests of PostgreSQL repeat.

use fencepost_core::Client;
use fencepost_testkit::servers::postgres::{PostgresServer, shared};
use fencepost_testkit::wait;

pub(crate) use fencepost_testkit::actions::*;

use crate::bench::{DATABASE, PostgresBench, drive};

/// Returns a bench with a namespace of its own on this server, without a proxy in front of it.
pub(crate) fn bench_on(server: &PostgresServer) -> PostgresBench {
    PostgresBench::at(&server.url(DATABASE), "", &server.url(DATABASE))
}

/// Connects a client.
pub(crate) async fn connect(bench: &PostgresBench) -> Client {
    fencepost_postgres::connect(bench.url()).await.expect("it connects")
}

/// Waits until this many tickets are stored: a lock whose row is locked shows its waiters as well.
pub(crate) async fn until_tickets(bench: &PostgresBench, count: i64) {
    let driver = bench.driver().await;
    let sql = format!("SELECT count(*) FROM \"{}\".tickets", bench.namespace());
    wait::until(&format!("{count} tickets are stored"), async || {
        driver.query_one(&sql, &[]).await.expect("it can be read").get::<_, i64>(0) == count
    })
    .await;
}

/// A transaction of another program, on a connection of its own.
pub(crate) struct Transaction {
    pub(crate) driver: tokio_postgres::Client,
    namespace: String,
}

impl Transaction {
    /// Begins a transaction with the isolation level of the server.
    pub(crate) async fn begin(bench: &PostgresBench) -> Self {
        Self::begin_with(bench, "").await
    }

    /// Begins a transaction with these options.
    pub(crate) async fn begin_with(bench: &PostgresBench, options: &str) -> Self {
        let driver = drive(bench.direct()).await;
        driver.batch_execute(&format!("BEGIN {options}")).await.expect("it begins");
        Self { driver, namespace: bench.namespace().to_owned() }
    }

    /// Calls the function for the users' own transactions.
    pub(crate) async fn try_lock_in(
        &self,
        name: Option<&str>,
        wait_ms: i32,
    ) -> Result<Option<u64>, tokio_postgres::Error> {
        let sql = format!("SELECT \"{}\".lock_in($1, $2)", self.namespace);
        let row = self.driver.query_one(&sql, &[&name, &wait_ms]).await?;
        Ok(row.get::<_, Option<i64>>(0).map(|token| u64::try_from(token).expect("tokens are positive")))
    }

    /// Like [`Transaction::try_lock_in`], for calls that do not fail.
    pub(crate) async fn lock_in(&self, name: &str, wait_ms: i32) -> Option<u64> {
        self.try_lock_in(Some(name), wait_ms).await.expect("the function succeeds")
    }

    /// Executes a statement with the name as its argument; `@.` stands for the schema. Returns its first value.
    pub(crate) async fn value(&self, sql: &str, name: &str) -> Option<i64> {
        let sql = sql.replace("@.", &format!("\"{}\".", self.namespace));
        let rows = self.driver.query(&sql, &[&name]).await.expect("it succeeds");
        rows.first().map(|row| row.get(0))
    }

    /// Ends the transaction with COMMIT or ROLLBACK.
    pub(crate) async fn end(&self, how: &str) {
        self.driver.batch_execute(how).await.expect("it ends");
    }
}

/// Runs printed rights on the shared server: two accounts at once cannot be granted rights on the same database.
pub(crate) fn grant(rights: &str) {
    shared().psql(&format!("SELECT pg_advisory_lock(hashtext('grants of tests'));\n{rights}"));
}
