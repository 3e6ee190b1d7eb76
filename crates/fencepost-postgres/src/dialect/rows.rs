//! Executes the statements.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use fencepost_core::backend::HolderState;
use fencepost_core::{Error, ErrorKind, Finding, LockName, Result, request_timeout};
use fencepost_sql::codec::unsigned;
use fencepost_sql::table_lock::{AcquireRequest, AcquireResult, HeldRow, LockRows, MarkPattern, TableInfo};
use tokio::time::timeout;
use tokio_postgres::Row;
use tokio_postgres::error::SqlState;
use tokio_postgres::types::{ToSql, Type};

use super::Table;
use super::catalogue::Found;
use super::diagnose;
use super::statements::Statements;
use crate::error::call_failed;
use crate::lease::pool::Pool;

/// How often an acquire is sent that waits too long for a lock of the server, before the row counts as held: the lock may be
/// one of a moment, such as that of a table that grows.
const MAX_LOCKED: usize = 3;
/// The timeout of statements that are not about a lease.
const TIMEOUT: Duration = Duration::from_secs(5);

/// The rows of a table.
pub(super) struct PostgresRows {
    pub(super) pool: Arc<Pool>,
    pub(super) info: TableInfo,
    pub(super) table: Table,
    pub(super) found: Found,
    pub(super) statements: Statements,
}

/// A parameter with its type: statements are not prepared, because a pooler may share the connections.
pub(super) type Parameter<'a> = (&'a (dyn ToSql + Sync), Type);

/// Why a statement has no result.
enum CallError {
    /// Another transaction has locked the row for too long. Nothing was changed.
    Locked,
    Failed(Error),
}

