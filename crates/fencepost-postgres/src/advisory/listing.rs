//! Who holds and awaits advisory locks: the server's own list, with what our sessions say about themselves. Foreign sessions are
//! listed too where their keys tell a name.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use fencepost_core::backend::{HolderState, ListPage, LockState, Page, Reply, WaiterState};
use fencepost_core::{Error, ErrorKind, FencingToken, LockName, Mode, Owner, Result};
use fencepost_sql::codec::{meta_of, signed, unsigned};
use fencepost_sql::session_lock::Position;
use tokio_postgres::types::{ToSql, Type};
use tokio_postgres::{Client, Row};

use super::keys::{Derived, Key, derive};
use super::state::{ClientState, Parameters};
use crate::config::{KeyRule, quoted};
use crate::error::call_failed;
use crate::link::Link;

/// How long the server waits for the end of a session that it is to terminate.
const TERMINATION_TIMEOUT: Duration = Duration::from_secs(5);

/// When a session that is about to wait is asked again.
const ASK_AGAIN: Duration = Duration::from_millis(2);

/// The locks of this database, holders first, waiters in the order of the queue.
const LOCKS: &str = "SELECT l.classid, l.objid, l.objsubid, l.granted, l.mode = 'ShareLock', s.name, s.token, s.label, s.meta, \
    s.ttl_ms, CASE WHEN a.state = 'idle' THEN extract(epoch FROM clock_timestamp() - a.state_change)::float8 \
    WHEN a.state IS NOT NULL THEN 0 END, extract(epoch FROM clock_timestamp() - s.since)::float8, \
    extract(epoch FROM clock_timestamp() - l.waitstart)::float8, \
    concat_ws(' ', nullif(a.application_name, ''), a.usename || coalesce('@' || host(a.client_addr), ''), 'pid ' || l.pid) \
    FROM pg_locks AS l LEFT JOIN pg_stat_activity AS a ON a.pid = l.pid \
    LEFT JOIN @schema@.advisory_sessions AS s ON s.pid = l.pid \
    AND (s.classid, s.objid, s.objsubid) = (l.classid, l.objid, l.objsubid) \
    WHERE l.locktype = 'advisory' AND l.database = (SELECT d.oid FROM pg_database AS d WHERE d.datname = current_database()) \
    AND (@condition@) ORDER BY l.waitstart NULLS FIRST, s.token, l.pid";

/// Returns the holders and waiters of a lock.
pub(super) async fn inspect(state: &ClientState, name: &LockName) -> Result<LockState> {
    let (class, object, sub) = key(state, name).await?.columns();
    let parameters: [(&(dyn ToSql + Sync), Type); 3] =
        [(&class, Type::OID), (&object, Type::OID), (&sub, Type::INT2)];
    let condition = "l.classid = $1 AND l.objid = $2 AND l.objsubid = $3";
    let rows = locks(state, condition, &parameters).await?;
    let mut found = LockState::new(name.clone());
    for row in &rows {
        add(&mut found, row);
    }
    Ok(found)
}

/// Returns one page of the locks in use whose names are known: those of our sessions, and all where keys are names.
pub(super) async fn list(state: &ClientState, prefix: &str, page: &Page) -> Result<ListPage> {
    let is_raw = state.rule == KeyRule::Raw;
    let condition = if is_raw { "true" } else { "starts_with(s.name, $1)" };
    let parameters: [(&(dyn ToSql + Sync), Type); 1] = [(&prefix, Type::TEXT)];
    let parameters = if is_raw { &[][..] } else { &parameters };
    let mut found: BTreeMap<LockName, LockState> = BTreeMap::new();
    for row in locks(state, condition, parameters).await? {
        let named: Option<String> = row.get(5);
        let text = named.unwrap_or_else(|| Key::from_columns(row.get(0), row.get(1), row.get(2)).to_string());
        let Ok(name) = LockName::new(text) else { continue };
        if name.as_str().starts_with(prefix) && page.after.as_ref().is_none_or(|after| name > *after) {
            add(found.entry(name.clone()).or_insert_with(|| LockState::new(name)), &row);
        }
    }
    let is_last = found.len() <= page.limit;
    let locks: Vec<LockState> = found.into_values().take(page.limit).collect();
    let next = if is_last { None } else { locks.last().map(|lock| lock.name.clone()) };
    Ok(ListPage { locks, next })
}

