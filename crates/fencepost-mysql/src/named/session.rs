//! A connection that holds, or waits for, at most one named lock.

use std::time::Duration;

use fencepost_core::{Attempt, Error, ErrorKind, FencingToken, LockName, Result};
use fencepost_sql::Row;
use fencepost_sql::codec::meta_text;
use tokio::sync::OwnedSemaphorePermit;

use crate::config::Config;
use crate::error::Failure;
use crate::lease::fetch::NOW_MICROS;
use crate::lease::flight::READ_TIMEOUT;
use crate::literal::Sql;
use crate::session::{Connector, IDLE_SECONDS, Session as Connection};

/// Removes the time limits of the account, and raises the counter of tokens to the server's time: none is repeated after the server
/// has lost some, or after the tables were restored from a backup.
const SETUP: &str = "SET SESSION autocommit = 1 /*M!100100 , max_statement_time = 0 */ /*!80000 , max_execution_time = 0 */; \
    START TRANSACTION; INSERT IGNORE INTO @sessions@ (id, connection, session, lock_key, name, granted, since_us, ttl_ms, \
    label, meta) SELECT @now@, 0, '', '', '', 0, 0, 0, '', ''; ROLLBACK; SELECT CONNECTION_ID()";

/// How much longer than the server a client waits for the end of a wait.
const REPLY_TIME: Duration = Duration::from_secs(30);

/// Returns the condition that the connection of a row lives and has not ended the row's attempt.
pub(super) const IS_LIVE: &str = "IS_USED_LOCK(CONCAT('fp_s_', LOWER(HEX(s.session)))) = s.connection";

/// The outcome of trying to acquire a lock, or of waiting for it.
pub(super) enum Tried {
    Acquired(FencingToken),
    NotFree,
}

/// A connection. Its locks are free when it is dropped.
pub(super) struct Session {
    connection: Connection,
    /// Its `CONNECTION_ID()`.
    pub(super) id: i64,
    /// The key of the named lock that it has while it waits or holds: other clients see by it whether its row counts.
    liveness: [u8; 16],
    /// Its row.
    row: Option<i64>,
    table: String,
    /// Whether it has held another lock before: the server may have closed it meanwhile.
    pub(super) is_reused: bool,
    /// Held while it is in use.
    pub(super) permit: Option<OwnedSemaphorePermit>,
}

impl Session {
    pub(super) async fn open(connector: &Connector, config: &Config) -> Result<Self> {
        let mut connection = connector.connect().await?;
        let table = config.named_table("named_sessions");
        let setup = SETUP.replace("@sessions@", &table).replace("@now@", NOW_MICROS);
        let sets = connection.run(&setup, READ_TIMEOUT).await;
        let sets = sets.map_err(|failure| failure.into_error(&connector.location))?;
        let id = sets.last().and_then(|rows| rows.first()).map_or(Ok(0), |row| row.integer(0))?;
        let liveness = rand::random();
        Ok(Self { connection, id, liveness, row: None, table, is_reused: false, permit: None })
    }

    /// Whether it can be used for another lock.
    pub(super) fn is_usable(&self) -> bool {
        self.connection.is_usable()
    }

    /// Acquires the lock if it is free. Otherwise it is shown as a waiter, if it will wait.
    ///
    /// # Errors
    /// [`Refused::SameKey`] if the lock is held under another name.
    pub(super) async fn try_lock(
        &mut self,
        key: &str,
        attempt: &Attempt,
        waits: bool,
    ) -> Result<Tried, Refused> {
        let ttl = attempt.ttl.as_millis().div_ceil(1000).max(1);
        let mut sql = Sql::default();
        sql.text("SET SESSION wait_timeout = ").number(ttl);
        sql.text("; DO GET_LOCK(CONCAT('fp_s_', LOWER(HEX(").bytes(&self.liveness).text("))), 0); ");
        let shown = if waits { "@fp_got IS NOT NULL" } else { "@fp_got = 1" };
        self.write_lock(&mut sql, key, attempt, (0.0, shown));
        sql.text(", (SELECT s.name FROM ")
            .text(&self.table)
            .text(" AS s WHERE @fp_got = 0 AND s.connection = IS_USED_LOCK(");
        sql.lock(key)
            .text(") AND s.name <> ")
            .name(&attempt.wants[0].name)
            .text(" AND ")
            .text(IS_LIVE)
            .text(" LIMIT 1)");
        self.run_lock(&sql, READ_TIMEOUT.max(attempt.ttl)).await
    }

    /// Waits for the lock in the queue of the server, for at most `wait`.
    pub(super) async fn wait(
        &mut self,
        key: &str,
        attempt: &Attempt,
        wait: Duration,
    ) -> Result<Tried, Refused> {
        let mut sql = Sql::default();
        self.write_lock(&mut sql, key, attempt, (wait.as_secs_f64(), "@fp_got = 1"));
        sql.text(", NULL");
        self.run_lock(&sql, wait + REPLY_TIME).await
    }

