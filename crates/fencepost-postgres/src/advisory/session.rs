//! A connection whose session holds, or waits for, at most one advisory lock.

use std::time::Duration;

use async_trait::async_trait;
use fencepost_core::backend::OnBusy;
use fencepost_core::{Attempt, Error, ErrorKind, FencingToken, Mode, Result};
use fencepost_sql::codec::{meta_text, unsigned};
use fencepost_sql::session_lock::{LockSession, Tried};
use tokio::task::AbortHandle;
use tokio_postgres::Client;
use tokio_postgres::error::SqlState;
use tokio_postgres::types::{ToSql, Type};

use super::keys::Key;
use crate::config::quoted;
use crate::error::call_failed;
use crate::link::socket::{KEEPALIVE_IDLE, KEEPALIVE_INTERVAL, KEEPALIVE_PROBES, USER_TIMEOUT};
use crate::link::{EndReceiver, Link};

/// How often the server checks, while a session waits for a lock, whether its client is still connected.
pub(crate) const CONNECTION_CHECK: Duration = Duration::from_secs(2);

/// How long a session without a lock is kept for the next one.
const IDLE_TIME: Duration = Duration::from_secs(60);

/// A session. Its locks are free when it is dropped.
pub(super) struct Session {
    client: Client,
    driver: AbortHandle,
    end: EndReceiver,
    location: String,
    schema: String,
    pid: i32,
    /// The code with which the server has ended the session or rejected a heartbeat, if it has.
    code: Option<SqlState>,
}

impl Session {
    /// Opens a session whose end the server notices: of a client that is gone, and of one that does not renew.
    pub(super) async fn open(link: &Link) -> Result<Self> {
        let (client, driver, end) = link.open_session().await?;
        let location = link.location().to_owned();
        let row = client.query_typed_one(&settings(), &[]).await;
        let pid = row.map_err(|error| call_failed(&location, &error))?.get(0);
        let schema = quoted(&link.config().namespace);
        Ok(Self { client, driver, end, location, schema, pid, code: None })
    }

    /// Returns whether an administrator has ended the session.
    pub(super) fn is_terminated(&self) -> bool {
        self.code == Some(SqlState::ADMIN_SHUTDOWN)
    }

    /// Returns whether the server has ended the session.
    pub(super) async fn is_ended(&mut self) -> bool {
        if self.code.is_none() && self.client.is_closed() {
            self.ended().await;
        }
        self.code.is_some()
    }

    /// Returns the value of an expression of the name.
    pub(super) async fn evaluate(&self, expression: &str, name: &str) -> Result<i64> {
        let query = format!("SELECT {expression}");
        let row = self.client.query_typed_one(&query, &[(&name, Type::TEXT)]).await;
        Ok(row.map_err(|error| self.failed(&error))?.get(0))
    }

    fn failed(&self, error: &tokio_postgres::Error) -> Error {
        call_failed(&self.location, error)
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        // At once: the driver would first wait for the reply to a statement that is in flight.
        self.driver.abort();
    }
}

#[async_trait]
impl LockSession for Session {
    type Key = Key;
    type Id = i32;

    const IS_CLEAN_WHEN_BUSY: bool = true;

    fn id(&self) -> i32 {
        self.pid
    }

    fn is_usable(&self) -> bool {
        !self.client.is_closed()
    }

    async fn try_lock(&mut self, key: &Key, attempt: &Attempt, on_busy: OnBusy) -> Result<Tried> {
        let query = format!(
            "SELECT code, token, other FROM {}.advisory_try($1, $2, $3, $4, $5, $6, $7, $8, $9, $10)",
            self.schema
        );
        let want = &attempt.wants[0];
        let (single, first, second) = arguments(*key);
        let (owner, meta) = (attempt.owner.to_hex(), meta_text(&attempt.meta));
        let (name, label, ttl) = (want.name.as_str(), &*attempt.label, millis(attempt.ttl));
        let parameters: [(&(dyn ToSql + Sync), Type); 10] = [
            (&(want.mode == Mode::Shared), Type::BOOL),
            (&single, Type::INT8),
            (&first, Type::INT4),
            (&second, Type::INT4),
            (&(on_busy == OnBusy::Wait), Type::BOOL),
            (&name, Type::TEXT),
            (&owner, Type::TEXT),
            (&ttl, Type::INT8),
            (&label, Type::TEXT),
            (&meta, Type::TEXT),
        ];
        let row = self.client.query_typed_one(&query, &parameters).await;
        let row = row.map_err(|error| self.failed(&error))?;
        match row.get::<_, i32>(0) {
            1 => Ok(Tried::Acquired(FencingToken::new(unsigned(row.get(1))))),
            2 => Ok(Tried::NotFree),
            _ => Err(collision(name, row.get::<_, &str>(2))),
        }
    }