impl PostgresRows {
    /// Executes one statement.
    pub(super) async fn query(
        &self,
        sql: &str,
        parameters: &[Parameter<'_>],
        within: Duration,
    ) -> Result<Vec<Row>> {
        self.call(sql, parameters, within).await.map_err(|error| match error {
            CallError::Failed(error) => error,
            CallError::Locked => {
                let message = format!(
                    "a transaction of another program has locked the lock's row in {}",
                    self.info.location
                );
                Error::new(ErrorKind::Unreachable, message)
            }
        })
    }

    async fn call(
        &self,
        sql: &str,
        parameters: &[Parameter<'_>],
        within: Duration,
    ) -> std::result::Result<Vec<Row>, CallError> {
        let no_reply = |kind| {
            CallError::Failed(Error::new(kind, format!("{} did not respond in time", self.info.location)))
        };
        let connection = timeout(within, self.pool.get()).await;
        let connection =
            connection.map_err(|_| no_reply(ErrorKind::Unreachable))?.map_err(CallError::Failed)?;
        match timeout(within, connection.query_typed(sql, parameters)).await {
            Ok(Ok(rows)) => Ok(rows),
            Ok(Err(error)) => Err(match error.code() {
                Some(
                    &SqlState::LOCK_NOT_AVAILABLE
                    | &SqlState::T_R_DEADLOCK_DETECTED
                    | &SqlState::T_R_SERIALIZATION_FAILURE,
                ) => CallError::Locked,
                Some(&SqlState::UNDEFINED_TABLE | &SqlState::UNDEFINED_COLUMN) => {
                    CallError::Failed(self.altered(&error))
                }
                _ => CallError::Failed(call_failed(&self.info.location, &error)),
            }),
            Err(_) => {
                connection.give_up();
                Err(no_reply(ErrorKind::OutcomeUnknown))
            }
        }
    }

    /// Returns the error for a table that was dropped or altered after this client has connected.
    fn altered(&self, error: &tokio_postgres::Error) -> Error {
        let message =
            format!("table {} in {} was dropped or altered", self.table.identifier, self.info.location);
        let reply = error.as_db_error().map(|reply| reply.message().to_owned());
        Error::new(ErrorKind::Backend, message)
            .with_hint(format!(
                "such a table is: {}; clients notice a change when they connect",
                self.table.create()
            ))
            .with_source(reply.unwrap_or_default())
    }

    fn unexpected(&self, error: &tokio_postgres::Error) -> Error {
        call_failed(&self.info.location, error)
    }
}

/// The parameter for a duration.
fn micros(duration: Duration) -> i64 {
    i64::try_from(duration.as_micros()).unwrap_or(i64::MAX)
}

fn duration(micros: Option<i64>) -> Option<Duration> {
    micros.map(|micros| Duration::from_micros(unsigned(micros.max(0))))
}

fn held_row(row: &Row) -> std::result::Result<HeldRow, tokio_postgres::Error> {
    let held_for: Option<i64> = row.try_get(3)?;
    Ok(HeldRow {
        name: row.try_get(0)?,
        owner: row.try_get::<_, Option<String>>(1)?.unwrap_or_default(),
        left: duration(row.try_get(2)?),
        // It is negative if another client has written it by a clock that is ahead.
        held_for: duration(held_for.filter(|micros| *micros >= 0)),
    })
}

fn acquire_result(row: &Row, name: &str) -> std::result::Result<AcquireResult, tokio_postgres::Error> {
    let holder = HeldRow {
        name: name.to_owned(),
        owner: row.try_get::<_, Option<String>>(1)?.unwrap_or_default(),
        left: duration(row.try_get(2)?),
        held_for: None,
    };
    Ok(AcquireResult {
        granted: row.try_get(0)?,
        holder: row.try_get::<_, bool>(5)?.then_some(holder),
        server_time: Some(unsigned(row.try_get(3)?)),
        is_late: row.try_get(4)?,
    })
}

#[async_trait]
impl LockRows for PostgresRows {
    fn info(&self) -> &TableInfo {
        &self.info
    }

    async fn acquire(&self, request: AcquireRequest<'_>) -> Result<AcquireResult> {
        let AcquireRequest { name, owner, label, ttl, not_after } = request;
        let format = self.info.owner;
        let (label, tail) = (format.label_prefix(label), format.tail(owner));
        let (pattern, not_after) = (MarkPattern::attempt(format, owner), i64::try_from(not_after));
        let parameters: [Parameter<'_>; 6] = [
            (&name.as_str(), Type::TEXT),
            (&label, Type::TEXT),
            (&tail, Type::TEXT),
            (&pattern.as_like(), Type::TEXT),
            (&not_after.unwrap_or(i64::MAX), Type::INT8),
            (&micros(ttl), Type::INT8),
        ];
        for _ in 0..MAX_LOCKED {
            match self.call(&self.statements.acquire, &parameters, request_timeout(ttl)).await {
                Ok(rows) => {
                    let read = rows.first().map(|row| acquire_result(row, name.as_str()));
                    let read = read.unwrap_or_else(|| Ok(AcquireResult::default()));
                    return read.map_err(|error| self.unexpected(&error));
                }
                Err(CallError::Locked) => {}
                Err(CallError::Failed(error)) => return Err(error),
            }
        }
        Ok(AcquireResult::default())
    }

    async fn renew(&self, name: &LockName, mark: &MarkPattern, ttl: Duration) -> Result<bool> {
        let parameters: [Parameter<'_>; 3] =
            [(&name.as_str(), Type::TEXT), (&mark.as_like(), Type::TEXT), (&micros(ttl), Type::INT8)];
        let rows = self.query(&self.statements.renew, &parameters, request_timeout(ttl)).await?;
        Ok(!rows.is_empty())
    }

    async fn release(&self, name: &LockName, mark: &MarkPattern) -> Result<bool> {
        let parameters: [Parameter<'_>; 2] = [(&name.as_str(), Type::TEXT), (&mark.as_like(), Type::TEXT)];
        let rows = self.query(&self.statements.release, &parameters, TIMEOUT).await?;
        let was_held = rows.first().map(|row| row.try_get(0));
        was_held.unwrap_or(Ok(false)).map_err(|error| self.unexpected(&error))
    }

    async fn find(&self, name: &LockName) -> Result<Option<HeldRow>> {
        let rows = self.query(&self.statements.find, &[(&name.as_str(), Type::TEXT)], TIMEOUT).await?;
        rows.first().map(held_row).transpose().map_err(|error| self.unexpected(&error))
    }

    async fn list(&self, prefix: &str, after: &str, limit: usize) -> Result<Vec<HeldRow>> {
        let limit = i64::try_from(limit).unwrap_or(i64::MAX);
        let parameters: [Parameter<'_>; 3] =
            [(&prefix, Type::TEXT), (&after, Type::TEXT), (&limit, Type::INT8)];
        let rows = self.query(&self.statements.list, &parameters, TIMEOUT).await?;
        let rows: std::result::Result<_, _> = rows.iter().map(held_row).collect();
        rows.map_err(|error| self.unexpected(&error))
    }

    async fn diagnose(&self) -> Vec<Finding> {
        diagnose::findings(self).await
    }

    async fn locate(&self, name: &LockName) -> Vec<Finding> {
        let row = self.find(name).await.map(|row| {
            let found = match row {
                None => "free".to_owned(),
                Some(HeldRow { owner, left, .. })
                    if left.unwrap_or(HolderState::NO_EXPIRY) == HolderState::NO_EXPIRY =>
                {
                    format!("held by {owner:?}, without an end")
                }
                Some(HeldRow { owner, .. }) => format!("held by {owner:?}"),
            };
            Finding::ok("row", diagnose::statement(self, name) + ": " + &found)
        });
        vec![Finding::from_result("row", row)]
    }

    async fn close(&self) {
        self.pool.close().await;
    }
}
