//! Extends a lease by updating its own row. Most operations on a busy database are renewals and heartbeats, and the cost of one
//! must not depend on the number of other holders and waiters of the lock.

use std::time::Duration;

use fencepost_core::clock::StorageTime;
use fencepost_core::{Grant, LockName, Owner, Result};
use fencepost_sql::codec;
use rusqlite::{OptionalExtension, params};

use super::Statements;

/// How many of the tickets ahead are read to estimate when a ticket may be granted.
const TICKETS_AHEAD: i64 = 16;

/// Identifies the row of a ticket.
#[derive(Clone, Copy, Debug)]
pub(crate) struct TicketKey<'a> {
    pub(crate) name: &'a LockName,
    pub(crate) seq: u64,
    pub(crate) owner: Owner,
}

impl Statements {
    /// Extends the lease of a holder and returns its ttl, or `None` if it has no unexpired row of this clock.
    pub(crate) fn renew(&self, name: &LockName, grant: &Grant, now: StorageTime) -> Result<Option<Duration>> {
        let sql = "UPDATE holders SET until_ns = ?5 + ttl_ns \
             WHERE name = ?1 AND owner = ?2 AND token = ?3 AND clock = ?4 AND until_ns > ?5 RETURNING ttl_ns";
        let (owner, token) = (grant.attempt.owner.to_bytes(), codec::signed(grant.award.token.get()));
        let params = params![name.as_str(), owner, token, self.clock, codec::stamp(now)];
        let renew = || self.connection.prepare_cached(sql)?.query_row(params, |row| row.get(0)).optional();
        Ok(renew().map_err(|error| self.failed(error))?.map(codec::duration))
    }

    /// Extends a ticket behind an exclusive holder and returns when it may be granted at the earliest, or `None` if ticket or
    /// holder has no unexpired row of this clock. Behind an exclusive holder no ticket can be granted, so no other row has to be
    /// read.
    pub(crate) fn extend_ticket(&self, key: TicketKey<'_>, now: StorageTime) -> Result<Option<StorageTime>> {
        let Some(holder) = self.exclusive_until(key.name, now)? else {
            return Ok(None);
        };
        let sql = "UPDATE tickets SET until_ns = ?5 + ttl_ns \
             WHERE name = ?1 AND seq = ?2 AND owner = ?3 AND clock = ?4 AND until_ns > ?5";
        let owner = key.owner.to_bytes();
        let now = codec::stamp(now);
        if self.run(sql, params![key.name.as_str(), codec::signed(key.seq), owner, self.clock, now])? == 0 {
            return Ok(None);
        }
        Ok(Some(self.tickets_ahead_until(key)?.map_or(holder, |ahead| holder.max(ahead))))
    }

    /// Returns when the lease of the exclusive holder expires, if there is one.
    fn exclusive_until(&self, name: &LockName, now: StorageTime) -> Result<Option<StorageTime>> {
        let sql = "SELECT until_ns FROM (SELECT mode, clock, until_ns FROM holders WHERE name = ?1 LIMIT 1) \
             WHERE mode = 0 AND clock = ?2 AND until_ns > ?3";
        let params = params![name.as_str(), self.clock, codec::stamp(now)];
        self.time(sql, params)
    }

    fn tickets_ahead_until(&self, key: TicketKey<'_>) -> Result<Option<StorageTime>> {
        let sql = "SELECT until_ns FROM \
                (SELECT clock, until_ns FROM tickets WHERE name = ?1 AND seq < ?2 ORDER BY seq LIMIT ?3) \
             WHERE clock = ?4 ORDER BY until_ns DESC LIMIT 1";
        let params = params![key.name.as_str(), codec::signed(key.seq), TICKETS_AHEAD, self.clock];
        self.time(sql, params)
    }

    fn time(&self, sql: &str, params: impl rusqlite::Params) -> Result<Option<StorageTime>> {
        let read = || self.connection.prepare_cached(sql)?.query_row(params, |row| row.get(0)).optional();
        let nanos: Option<i64> = read().map_err(|error| self.failed(error))?;
        Ok(nanos.map(codec::time))
    }
}
