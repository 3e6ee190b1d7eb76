//! A connection that holds, or waits for, at most one named lock.

use std::time::Duration;

use async_trait::async_trait;
use fencepost_core::backend::OnBusy;
use fencepost_core::{Attempt, Error, ErrorKind, FencingToken, Result};
use fencepost_sql::Row;
use fencepost_sql::codec::meta_text;
use fencepost_sql::session_lock::{LockSession, Tried};

use crate::config::Config;
use crate::error::Failure;
use crate::lease::fetch::NOW_MICROS;
use crate::lease::flight::{MAX_ROUNDS, READ_TIMEOUT};
use crate::literal::Sql;
use crate::session::{Connector, IDLE_SECONDS, Rows, Session as Connection};

/// How often the statements that end a lock are sent.
const MAX_UNLOCKS: usize = 3;

/// Removes the time limits of the account, and raises the counter of tokens to the server's time: none is repeated after the server
/// has lost some, or after the tables were restored from a backup.
const SETUP: &str = "SET SESSION autocommit = 1 /*M!100100 , max_statement_time = 0 */ /*!80000 , max_execution_time = 0 */; \
    START TRANSACTION; INSERT IGNORE INTO @sessions@ (id, connection, session, lock_key, name, granted, since_us, ttl_ms, \
    label, meta) SELECT @now@, 0, '', '', '', 0, 0, 0, '', ''; ROLLBACK; SELECT CONNECTION_ID()";

/// How much longer than the server a client waits for the end of a wait.
const REPLY_TIME: Duration = Duration::from_secs(30);

/// Returns the condition that the connection of a row lives and has not ended the row's attempt.
pub(super) const IS_LIVE: &str = "IS_USED_LOCK(CONCAT('fp_s_', LOWER(HEX(s.session)))) = s.connection";

/// A connection. Its locks are free when it is dropped.
pub(super) struct Session {
    pub(super) connection: Connection,
    location: String,
    /// Its `CONNECTION_ID()`.
    id: i64,
    /// The key of the named lock that it has while it waits or holds: other clients see by it whether its row counts.
    liveness: [u8; 16],
    /// Its row.
    row: Option<i64>,
    /// Whether a wait has acquired the lock: the row does not say so yet.
    is_unnumbered: bool,
    table: String,
}

impl Session {
    pub(super) async fn open(connector: &Connector, config: &Config) -> Result<Self> {
        let mut connection = connector.connect().await?;
        let table = config.named_table("named_sessions");
        let setup = SETUP.replace("@sessions@", &table).replace("@now@", NOW_MICROS);
        let sets = run_transaction(&mut connection, &setup, READ_TIMEOUT).await;
        let sets = sets.map_err(|failure| failure.into_error(&connector.location))?;
        let id = sets.last().and_then(|rows| rows.first()).map_or(Ok(0), |row| row.integer(0))?;
        let location = connector.location.clone();
        Ok(Self {
            connection,
            location,
            id,
            liveness: rand::random(),
            row: None,
            is_unnumbered: false,
            table,
        })
    }