/// Ends the session that holds the lock with this token.
pub(super) async fn break_lock(state: &ClientState, name: &LockName, token: FencingToken) -> Result<Reply> {
    let control = state.control().await?;
    let sessions = format!("{}.advisory_sessions", quoted(&state.link.config().namespace));
    let holder = "s.name = $1 AND s.token = $2 AND EXISTS (SELECT FROM pg_locks AS l WHERE l.pid = s.pid AND l.granted \
        AND l.locktype = 'advisory' AND (l.classid, l.objid, l.objsubid) = (s.classid, s.objid, s.objsubid))";
    let (name, token) = (name.as_str(), signed(token.get()));
    let parameters: [(&(dyn ToSql + Sync), Type); 2] = [(&name, Type::TEXT), (&token, Type::INT8)];
    let failed = |error: tokio_postgres::Error| call_failed(state.link.location(), &error);
    // In two transactions: the holder reads the first when the second has ended its session.
    let mark = |value: bool| format!("UPDATE {sessions} AS s SET broken = {value} WHERE {holder}");
    if control.execute_typed(&mark(true), &parameters).await.map_err(failed)? == 0 {
        return Ok(Reply::NotHeld);
    }
    let end = format!(
        "SELECT pg_terminate_backend(s.pid, {}) FROM {sessions} AS s WHERE {holder}",
        TERMINATION_TIMEOUT.as_millis()
    );
    match control.query_typed_opt(&end, &parameters).await {
        Ok(Some(row)) if row.get(0) => Ok(Reply::Released),
        // It has released the lock meanwhile.
        Ok(None) => Ok(Reply::NotHeld),
        Ok(Some(_)) => {
            let message = format!("the holder's session at {} has not ended yet", state.link.location());
            Err(Error::new(ErrorKind::OutcomeUnknown, message))
        }
        Err(error) => {
            let _ = control.execute_typed(&mark(false), &parameters).await;
            let error = failed(error);
            Err(match error.kind() {
                ErrorKind::Denied => error.with_hint(
                    "to break a lock is to end the session of its holder: connect as the same user, \
                     or GRANT pg_signal_backend TO …; only a superuser ends a superuser's session",
                ),
                _ => error,
            })
        }
    }
}

/// Returns whether [`break_lock`] has ended this session.
pub(super) async fn is_broken(state: &ClientState, pid: i32, owner: Owner) -> Result<bool> {
    let query = format!(
        "SELECT s.broken FROM {}.advisory_sessions AS s WHERE s.pid = $1 AND s.owner = $2",
        quoted(&state.link.config().namespace)
    );
    let rows = state.read(&query, &[(&pid, Type::INT4), (&owner.to_hex(), Type::TEXT)]).await?;
    Ok(rows.first().is_some_and(|row| row.get(0)))
}

/// Returns what the session with this process does. One that is about to join the queue is asked again.
pub(super) async fn position(state: &ClientState, pid: i32) -> Result<Position> {
    let query = "SELECT EXISTS (SELECT FROM pg_stat_activity AS a WHERE a.pid = $1), \
        (SELECT bool_or(l.granted) FROM pg_locks AS l WHERE l.pid = $1 AND l.locktype = 'advisory')";
    loop {
        let rows = state.read(query, &[(&pid, Type::INT4)]).await?;
        let row = single(state, &rows)?;
        match (row.get(0), row.get(1)) {
            (_, Some(true)) => return Ok(Position::Granted),
            (_, Some(false)) => return Ok(Position::Waiting),
            (false, None) => return Ok(Position::Gone),
            // If the clock cannot sleep, the server is asked more often.
            (true, None) => drop(state.clock.sleep_until(state.clock.now() + ASK_AGAIN).await),
        }
    }
}

