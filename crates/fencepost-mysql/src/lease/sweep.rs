//! Removes what has expired, on the way: after flights, at most a page at a time, at an interval.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use fencepost_core::clock::Moment;
use fencepost_core::{Error, ErrorKind, LockName, Result};
use fencepost_sql::{Row, Value};

use crate::error::Failure;
use crate::lease::fetch::NOW_MICROS;
use crate::lease::flight::{Flight, READ_TIMEOUT};
use crate::lease::save::Save;
use crate::lease::state::ClientState;
use crate::literal::Sql;
use crate::session::{Rows, ServerRow};
use crate::sessions::Lent;

/// The interval between sweeps of a client.
const SWEEP_INTERVAL: Duration = Duration::from_secs(2);
/// How many locks one sweep reads.
const PAGE_SIZE: usize = 512;
/// How many of them it changes.
const MAX_SWEPT: usize = 64;
/// How many tombstones and notices it removes.
const MAX_NOTES: usize = 128;
/// How many rows of minted numbers are kept.
const KEPT_TOKENS: i64 = 1000;
/// How many rows of minted numbers it removes.
const MAX_TOKENS: i64 = 5000;

/// Where the sweeps of a client are.
pub(crate) struct Sweeper {
    is_running: AtomicBool,
    progress: Mutex<(Moment, Vec<u8>)>,
}

impl Default for Sweeper {
    fn default() -> Self {
        Self { is_running: AtomicBool::new(false), progress: Mutex::new((Moment::START, Vec::new())) }
    }
}

/// Sweeps a page in the background, if it is due.
pub(crate) fn sweep_if_due(client: &Arc<ClientState>) {
    let now = client.now();
    let sweeper = &client.sweeper;
    let is_due = sweeper.progress.lock().unwrap_or_else(PoisonError::into_inner).0 <= now;
    if !is_due || sweeper.is_running.swap(true, Ordering::Relaxed) {
        return;
    }
    let client = Arc::clone(client);
    tokio::spawn(async move {
        let from = client.sweeper.progress.lock().unwrap_or_else(PoisonError::into_inner).1.clone();
        // After a failure the next sweep begins where this one did.
        let (wait, next) = match client.sweep_in_passing(&from).await {
            Ok(Swept { next, is_complete: true, .. }) => (SWEEP_INTERVAL, next),
            Ok(Swept { next, is_complete: false, .. }) => (Duration::ZERO, next),
            Err(error) if error.kind() == ErrorKind::Unreachable => (Duration::ZERO, from),
            Err(_) => (SWEEP_INTERVAL, from),
        };
        *client.sweeper.progress.lock().unwrap_or_else(PoisonError::into_inner) = (client.now() + wait, next);
        client.sweeper.is_running.store(false, Ordering::Relaxed);
    });
}

/// The outcome of a sweep.
struct Swept {
    /// The name after which the next one begins.
    next: Vec<u8>,
    /// Whether everything that had expired was removed from the page.
    is_complete: bool,
    /// The locks with something that had expired, or that were not in use.
    names: Vec<LockName>,
}

impl ClientState {
    /// Sweeps everything. Returns how many names are gone.
    pub(crate) async fn sweep_all(&self) -> Result<u64> {
        let (mut after, mut removed) = (Vec::new(), 0);
        loop {
            let swept = self.sweep(self.sessions.take().await?, &after).await?;
            if !swept.names.is_empty() {
                let mut sql = Sql::default();
                sql.text("SELECT name FROM ")
                    .text(&self.tables.locks)
                    .text(" WHERE name")
                    .among(&swept.names);
                let left = self.query(sql.as_str()).await?.iter().flatten().count();
                removed += u64::try_from(swept.names.len().saturating_sub(left)).unwrap_or(0);
            }
            if swept.is_complete && swept.next.is_empty() {
                return Ok(removed);
            }
            after = swept.next;
        }
    }

    /// Sweeps some of the locks after this name, on a connection that is not in use: a sweep is not worth another one.
    async fn sweep_in_passing(&self, after: &[u8]) -> Result<Swept> {
        let idle = self.sessions.take_idle();
        let lent = idle.ok_or_else(|| Error::new(ErrorKind::Unreachable, "no connection is idle"))?;
        self.sweep(lent, after).await
    }