    /// Writes the statements that acquire the lock within `wait` seconds and replace the row of the connection if `shown`. The last
    /// one can be continued.
    fn write_lock(&self, sql: &mut Sql, key: &str, attempt: &Attempt, (wait, shown): (f64, &str)) {
        sql.text("SET @fp_got = GET_LOCK(").lock(key).text(", ").number(wait).text("); START TRANSACTION; ");
        if let Some(row) = self.row {
            sql.text("DELETE FROM ")
                .text(&self.table)
                .text(" WHERE id = ")
                .number(row)
                .text(" AND ")
                .text(shown)
                .text("; ");
        }
        sql.text("INSERT INTO ").text(&self.table).text(
            " (connection, session, lock_key, name, granted, since_us, ttl_ms, label, meta) SELECT CONNECTION_ID(), ",
        );
        sql.bytes(&self.liveness).text(", ").bytes(key.as_bytes()).text(", ").name(&attempt.wants[0].name);
        sql.text(", @fp_got, ").text(NOW_MICROS).text(", ").number(attempt.ttl.as_millis()).text(", ");
        sql.bytes(attempt.label.as_bytes()).text(", ").bytes(meta_text(&attempt.meta).as_bytes());
        sql.text(" FROM DUAL WHERE ")
            .text(shown)
            .text("; COMMIT; SELECT @fp_got, LAST_INSERT_ID(), CONNECTION_ID()");
    }

    async fn run_lock(&mut self, sql: &Sql, timeout: Duration) -> Result<Tried, Refused> {
        let sets = self.connection.run(sql.as_str(), timeout).await?;
        let row = sets.last().and_then(|rows| rows.first()).ok_or(Refused::Interrupted)?;
        let number = |column| row.optional_integer(column).ok().flatten();
        let id = number(1).unwrap_or(0);
        if number(2) != Some(self.id) {
            return Err(Refused::OtherConnection);
        }
        match number(0) {
            Some(1) => {
                self.row = Some(id);
                Ok(Tried::Acquired(FencingToken::new(id.unsigned_abs())))
            }
            Some(0) => {
                self.row = Some(id).filter(|id| *id > 0).or(self.row);
                match row.optional_text(3).ok().flatten() {
                    Some(other) => Err(Refused::SameKey(other)),
                    None => Ok(Tried::NotFree),
                }
            }
            // The statement was killed, or the server has no memory left.
            _ => Err(Refused::Interrupted),
        }
    }

    /// Proves to both sides that the connection lives, that it is the same as before, and that it has the lock.
    pub(super) async fn heartbeat(&mut self, key: &str, timeout: Duration) -> Result<bool, Failure> {
        let mut sql = Sql::default();
        sql.text("SELECT CONNECTION_ID() = ")
            .number(self.id)
            .text(" AND IS_USED_LOCK(")
            .lock(key)
            .text(") = ")
            .number(self.id);
        let sets = self.connection.run(sql.as_str(), timeout).await?;
        Ok(sets
            .last()
            .and_then(|rows| rows.first())
            .is_some_and(|row| row.integer(0).is_ok_and(|held| held == 1)))
    }

    /// Frees the lock and removes the row of the connection, which can then be used for another one. Returns whether it had the lock.
    pub(super) async fn unlock(&mut self, key: &str, timeout: Duration) -> Result<bool, Failure> {
        let mut sql = Sql::default();
        // A wait that was interrupted has not ended its transaction.
        sql.text("ROLLBACK; SELECT RELEASE_LOCK(").lock(key).text("); ");
        if let Some(row) = self.row {
            sql.text("DELETE FROM ").text(&self.table).text(" WHERE id = ").number(row).text("; ");
        }
        sql.text("SET SESSION wait_timeout = ").number(IDLE_SECONDS).text("; SELECT RELEASE_ALL_LOCKS()");
        let mut outcome = self.connection.run(sql.as_str(), timeout).await;
        if outcome.as_ref().is_err_and(Failure::is_interrupted) {
            // The interruption of the wait before it has arrived late.
            outcome = self.connection.run(sql.as_str(), timeout).await;
        }
        let freed = outcome?.get(1).and_then(|rows| rows.first()).map(|row| row.optional_integer(0));
        self.row = None;
        Ok(matches!(freed, Some(Ok(Some(1)))))
    }
}

/// Why the server did not accept an attempt.
pub(super) enum Refused {
    Failed(Failure),
    /// The lock is held under this name, which has the same key.
    SameKey(String),
    Interrupted,
    /// A proxy sends statements of one connection to several of the server.
    OtherConnection,
}

impl From<Failure> for Refused {
    fn from(failure: Failure) -> Self {
        Self::Failed(failure)
    }
}

impl Refused {
    pub(super) fn is_connection_lost(&self) -> bool {
        matches!(self, Self::Failed(failure) if failure.is_connection_lost())
    }

    pub(super) fn into_error(self, location: &str, name: &LockName) -> Error {
        match self {
            Self::Failed(Failure::NoReply(error)) => Error::new(
                ErrorKind::OutcomeUnknown,
                format!("the connection to {location} ended before the reply"),
            )
            .with_source(error),
            Self::Failed(failure) => failure.into_error(location),
            Self::SameKey(other) => {
                let name = name.as_str();
                let text = format!(
                    "lock {name:?} is the same named lock of the server as {other:?}, which is in use"
                );
                Error::new(ErrorKind::Conflict, text).with_hint(
                    "MySQL does not distinguish case there: rename one of the locks, or use key=sha256",
                )
            }
            Self::Interrupted => {
                Error::new(ErrorKind::Unreachable, format!("{location} has interrupted a wait")).transient()
            }
            Self::OtherConnection => shared_connection(location),
        }
    }
}

pub(super) fn shared_connection(location: &str) -> Error {
    let text =
        format!("{location} is a proxy that shares its connections: named locks belong to one of them");
    Error::new(ErrorKind::Unsupported, text).with_hint(
        "use the address of the server itself, or mode=lease, which needs no connection of its own",
    )
}