    /// Returns the statements that acquire the lock if it is free, or number the grant of a wait, and replace the row of the
    /// connection.
    fn lock_statements(&self, key: &str, attempt: &Attempt, on_busy: OnBusy) -> Sql {
        let mut sql = Sql::default();
        if self.is_unnumbered {
            sql.text("SET @fp_got = COALESCE(IS_USED_LOCK(").lock(key).text(") = CONNECTION_ID(), 0)");
        } else {
            let ttl = attempt.ttl.as_millis().div_ceil(1000).max(1);
            sql.text("SET SESSION wait_timeout = ").number(ttl);
            sql.text("; DO GET_LOCK(CONCAT('fp_s_', LOWER(HEX(").bytes(&self.liveness).text("))), 0); ");
            sql.text("SET @fp_got = GET_LOCK(").lock(key).text(", 0)");
        }
        let is_waiter_shown = on_busy == OnBusy::Wait && !self.is_unnumbered;
        let shown = if is_waiter_shown { "@fp_got IS NOT NULL" } else { "@fp_got = 1" };
        sql.text("; START TRANSACTION; ");
        if let Some(row) = self.row {
            sql.text("DELETE FROM ").text(&self.table).text(" WHERE id = ").number(row);
            sql.text(" AND ").text(shown).text("; ");
        }
        sql.text("INSERT INTO ").text(&self.table).text(
            " (connection, session, lock_key, name, granted, since_us, ttl_ms, label, meta) SELECT CONNECTION_ID(), ",
        );
        sql.bytes(&self.liveness).text(", ").bytes(key.as_bytes()).text(", ").name(&attempt.wants[0].name);
        sql.text(", @fp_got, ").text(NOW_MICROS).text(", ").number(attempt.ttl.as_millis()).text(", ");
        sql.bytes(attempt.label.as_bytes()).text(", ").bytes(meta_text(&attempt.meta).as_bytes());
        sql.text(" FROM DUAL WHERE ").text(shown);
        sql.text("; COMMIT; SELECT @fp_got, LAST_INSERT_ID(), CONNECTION_ID(), (SELECT s.name FROM ");
        sql.text(&self.table).text(" AS s WHERE @fp_got = 0 AND s.connection = IS_USED_LOCK(").lock(key);
        sql.text(") AND s.name <> ")
            .name(&attempt.wants[0].name)
            .text(" AND ")
            .text(IS_LIVE)
            .text(" LIMIT 1)");
        sql
    }

    /// The statement was killed, or the server has no memory left.
    fn interrupted(&self) -> Error {
        let text = format!("{} has interrupted a wait", self.location);
        Error::new(ErrorKind::Unreachable, text).transient()
    }

    fn failed(&self, failure: Failure) -> Error {
        match failure {
            Failure::NoReply(error) => {
                let text = format!("the connection to {} ended before the reply", self.location);
                Error::new(ErrorKind::OutcomeUnknown, text).with_source(error)
            }
            rejected @ Failure::Rejected { .. } => rejected.into_error(&self.location),
        }
    }
}

/// Runs statements with one transaction, again if the server chose it as the victim of a deadlock, or if another transaction has a
/// row locked for long. The connection keeps its named locks, so that `GET_LOCK` does not wait again for one that it has acquired.
async fn run_transaction(
    connection: &mut Connection,
    sql: &str,
    timeout: Duration,
) -> Result<Vec<Rows>, Failure> {
    for _ in 1..MAX_ROUNDS {
        match connection.run(sql, timeout).await {
            Err(failure) if failure.is_deadlock() || failure.is_locked() => {
                connection.run("ROLLBACK", timeout).await?;
            }
            outcome => return outcome,
        }
    }
    connection.run(sql, timeout).await
}

#[async_trait]
impl LockSession for Session {
    type Key = String;
    type Id = i64;

    /// A connection that has tried has the lock of its liveness.
    const IS_CLEAN_WHEN_BUSY: bool = false;

    fn id(&self) -> i64 {
        self.id
    }

    fn is_usable(&self) -> bool {
        self.connection.is_usable()
    }

    async fn try_lock(&mut self, key: &String, attempt: &Attempt, on_busy: OnBusy) -> Result<Tried> {
        let sql = self.lock_statements(key, attempt, on_busy);
        let timeout = READ_TIMEOUT.max(attempt.ttl);
        let sets = run_transaction(&mut self.connection, sql.as_str(), timeout).await;
        let sets = sets.map_err(|failure| self.failed(failure))?;
        let row = sets.last().and_then(|rows| rows.first()).ok_or_else(|| self.interrupted())?;
        let number = |column| row.optional_integer(column).ok().flatten();
        let id = number(1).unwrap_or(0);
        if number(2) != Some(self.id) {
            return Err(shared_connection(&self.location));
        }
        self.is_unnumbered = false;
        match number(0) {
            Some(1) => {
                self.row = Some(id);
                Ok(Tried::Acquired(FencingToken::new(id.unsigned_abs())))
            }
            Some(0) => {
                self.row = Some(id).filter(|id| *id > 0).or(self.row);
                match row.optional_text(3).ok().flatten() {
                    Some(other) => Err(collision(attempt.wants[0].name.as_str(), &other)),
                    None => Ok(Tried::NotFree),
                }
            }
            _ => Err(self.interrupted()),
        }
    }

