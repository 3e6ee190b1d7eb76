//! Steps that the tests of MariaDB repeat.

use mysql_async::prelude::Queryable;

pub(crate) use fencepost_testkit::actions::*;

use crate::bench::MariadbBench;

/// The errors of a row that stays locked, and of a deadlock.
const LOCKED: [u16; 2] = [1205, 1213];

/// The documented statements that lock a lock in a transaction of the user's own, in which `?` is the name.
pub(crate) const LOCK_ROW: &str = "INSERT INTO {locks} (name) VALUES (?) ON DUPLICATE KEY UPDATE name = name";
const COUNT_HOLDERS: &str = "SELECT COUNT(*) FROM {holders} WHERE name = ? AND until_ns > \
    1000 * TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6))";
const RAISE: &str =
    "INSERT IGNORE INTO {tokens} VALUES (TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6)))";
const MINT: &str = "INSERT INTO {tokens} VALUES (NULL)";

/// A transaction of another program, on a connection of its own.
pub(crate) struct Transaction {
    pub(crate) driver: mysql_async::Conn,
    statements: [String; 4],
}

impl Transaction {
    /// Begins a transaction that waits a second for rows.
    pub(crate) async fn begin(bench: &MariadbBench) -> Self {
        let statements = [LOCK_ROW, COUNT_HOLDERS, RAISE, MINT].map(|sql| bench.with_tables(sql));
        let mut transaction = Self { driver: bench.driver().await, statements };
        transaction.run("SET SESSION innodb_lock_wait_timeout = 1").await;
        transaction.run("SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED").await;
        transaction.run("START TRANSACTION").await;
        transaction
    }

    /// Executes statements.
    pub(crate) async fn run(&mut self, sql: &str) {
        self.driver.query_drop(sql).await.expect("it succeeds");
    }

    /// Acquires the lock as documented, and returns its token; `None` if it is held. The transaction goes on.
    pub(crate) async fn lock_in(&mut self, name: &str) -> Option<u64> {
        let [lock, count, raise, mint] = &self.statements;
        match self.driver.exec_drop(lock, (name,)).await {
            Err(mysql_async::Error::Server(error)) if LOCKED.contains(&error.code) => return None,
            locked => locked.expect("the row is locked"),
        }
        let holders: Option<u64> = self.driver.exec_first(count, (name,)).await.expect("it can be read");
        if holders != Some(0) {
            return None;
        }
        self.driver.query_drop(raise).await.expect("the counter is raised");
        self.driver.query_drop(mint).await.expect("a token is minted");
        self.driver.last_insert_id()
    }

    /// Ends the transaction with COMMIT or ROLLBACK, and begins another one.
    pub(crate) async fn end(&mut self, how: &str) {
        self.run(how).await;
        self.run("START TRANSACTION").await;
    }
}