/// Cancels the wait of one of our own sessions. If it has ended, its process id may be that of another session by now, which is
/// left alone.
pub(super) async fn cancel(link: &Link, control: &Client, pid: i32, owner: Owner) -> Result<()> {
    let query = format!(
        "SELECT pg_cancel_backend(s.pid) FROM {}.advisory_sessions AS s WHERE s.pid = $1 AND s.owner = $2 AND EXISTS \
         (SELECT FROM pg_locks AS l WHERE l.pid = s.pid AND NOT l.granted AND l.locktype = 'advisory')",
        quoted(&link.config().namespace)
    );
    let parameters: [(&(dyn ToSql + Sync), Type); 2] = [(&pid, Type::INT4), (&owner.to_hex(), Type::TEXT)];
    let cancelled = control.query_typed(&query, &parameters).await;
    cancelled.map(drop).map_err(|error| call_failed(link.location(), &error))
}

/// Removes the rows of sessions that have ended, and returns how many there were.
pub(super) async fn sweep(link: &Link, control: &Client) -> Result<u64> {
    let sweep = format!(
        "DELETE FROM {}.advisory_sessions AS s WHERE NOT EXISTS (SELECT FROM pg_stat_activity AS a WHERE a.pid = s.pid)",
        quoted(&link.config().namespace)
    );
    control.execute_typed(&sweep, &[]).await.map_err(|error| call_failed(link.location(), &error))
}

/// Returns the key of a lock.
pub(super) async fn key(state: &ClientState, name: &LockName) -> Result<Key> {
    match derive(state.rule, &state.link.config().namespace, name)? {
        Derived::Key(key) => Ok(key),
        Derived::ByServer(expression) => {
            let query = format!("SELECT {expression}");
            let rows = state.read(&query, &[(&name.as_str(), Type::TEXT)]).await?;
            Ok(Key::Single(single(state, &rows)?.get(0)))
        }
    }
}

/// Returns the row of a query that has one.
pub(super) fn single<'a>(state: &ClientState, rows: &'a [Row]) -> Result<&'a Row> {
    rows.first().ok_or_else(|| {
        Error::new(ErrorKind::Backend, format!("a reply of {} has no row", state.link.location()))
    })
}

async fn locks(state: &ClientState, condition: &str, parameters: &Parameters<'_>) -> Result<Vec<Row>> {
    let schema = quoted(&state.link.config().namespace);
    state.read(&LOCKS.replace("@schema@", &schema).replace("@condition@", condition), parameters).await
}

/// Adds a holder or a waiter to the state of its lock.
fn add(lock: &mut LockState, row: &Row) {
    let seconds = |index: usize| {
        let seconds: Option<f64> = row.get(index);
        seconds.map(|seconds| Duration::try_from_secs_f64(seconds.max(0.0)).unwrap_or_default())
    };
    let mode = if row.get(4) { Mode::Shared } else { Mode::Exclusive };
    let (ours, foreign): (Option<String>, String) = (row.get(7), row.get(13));
    let label: Arc<str> = ours.unwrap_or(foreign).into();
    if !row.get::<_, bool>(3) {
        lock.waiter_count += 1;
        if lock.waiters.len() < LockState::MAX_WAITERS {
            let mut waiter = WaiterState::new(mode, label);
            waiter.waiting_for = seconds(12);
            lock.waiters.push(waiter);
        }
        return;
    }
    let mut holder = HolderState::new(mode, label);
    let ttl: Option<i64> = row.get(9);
    holder.token = row.get::<_, Option<i64>>(6).map(|token| FencingToken::new(unsigned(token)));
    holder.meta = meta_of(row.get::<_, Option<&str>>(8).unwrap_or_default());
    // A foreign session holds its lock for as long as it is connected.
    holder.ttl = Some(ttl.map_or(HolderState::NO_EXPIRY, |ttl| Duration::from_millis(unsigned(ttl))));
    holder.expires_in = match (holder.ttl, seconds(10)) {
        (Some(HolderState::NO_EXPIRY), _) => holder.ttl,
        (Some(ttl), Some(idle)) => Some(ttl.saturating_sub(idle)),
        // The server does not show the state of other users' sessions.
        _ => None,
    };
    holder.held_for = seconds(11);
    lock.holders.push(holder);
}