    /// Sweeps some of the locks after this name.
    async fn sweep(&self, mut lent: Lent<'_>, after: &[u8]) -> Result<Swept> {
        let failed = |failure: Failure| failure.into_error(self.location());
        let sets = lent.session.run(&self.overdue(after), READ_TIMEOUT).await.map_err(failed)?;
        let [overdue, end, tombstones, notices, tokens] = <[Rows; 5]>::try_from(sets).unwrap_or_default();
        let token_count = tokens.first().map_or(Ok(0), |row| row.integer(0))?;
        let newest = tokens.first().filter(|_| token_count > 2 * KEPT_TOKENS);
        let newest = newest.map(|row| row.integer(1)).transpose()?;
        let deletes = self.deleting(&tombstones, &notices, newest)?;
        let mut is_deleted = true;
        if !deletes.is_empty()
            && let Err(failure) = lent.session.run(&deletes, READ_TIMEOUT).await
        {
            if !failure.is_deadlock() {
                return Err(failed(failure));
            }
            is_deleted = false;
        }
        self.sessions.put(lent);
        let names = overdue.iter().map(Row::name).collect::<Result<Vec<LockName>>>()?;
        if !names.is_empty() {
            Flight::new(self, &[], &names).try_run().await?;
        }
        let is_complete = is_deleted
            && names.len() < MAX_SWEPT
            && token_count < MAX_TOKENS
            && tombstones.len() < MAX_NOTES
            && notices.len() < MAX_NOTES;
        let next = match (names.last().filter(|_| names.len() == MAX_SWEPT), end.first()) {
            (Some(last), _) => last.as_str().as_bytes().to_vec(),
            (None, Some(end)) => end.bytes(0)?,
            (None, None) => Vec::new(),
        };
        Ok(Swept { next, is_complete, names })
    }

    /// Selects the locks of a page with something that has expired, or that are not in use; where the page ends; expired
    /// tombstones and notices; the number of minted rows and the newest.
    fn overdue(&self, after: &[u8]) -> String {
        let tables = &self.tables;
        let mut sql = Sql::default();
        let page = |sql: &mut Sql| {
            sql.text("SELECT name FROM ").text(&tables.locks).text(" WHERE name > ").bytes(after);
            sql.text(" ORDER BY name LIMIT ");
        };
        sql.text("SELECT p.name FROM (");
        page(&mut sql);
        sql.number(PAGE_SIZE).text(") AS p WHERE ");
        let in_use = [(&tables.holders, ""), (&tables.tickets, ""), (&tables.cells, " AND t.keep = 1")];
        let exists = |sql: &mut Sql, table: &str| {
            sql.text("EXISTS (SELECT 1 FROM ").text(table).text(" AS t WHERE t.name = p.name");
        };
        for (table, condition) in in_use {
            exists(&mut sql, table);
            sql.text(condition).text(" AND t.until_ns <= 1000 * ").text(NOW_MICROS).text(") OR ");
        }
        sql.text("NOT (").separated(" OR ", in_use, |sql, (table, _)| {
            exists(sql, table);
            sql.text(")");
        });
        sql.text(") ORDER BY p.name LIMIT ").number(MAX_SWEPT).text("; ");
        page(&mut sql);
        sql.text("1 OFFSET ").number(PAGE_SIZE - 1);
        // A client that connects again checks all its tickets, and needs no notice of before.
        let is_gone = " OR IS_USED_LOCK(CONCAT('fencepost.', client)) IS NULL";
        let notes = [(&tables.tombstones, "owner", ""), (&tables.notices, "client, owner", is_gone)];
        for (table, columns, condition) in notes {
            sql.text("; SELECT ").text(columns).text(" FROM ").text(table).text(" WHERE until_ns <= 1000 * ");
            sql.text(NOW_MICROS).text(condition).text(" LIMIT ").number(MAX_NOTES);
        }
        sql.text("; SELECT COUNT(*), MAX(id) FROM ").text(&tables.tokens);
        sql.into_string()
    }

    /// Returns the statements that delete these tombstones and notices, and minted rows long before the newest.
    fn deleting(&self, tombstones: &Rows, notices: &Rows, newest: Option<i64>) -> Result<String> {
        let mut save = Save::default();
        let owner = |row: &ServerRow, column| Ok(("owner", Value::Bytes(row.bytes(column)?.into())));
        let keys = tombstones.iter().map(|row| Ok([owner(row, 0)?])).collect::<Result<Vec<_>>>()?;
        save.delete(&self.tables.tombstones, keys.into_iter());
        let key = |row: &ServerRow| Ok([("client", row.integer(0)?.into()), owner(row, 1)?]);
        let keys = notices.iter().map(key).collect::<Result<Vec<_>>>()?;
        save.delete(&self.tables.notices, keys.into_iter());
        if let Some(newest) = newest {
            // The newest may belong to transactions that have not ended.
            let sql = save.next().text("DELETE FROM ").text(&self.tables.tokens).text(" WHERE id < ");
            sql.number(newest - KEPT_TOKENS).text(" ORDER BY id LIMIT ").number(MAX_TOKENS);
        }
        Ok(save.requests.into_iter().map(|request| request.sql.into_string()).collect::<Vec<_>>().join("; "))
    }
}
