//! Who holds and awaits named locks: what our connections have written about themselves, as far as the server says that they live.
//! Foreign holders are shown where the lock is inspected by its name.

use std::collections::BTreeMap;
use std::time::Duration;

use fencepost_core::backend::{HolderState, ListPage, LockState, Page, Reply, WaiterState};
use fencepost_core::{Error, ErrorKind, FencingToken, LockName, Mode, Result};
use fencepost_sql::Row;
use fencepost_sql::codec::{meta_of, signed, unsigned};
use fencepost_sql::session_lock::Position;

use super::session::IS_LIVE;
use super::state::ClientState;
use crate::lease::fetch::NOW_MICROS;
use crate::lease::flight::READ_TIMEOUT;
use crate::literal::Sql;
use crate::session::ServerRow;

/// How often the server is asked whether a connection that was ended has freed its lock.
const END_CHECKS: usize = 200;

/// The interval at which the server is asked whether a connection has ended.
const END_INTERVAL: Duration = Duration::from_millis(20);

/// How many rows of connections that have ended are removed at once.
const MAX_SWEPT: usize = 500;

/// Our connections that hold a lock or are in its queue, in this order. Those of other accounts can be seen by accounts with PROCESS
/// only: they are believed to be in the queue.
const ROWS: &str = "SELECT s.name, s.connection, s.granted, s.id, s.label, s.meta, s.ttl_ms, @now@ - s.since_us, \
    IF(p.COMMAND = 'Sleep', p.TIME, IF(p.ID IS NULL, NULL, 0)), IS_USED_LOCK(CONVERT(s.lock_key USING utf8mb4)) = s.connection \
    FROM @sessions@ AS s LEFT JOIN information_schema.PROCESSLIST AS p ON p.ID = s.connection \
    WHERE @condition@ AND @live@ AND (IS_USED_LOCK(CONVERT(s.lock_key USING utf8mb4)) = s.connection \
    OR s.granted = 0 AND (p.ID IS NULL OR p.STATE = 'User lock')) ORDER BY s.name, s.granted DESC, s.id";

fn rows(state: &ClientState, condition: &Sql) -> String {
    let rows =
        ROWS.replace("@now@", NOW_MICROS).replace("@sessions@", &state.table()).replace("@live@", IS_LIVE);
    rows.replace("@condition@", condition.as_str())
}

/// Returns the holder and the waiters of a lock.
pub(super) async fn inspect(state: &ClientState, name: &LockName) -> Result<LockState> {
    let key = state.key(name)?;
    let mut condition = Sql::default();
    condition.text("s.lock_key = ").bytes(key.as_bytes());
    let mut sql = Sql::default();
    sql.text("SELECT h.id, CONCAT_WS(' ', CONCAT(p.USER, '@', p.HOST), CONCAT('connection ', h.id)) FROM (SELECT IS_USED_LOCK(");
    sql.lock(&key).text(") AS id) AS h LEFT JOIN information_schema.PROCESSLIST AS p ON p.ID = h.id; ");
    sql.text(&rows(state, &condition));
    let sets = state.query(sql.as_str()).await?;
    let mut found = LockState::new(name.clone());
    let ours = sets.get(1).map(Vec::as_slice).unwrap_or_default();
    for row in ours {
        add(&mut found, row)?;
    }
    let holder = sets.first().and_then(|rows| rows.first()).filter(|_| found.holders.is_empty());
    if let Some(row) = holder
        && let Some(id) = row.optional_integer(0)?
        && !ours.iter().any(|row| row.integer(1).is_ok_and(|ours| ours == id))
    {
        let mut foreign = HolderState::new(Mode::Exclusive, row.text(1)?);
        // A foreign connection holds its lock for as long as it lives.
        (foreign.ttl, foreign.expires_in) = (Some(HolderState::NO_EXPIRY), Some(HolderState::NO_EXPIRY));
        found.holders.push(foreign);
    }
    Ok(found)
}

/// Returns one page of the locks that our connections hold or wait for.
pub(super) async fn list(state: &ClientState, prefix: &str, page: &Page) -> Result<ListPage> {
    let mut condition = Sql::default();
    let after = page.after.as_ref().map_or("", LockName::as_str);
    condition.text("s.name > ").bytes(after.as_bytes()).text(" AND LEFT(s.name, ").number(prefix.len());
    condition.text(") = ").bytes(prefix.as_bytes());
    let sets = state.query(&rows(state, &condition)).await?;
    let mut found: BTreeMap<LockName, LockState> = BTreeMap::new();
    for row in sets.iter().flatten() {
        let name = row.name()?;
        add(found.entry(name.clone()).or_insert_with(|| LockState::new(name)), row)?;
    }
    let is_last = found.len() <= page.limit;
    let locks: Vec<LockState> = found.into_values().take(page.limit).collect();
    let next = if is_last { None } else { locks.last().map(|lock| lock.name.clone()) };
    Ok(ListPage { locks, next })
}