    /// If `KILL QUERY` meets a request between two of its statements, the server executes no more of them, and the driver waits for
    /// the next result for ever.
    async fn wait(&mut self, key: &String, _attempt: &Attempt, wait: Duration) -> Result<Tried> {
        let mut sql = Sql::default();
        sql.text("SELECT GET_LOCK(").lock(key).text(", ").number(wait.as_secs_f64()).text(")");
        let sets = self.connection.run(sql.as_str(), wait + REPLY_TIME).await;
        let sets = sets.map_err(|failure| self.failed(failure))?;
        let got =
            sets.first().and_then(|rows| rows.first()).map_or(Ok(None), |row| row.optional_integer(0))?;
        self.is_unnumbered = got == Some(1);
        match got {
            Some(1) => Ok(Tried::Unnumbered),
            Some(_) => Ok(Tried::NotFree),
            None => Err(self.interrupted()),
        }
    }

    /// The connection must be the same as before: a proxy may send statements to another one.
    async fn heartbeat(&mut self, key: &String, attempt: &Attempt) -> bool {
        let mut sql = Sql::default();
        sql.text("SELECT CONNECTION_ID() = ")
            .number(self.id)
            .text(" AND IS_USED_LOCK(")
            .lock(key)
            .text(") = ")
            .number(self.id);
        let Ok(sets) = self.connection.run(sql.as_str(), attempt.ttl).await else { return false };
        let row = sets.last().and_then(|rows| rows.first());
        row.is_some_and(|row| row.integer(0).is_ok_and(|held| held == 1))
    }

    /// Also removes the row of the connection.
    async fn unlock(&mut self, key: &String, attempt: &Attempt) -> Result<bool> {
        let mut sql = Sql::default();
        // An attempt to acquire the lock that failed has not ended its transaction.
        sql.text("ROLLBACK; SELECT RELEASE_LOCK(").lock(key).text("); ");
        if let Some(row) = self.row {
            sql.text("DELETE FROM ").text(&self.table).text(" WHERE id = ").number(row).text("; ");
        }
        sql.text("SET SESSION wait_timeout = ").number(IDLE_SECONDS).text("; SELECT RELEASE_ALL_LOCKS()");
        for sent in 0..MAX_UNLOCKS {
            match self.connection.run(sql.as_str(), attempt.ttl).await {
                Ok(sets) => {
                    let freed = sets.get(1).and_then(|rows| rows.first()).map(|row| row.optional_integer(0));
                    (self.row, self.is_unnumbered) = (None, false);
                    return Ok(sent > 0 || matches!(freed, Some(Ok(Some(1)))));
                }
                // The row is locked by another transaction, or an administrator has interrupted it. The connection lives, and has
                // had the lock until now.
                Err(failure) if failure.is_deadlock() || failure.is_locked() || failure.is_interrupted() => {}
                Err(failure) => return Err(self.failed(failure)),
            }
        }
        // The end of the connection frees whatever it has, and its row is swept.
        self.connection.close_at_once();
        Ok(true)
    }
}

/// Returns the error for a name that is the same named lock of the server as another one in use.
pub(super) fn collision(name: &str, other: &str) -> Error {
    let text = format!("lock {name:?} is the same named lock of the server as {other:?}, which is in use");
    Error::new(ErrorKind::Conflict, text)
        .with_hint("MySQL does not distinguish case there: rename one of the locks, or use key=sha256")
}

/// Returns the error for a proxy that sends statements of one connection to several of the server.
pub(super) fn shared_connection(location: &str) -> Error {
    let text =
        format!("{location} is a proxy that shares its connections: named locks belong to one of them");
    Error::new(ErrorKind::Unsupported, text).with_hint(
        "use the address of the server itself, or mode=lease, which needs no connection of its own",
    )
}
