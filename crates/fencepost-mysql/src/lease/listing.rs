//! Reads the state of one lock, or of a page of locks. Reading locks nothing.

use std::collections::{BTreeSet, HashMap};
use std::time::Duration;

use fencepost_core::backend::{ListPage, LockState, Page};
use fencepost_core::{LockName, Result};
use fencepost_sql::Row;

use crate::lease::fetch::{Fetch, Fetched, NOW_MICROS, Wanted};
use crate::lease::state::ClientState;
use crate::literal::Sql;
use crate::session::Rows;

/// Begins a transaction whose statements all read the same state.
const BEGIN: &str =
    "SET TRANSACTION ISOLATION LEVEL REPEATABLE READ; START TRANSACTION WITH CONSISTENT SNAPSHOT, READ ONLY";

impl ClientState {
    pub(crate) async fn inspect(&self, name: &LockName) -> Result<LockState> {
        let states = self.states(BTreeSet::from([name.clone()])).await?;
        Ok(states.into_iter().next().unwrap_or_else(|| LockState::new(name.clone())))
    }

    pub(crate) async fn list(&self, prefix: &str, page: &Page) -> Result<ListPage> {
        let mut after = page.after.as_ref().map_or("", LockName::as_str).to_owned();
        let mut locks: Vec<LockState> = Vec::new();
        loop {
            let names = self.names(prefix, &after, page.limit + 1).await?;
            let Some(last) = names.last() else { break };
            last.as_str().clone_into(&mut after);
            locks.extend(self.states(names).await?.into_iter().filter(|lock| !lock.is_idle()));
            if locks.len() > page.limit {
                locks.truncate(page.limit);
                let next = locks.last().map(|lock| lock.name.clone());
                return Ok(ListPage { locks, next });
            }
        }
        Ok(ListPage { locks, next: None })
    }

    /// Returns names in use that begin with `prefix` and sort after `after`.
    async fn names(&self, prefix: &str, after: &str, limit: usize) -> Result<BTreeSet<LockName>> {
        let mut sql = Sql::default();
        sql.text("SELECT name FROM ").text(&self.tables.locks).text(" WHERE name > ").bytes(after.as_bytes());
        if !prefix.is_empty() {
            sql.text(" AND name >= ").bytes(prefix.as_bytes());
            sql.text(" AND LEFT(name, ").number(prefix.len()).text(") = ").bytes(prefix.as_bytes());
        }
        sql.text(" ORDER BY name LIMIT ").number(limit);
        let sets = self.query(sql.as_str()).await?;
        sets.iter().flatten().map(Row::name).collect()
    }

    /// Returns the states of these locks, sorted by name.
    async fn states(&self, names: BTreeSet<LockName>) -> Result<Vec<LockState>> {
        let wanted = Wanted { cells: names.clone(), names, by_name: true, ..Wanted::default() };
        let fetch = Fetch::reading(&self.tables, &wanted, LockState::MAX_WAITERS);
        let mut sql = Sql::default();
        sql.text(BEGIN).text("; ").text(fetch.sql.as_str()).text("; SELECT name, COUNT(*) FROM ");
        sql.text(&self.tables.tickets).text(" WHERE name").among(&wanted.names);
        sql.text(" AND until_ns > 1000 * ").text(NOW_MICROS).text(" GROUP BY name; COMMIT");
        let mut sets = self.query(sql.as_str()).await?;
        let waiters = sets.pop().unwrap_or_default();
        let counts = waiters.iter().map(|row| Ok((row.name()?, row.integer(1)?)));
        let counts = counts.collect::<Result<HashMap<LockName, i64>>>()?;
        let fetched = Fetched::decode(&fetch, sets.split_off(2), &wanted, &mut self.labels())?;
        let wall = Duration::from_nanos(fetched.now.as_nanos());
        let state = |name: &LockName| {
            let (record, tickets) = fetched.records.get(name)?;
            let tickets = tickets.iter().map(|ticket| (ticket.attempt.owner, ticket.clone())).collect();
            let mut state = record.state(name, &tickets, fetched.now, wall);
            state.waiter_count = counts.get(name).map_or(0, |count| usize::try_from(*count).unwrap_or(0));
            Some(state)
        };
        Ok(wanted.names.iter().filter_map(state).collect())
    }

    /// Runs statements that read.
    pub(crate) async fn query(&self, sql: &str) -> Result<Vec<Rows>> {
        self.sessions.query(sql).await
    }
}