    async fn wait(&mut self, key: &Key, attempt: &Attempt, wait: Duration) -> Result<Tried> {
        let query = format!("SELECT {}.advisory_wait($1, $2, $3, $4, $5)", self.schema);
        let (single, first, second) = arguments(*key);
        let parameters: [(&(dyn ToSql + Sync), Type); 5] = [
            (&(attempt.wants[0].mode == Mode::Shared), Type::BOOL),
            (&single, Type::INT8),
            (&first, Type::INT4),
            (&second, Type::INT4),
            (&millis(wait), Type::INT8),
        ];
        let gave_up = [SqlState::LOCK_NOT_AVAILABLE, SqlState::QUERY_CANCELED];
        match self.client.query_typed_one(&query, &parameters).await {
            Ok(row) => Ok(Tried::Acquired(FencingToken::new(unsigned(row.get(0))))),
            Err(error) if error.code().is_some_and(|code| gave_up.contains(code)) => Ok(Tried::NotFree),
            Err(error) => Err(self.failed(&error)),
        }
    }

    /// The session must be the same as before: locks do not move with a pooler.
    async fn heartbeat(&mut self, _key: &Key, _attempt: &Attempt) -> bool {
        match self.client.query_typed_one("SELECT pg_backend_pid()", &[]).await {
            Ok(row) => row.get::<_, i32>(0) == self.pid,
            Err(error) => {
                self.code = error.code().cloned();
                // The server may have ended the session before the heartbeat arrived.
                self.is_ended().await;
                false
            }
        }
    }

    async fn ended(&mut self) {
        self.code = (&mut self.end).await.ok().flatten();
    }

    async fn unlock(&mut self, _key: &Key, _attempt: &Attempt) -> Result<bool> {
        let query = format!(
            "SELECT pg_advisory_unlock_all()::text, set_config('idle_session_timeout', '{}', false)",
            IDLE_TIME.as_millis()
        );
        let mut outcome = self.client.query_typed_one(&query, &[]).await;
        if outcome.as_ref().is_err_and(|error| error.code() == Some(&SqlState::QUERY_CANCELED)) {
            // A cancellation of the wait before it has arrived late.
            outcome = self.client.query_typed_one(&query, &[]).await;
        }
        outcome.map(|_| true).map_err(|error| {
            self.code = error.code().filter(|code| **code == SqlState::ADMIN_SHUTDOWN).cloned();
            self.failed(&error)
        })
    }
}

/// Sets how the server notices the end of the client, and removes the timeouts of the account and the database. Returns the
/// process id.
fn settings() -> String {
    let keepalive = [
        ("tcp_keepalives_idle", KEEPALIVE_IDLE.as_secs()),
        ("tcp_keepalives_interval", KEEPALIVE_INTERVAL.as_secs()),
        ("tcp_keepalives_count", u64::from(KEEPALIVE_PROBES)),
    ];
    let millis = |duration: Duration| u64::try_from(duration.as_millis()).unwrap_or(u64::MAX);
    let others = [
        ("tcp_user_timeout", millis(USER_TIMEOUT)),
        ("client_connection_check_interval", millis(CONNECTION_CHECK)),
        ("idle_session_timeout", millis(IDLE_TIME)),
        ("statement_timeout", 0),
        ("lock_timeout", 0),
        ("transaction_timeout", 0),
    ];
    // The rows of sessions are of no use after a crash, and the tokens follow the clock.
    let lazy = "set_config('synchronous_commit', 'off', false)".to_owned();
    let set = keepalive.into_iter().chain(others).map(|(name, value)| {
        // Some are newer than the oldest server.
        format!("CASE WHEN current_setting('{name}', true) IS NOT NULL THEN set_config('{name}', '{value}', false) END")
    });
    let set: Vec<String> = set.chain([lazy]).collect();
    format!("SELECT pg_backend_pid(), {}", set.join(", "))
}

fn arguments(key: Key) -> (Option<i64>, Option<i32>, Option<i32>) {
    match key {
        Key::Single(key) => (Some(key), None, None),
        Key::Pair(first, second) => (None, Some(first), Some(second)),
    }
}

fn millis(duration: Duration) -> i64 {
    i64::try_from(duration.as_micros().div_ceil(1000)).unwrap_or(i64::MAX)
}

/// Returns the error for a name that has the same key as another one in use.
pub(super) fn collision(name: &str, other: &str) -> Error {
    let message = format!("lock {name:?} has the same advisory key as lock {other:?}, which is in use");
    Error::new(ErrorKind::Conflict, message)
        .with_hint("advisory keys are numbers of 64 bits: rename one of the locks, or use mode=lease")
}
