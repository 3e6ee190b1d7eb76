//! Reads the states of locks. Each call is one statement, so that a state is consistent; it locks nothing.

use std::collections::HashMap;
use std::time::Duration;

use fencepost_core::backend::{Cell, HolderState, ListPage, LockState, Page, WaiterState};
use fencepost_core::{FencingToken, LockName, Result};
use fencepost_sql::codec;
use tokio_postgres::Row;
use tokio_postgres::types::{ToSql, Type};

use crate::config::quoted;
use crate::error::call_failed;
use crate::lease::reply::unexpected;
use crate::lease::state::ClientState;

/// Reads what is in use of these names: holders (kind 0), the first waiters (1) with the length of the queue, and cells (2).
/// Times are in ms.
const STATES: &str = "
WITH t AS (SELECT clock_timestamp() AS at),
live AS (
    SELECT name, owner, token, 0 AS mode, ttl_ms, expires_at, since, label, meta FROM @.locks
        WHERE name = ANY ($1) AND owner IS NOT NULL
    UNION ALL
    SELECT name, owner, token, mode, ttl_ms, expires_at, since, label, meta FROM @.holders WHERE name = ANY ($1)
),
queued AS (
    SELECT q.name, q.seq, q.mode, q.since, q.label,
        row_number() OVER (PARTITION BY q.name ORDER BY q.seq) AS place, count(*) OVER (PARTITION BY q.name) AS length
    FROM @.tickets AS q, t WHERE q.name = ANY ($1) AND q.expires_at > t.at
)
SELECT l.name, 0 AS kind, l.token, l.mode::bigint AS number, l.ttl_ms,
    least(ceil(extract(epoch FROM l.expires_at - t.at) * 1000), l.ttl_ms)::bigint AS left_ms,
    floor(extract(epoch FROM t.at - l.since) * 1000)::bigint AS age_ms, l.label, l.meta, NULL::bytea AS bytes, 0 AS place
FROM live AS l, t WHERE l.expires_at > t.at
UNION ALL
SELECT q.name, 1, q.length, q.mode, NULL, NULL, floor(extract(epoch FROM t.at - q.since) * 1000)::bigint, q.label, NULL,
    NULL, q.place
FROM queued AS q, t WHERE q.place <= $2
UNION ALL
SELECT c.name, 2, c.token, NULL, NULL, NULL, NULL, NULL, NULL, c.bytes, 0 FROM @.cells AS c, t
WHERE c.name = ANY ($1) AND (c.keep = 2 OR c.keep = 1 AND c.expires_at > t.at OR c.keep = 0 AND EXISTS (
    SELECT FROM live AS l WHERE l.name = c.name AND l.token = c.token AND l.expires_at > t.at))
ORDER BY name, kind, place, token";

/// Reads names that are in use.
const NAMES: &str = "
SELECT l.name FROM @.locks AS l WHERE l.name >= $1 AND l.name > $2 AND starts_with(l.name, $1) AND (
    l.owner IS NOT NULL AND l.expires_at > clock_timestamp()
    OR EXISTS (SELECT FROM @.holders AS h WHERE h.name = l.name AND h.expires_at > clock_timestamp())
    OR EXISTS (SELECT FROM @.tickets AS q WHERE q.name = l.name AND q.expires_at > clock_timestamp())
    OR EXISTS (SELECT FROM @.cells AS c WHERE c.name = l.name AND (c.keep <> 1 OR c.expires_at > clock_timestamp())))
ORDER BY l.name LIMIT $3";

/// Reads the states of these locks, in the same order.
pub(crate) async fn states(state: &ClientState, names: &[LockName]) -> Result<Vec<LockState>> {
    let mut states: Vec<LockState> = names.iter().cloned().map(LockState::new).collect();
    let index: HashMap<&str, usize> =
        names.iter().enumerate().map(|(at, name)| (name.as_str(), at)).collect();
    let texts: Vec<&str> = names.iter().map(LockName::as_str).collect();
    let limit = i64::try_from(LockState::MAX_WAITERS).unwrap_or(i64::MAX);
    for row in query(state, STATES, &[(&texts, Type::TEXT_ARRAY), (&limit, Type::INT8)]).await? {
        let name: &str = row.try_get(0).map_err(|_| unexpected(&state.location))?;
        if let Some(at) = index.get(name) {
            add(&mut states[*at], &row).map_err(|error| call_failed(&state.location, &error))?;
        }
    }
    Ok(states)
}

/// Reads a page of locks in use.
pub(crate) async fn list(state: &ClientState, prefix: &str, page: &Page) -> Result<ListPage> {
    let mut after = page.after.clone();
    let limit = i64::try_from(page.limit + 1).unwrap_or(i64::MAX);
    let mut locks = Vec::new();
    loop {
        let from = after.as_ref().map_or("", LockName::as_str);
        let parameters: [(&(dyn ToSql + Sync), Type); 3] =
            [(&prefix, Type::TEXT), (&from, Type::TEXT), (&limit, Type::INT8)];
        let rows = query(state, NAMES, &parameters).await?;
        let names = rows.iter().map(|row| LockName::new(row.try_get::<_, &str>(0).unwrap_or_default()));
        let names: Vec<LockName> = names.collect::<Result<_>>()?;
        let Some(last) = names.last().cloned() else { return Ok(ListPage { locks, next: None }) };
        after = Some(last);
        locks.extend(states(state, &names).await?.into_iter().filter(|lock| !lock.is_idle()));
        if locks.len() > page.limit {
            locks.truncate(page.limit);
            let next = locks.last().map(|lock| lock.name.clone());
            return Ok(ListPage { locks, next });
        }
    }
}

fn add(state: &mut LockState, row: &Row) -> std::result::Result<(), tokio_postgres::Error> {
    let number = |at: usize| row.try_get::<_, Option<i64>>(at);
    let millis = |ms: Option<i64>| ms.map(|ms| Duration::from_millis(codec::unsigned(ms)));
    let label = || Ok::<_, tokio_postgres::Error>(row.try_get::<_, Option<&str>>(7)?.unwrap_or_default());
    let token = FencingToken::new(codec::unsigned(number(2)?.unwrap_or_default()));
    let mode = codec::mode_of(number(3)?.unwrap_or_default());
    match row.try_get::<_, i32>(1)? {
        0 => {
            let mut holder = HolderState::new(mode, label()?);
            holder.token = Some(token);
            holder.meta = codec::meta_of(row.try_get::<_, Option<&str>>(8)?.unwrap_or_default());
            holder.ttl = millis(number(4)?);
            holder.expires_in = millis(number(5)?);
            holder.held_for = millis(number(6)?);
            state.holders.push(holder);
        }
        1 => {
            let mut waiter = WaiterState::new(mode, label()?);
            waiter.waiting_for = millis(number(6)?);
            state.waiters.push(waiter);
            state.waiter_count = usize::try_from(token.get()).unwrap_or(usize::MAX);
        }
        _ => state.cell = Some(Cell { token, bytes: row.try_get::<_, &[u8]>(9)?.into() }),
    }
    Ok(())
}

async fn query(
    state: &ClientState,
    sql: &str,
    parameters: &[(&(dyn ToSql + Sync), Type)],
) -> Result<Vec<Row>> {
    let sql = sql.replace("@.", &format!("{}.", quoted(&state.namespace)));
    let connection = state.pool.get().await?;
    let rows = connection.query_typed(&sql, parameters).await;
    rows.map_err(|error| call_failed(&state.location, &error))
}