/// Adds a holder or a waiter to the state of its lock.
fn add(lock: &mut LockState, row: &ServerRow) -> Result<()> {
    let label = row.text(4)?;
    let since = Duration::from_micros(unsigned(row.integer(7)?.max(0)));
    let (is_granted, has_lock) = (row.integer(2)? == 1, row.optional_integer(9)? == Some(1));
    if !has_lock {
        lock.waiter_count += 1;
        if lock.waiters.len() < LockState::MAX_WAITERS {
            let mut waiter = WaiterState::new(Mode::Exclusive, label);
            waiter.waiting_for = Some(since);
            lock.waiters.push(waiter);
        }
        return Ok(());
    }
    let mut holder = HolderState::new(Mode::Exclusive, label);
    let ttl = Duration::from_millis(unsigned(row.integer(6)?));
    // One that was granted the lock right now has no token yet.
    holder.token = is_granted.then_some(FencingToken::new(unsigned(row.integer(3)?)));
    holder.meta = meta_of(&row.text(5)?);
    holder.ttl = Some(ttl);
    let idle = row.optional_integer(8)?.map(|seconds| Duration::from_secs(unsigned(seconds)));
    holder.expires_in = idle.map(|idle| ttl.saturating_sub(idle));
    holder.held_for = Some(since);
    lock.holders.push(holder);
    Ok(())
}

/// Ends the connection that holds the lock with this token.
pub(super) async fn break_lock(state: &ClientState, name: &LockName, token: FencingToken) -> Result<Reply> {
    let key = state.key(name)?;
    let mut sql = Sql::default();
    sql.text("SELECT s.connection FROM ")
        .text(&state.table())
        .text(" AS s WHERE s.id = ")
        .number(signed(token.get()));
    sql.text(" AND s.name = ")
        .name(name)
        .text(" AND s.granted = 1 AND s.connection = IS_USED_LOCK(")
        .lock(&key);
    sql.text(") AND ").text(IS_LIVE);
    let holder = sql.into_string();
    let find = async || {
        let sets = state.query(&holder).await?;
        sets.first().and_then(|rows| rows.first()).map(|row| row.integer(0)).transpose()
    };
    let Some(id) = find().await? else { return Ok(Reply::NotHeld) };
    kill(state, "KILL CONNECTION", id).await?;
    for _ in 0..END_CHECKS {
        if find().await?.is_none() {
            return Ok(Reply::Released);
        }
        pause(state).await;
    }
    let text = format!("the holder's connection to {} has not ended yet", state.location());
    Err(Error::new(ErrorKind::OutcomeUnknown, text))
}

/// Waits before the server is asked again. If the clock cannot sleep, it is asked more often.
async fn pause(state: &ClientState) {
    let _ = state.clock.sleep_until(state.clock.now() + END_INTERVAL).await;
}

/// Interrupts the wait of one of our own connections.
pub(super) async fn interrupt(state: &ClientState, id: i64) -> Result<()> {
    kill(state, "KILL QUERY", id).await
}

async fn kill(state: &ClientState, what: &str, id: i64) -> Result<()> {
    let mut lent = state.control.take().await?;
    match lent.session.run(&format!("{what} {id}"), READ_TIMEOUT).await {
        Err(failure) if !failure.is_missing_connection() => Err(failure.into_error(state.location())),
        Ok(_) | Err(_) => {
            state.control.put(lent);
            Ok(())
        }
    }
}

/// Returns what our connection with this id does.
pub(super) async fn position(state: &ClientState, id: i64, key: &str) -> Result<Position> {
    let mut sql = Sql::default();
    sql.text("SELECT IS_USED_LOCK(").lock(key).text("), EXISTS (SELECT 1 FROM ").text(&state.table());
    sql.text(" AS s WHERE s.connection = ").number(id).text(" AND ").text(IS_LIVE).text(")");
    let sets = state.query(sql.as_str()).await?;
    let Some(row) = sets.first().and_then(|rows| rows.first()) else { return Ok(Position::Gone) };
    Ok(match (row.optional_integer(0)?, row.integer(1)?) {
        (Some(holder), _) if holder == id => Position::Granted,
        (_, 1) => Position::Waiting,
        _ => Position::Gone,
    })
}

/// Returns whether a release whose reply is missing was executed: then its row is removed before the connection ends.
pub(super) async fn was_released(state: &ClientState, token: FencingToken) -> Result<bool> {
    let row = signed(token.get());
    let sql = format!("SELECT COALESCE({IS_LIVE}, 0) FROM {} AS s WHERE s.id = {row}", state.table());
    loop {
        let sets = state.query(&sql).await?;
        match sets.first().and_then(|rows| rows.first()).map(|row| row.integer(0)).transpose()? {
            None => return Ok(true),
            Some(0) => return Ok(false),
            Some(_) => pause(state).await,
        }
    }
}

/// Removes some of the rows of connections that have ended. Returns how many, or `None` if there are no more.
pub(super) async fn sweep(state: &ClientState) -> Result<Option<u64>> {
    let table = state.table();
    let sql = format!(
        "SELECT s.id FROM {table} AS s WHERE COALESCE({IS_LIVE}, 0) = 0 ORDER BY s.id LIMIT {MAX_SWEPT}"
    );
    let sets = state.query(&sql).await?;
    let ended = sets.iter().flatten().map(|row| row.integer(0)).collect::<Result<Vec<_>>>()?;
    if ended.is_empty() {
        return Ok(None);
    }
    let mut sql = Sql::default();
    sql.text("DELETE FROM ").text(&table).text(" WHERE id IN (");
    sql.list(&ended, |sql, id| {
        sql.number(id);
    });
    // A connection that left the queue after the rows were read has removed its row before it was found to have left.
    let sets = state.query(sql.text("); SELECT ROW_COUNT()").as_str()).await?;
    sets.last().and_then(|rows| rows.first()).map(|row| row.integer(0).map(unsigned)).transpose()
}
