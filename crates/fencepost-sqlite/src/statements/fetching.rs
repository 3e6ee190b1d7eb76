//! Reads the records of locks, with all leases converted to this process's clock.

use std::collections::HashMap;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use fencepost_core::backend::Keep;
use fencepost_core::clock::StorageTime;
use fencepost_core::record::{ClientId, Holder, LockRecord, StoredCell, Ticket};
use fencepost_core::{Attempt, Cell, FencingToken, LockName, Owner, Result};
use rusqlite::{Connection, OptionalExtension, Params, Row, params};

use super::leases::TicketKey;
use super::{Statements, signed, unsigned};
use crate::error::sqlite_error;
use crate::rows;

/// Whether a fetch records when it first saw a lease of another clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Sightings {
    /// Inserts a row: inside a write transaction.
    Insert,
    ReadOnly,
}

/// The part of a queue to fetch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum QueuePart {
    First(usize),
    All,
}

/// Selects the columns of tickets.
macro_rules! tickets {
    ($which:literal) => {
        concat!(
            "SELECT clock, seq, owner, ttl_ns, until_ns, since_ms, client, rule, wants, label, meta FROM tickets ",
            $which
        )
    };
}

impl Statements {
    /// Fetches a lock with this part of its queue.
    pub(crate) fn fetch(
        &mut self,
        name: &LockName,
        queue: QueuePart,
        now: StorageTime,
        sightings: Sightings,
    ) -> Result<(LockRecord, Vec<Ticket>)> {
        let mut record = LockRecord::default();
        for (row_clock, mut holder) in self.holders(name)? {
            let (owner, ttl) = (holder.owner.to_bytes(), holder.ttl);
            holder.until = self.local_deadline(row_clock, &owner, holder.until, ttl, now, sightings)?;
            record.holders.insert(holder);
        }
        let limit = match queue {
            QueuePart::First(count) => signed(count as u64),
            QueuePart::All => i64::MAX,
        };
        let first = params![name.as_str(), limit];
        let tickets =
            self.tickets(tickets!("WHERE name = ?1 ORDER BY seq LIMIT ?2"), first, now, sightings)?;
        record.queue = tickets.iter().map(|ticket| (ticket.seq, ticket.attempt.owner)).collect();
        let last = tickets.last().filter(|_| queue == QueuePart::First(tickets.len()));
        record.unknown_from = last.map(|last| last.seq + 1);
        if let Some((row_clock, mut stored)) = self.cell(name)? {
            if let Keep::For(keep) = stored.keep {
                stored.until = self.local_deadline(
                    row_clock,
                    name.as_str().as_bytes(),
                    stored.until,
                    keep,
                    now,
                    sightings,
                )?;
            }
            record.cell = Some(stored);
        }
        Ok((record, tickets))
    }

    /// Fetches one ticket, inside a write transaction.
    pub(crate) fn ticket(&mut self, key: TicketKey<'_>, now: StorageTime) -> Result<Option<Ticket>> {
        let TicketKey { name, seq, owner } = key;
        let key = params![name.as_str(), signed(seq), owner.to_bytes()];
        let sql = tickets!("WHERE name = ?1 AND seq = ?2 AND owner = ?3");
        self.tickets(sql, key, now, Sightings::Insert).map(|mut found| found.pop())
    }

    fn holders(&mut self, name: &LockName) -> Result<Vec<(i64, Holder)>> {
        const SQL: &str = "SELECT clock, owner, token, mode, ttl_ns, until_ns, since_ms, client, names, chosen, label, meta \
             FROM holders WHERE name = ?1 ORDER BY token";
        let Self { connection, labels, path, .. } = self;
        let read = |row: &Row<'_>| -> rusqlite::Result<Result<(i64, Holder)>> {
            let names: Option<String> = row.get(8)?;
            let names = match names.map(|names| rows::names_of(&names)).transpose() {
                Ok(names) => names,
                Err(error) => return Ok(Err(error)),
            };
            let holder = Holder {
                owner: Owner::from_bytes(row.get(1)?),
                token: FencingToken::new(unsigned(row.get(2)?)),
                mode: rows::mode_of(row.get(3)?),
                ttl: rows::duration(row.get(4)?),
                until: rows::time(row.get(5)?),
                since: Duration::from_millis(unsigned(row.get(6)?)),
                client: ClientId(row.get::<_, i64>(7)?.cast_unsigned()),
                names,
                chosen: usize::try_from(row.get::<_, i64>(9)?).unwrap_or(0),
                label: interned(labels, row.get(10)?),
                meta: rows::meta_of(&row.get::<_, String>(11)?),
            };
            Ok(Ok((row.get(0)?, holder)))
        };
        collect(connection, path, SQL, [name.as_str()], read)
    }

    fn tickets(
        &mut self,
        sql: &str,
        params: impl Params,
        now: StorageTime,
        sightings: Sightings,
    ) -> Result<Vec<Ticket>> {
        let Self { connection, labels, path, .. } = self;
        let read = |row: &Row<'_>| -> rusqlite::Result<Result<(i64, Ticket)>> {
            let wants = match rows::wants_of(&row.get::<_, String>(8)?) {
                Ok(wants) => wants,
                Err(error) => return Ok(Err(error)),
            };
            let attempt = Attempt {
                owner: Owner::from_bytes(row.get(2)?),
                wants,
                rule: rows::rule_of(row.get(7)?),
                ttl: rows::duration(row.get(3)?),
                label: interned(labels, row.get(9)?),
                meta: rows::meta_of(&row.get::<_, String>(10)?),
            };
            let ticket = Ticket {
                attempt: Arc::new(attempt),
                seq: unsigned(row.get(1)?),
                until: rows::time(row.get(4)?),
                since: Duration::from_millis(unsigned(row.get(5)?)),
                client: ClientId(row.get::<_, i64>(6)?.cast_unsigned()),
            };
            Ok(Ok((row.get(0)?, ticket)))
        };
        let mut tickets = Vec::new();
        for (row_clock, mut ticket) in collect(connection, path, sql, params, read)? {
            let (owner, ttl) = (ticket.attempt.owner.to_bytes(), ticket.attempt.ttl);
            ticket.until = self.local_deadline(row_clock, &owner, ticket.until, ttl, now, sightings)?;
            tickets.push(ticket);
        }
        Ok(tickets)
    }

    fn cell(&self, name: &LockName) -> Result<Option<(i64, StoredCell)>> {
        let read = |row: &Row<'_>| {
            let bytes: Vec<u8> = row.get(2)?;
            let cell = Cell { token: FencingToken::new(unsigned(row.get(1)?)), bytes: bytes.into() };
            let keep = rows::keep_of(row.get(3)?, row.get(4)?);
            Ok((row.get(0)?, StoredCell { cell, keep, until: rows::time(row.get(5)?) }))
        };
        let sql = "SELECT clock, token, bytes, keep, keep_ns, until_ns FROM cells WHERE name = ?1";
        let find = || self.connection.prepare_cached(sql)?.query_row([name.as_str()], read).optional();
        find().map_err(|error| self.failed(error))
    }

    /// Returns when a row that is valid for `length` expires on this clock. A time of another clock cannot be converted; it is
    /// only known that the row was last changed before it was first seen in this state. So its full length counts from then.
    fn local_deadline(
        &self,
        row_clock: i64,
        thing: &[u8],
        until: StorageTime,
        length: Duration,
        now: StorageTime,
        sightings: Sightings,
    ) -> Result<StorageTime> {
        if row_clock == self.clock {
            // More time left than the length of the lease means that the clock was set back.
            return Ok(until.min(now + length));
        }
        let stamp = rows::stamp(until);
        let seen = || {
            let sql = "SELECT until_ns FROM sightings WHERE clock = ?1 AND thing = ?2 AND stamp_ns = ?3";
            let mut statement = self.connection.prepare_cached(sql)?;
            statement.query_row(params![self.clock, thing, stamp], |row| row.get::<_, i64>(0)).optional()
        };
        if let Some(until) = seen().map_err(|error| self.failed(error))? {
            return Ok(rows::time(until));
        }
        let until = now + length;
        if sightings == Sightings::Insert {
            self.run(
                "INSERT OR REPLACE INTO sightings (clock, thing, stamp_ns, until_ns) VALUES (?1, ?2, ?3, ?4)",
                params![self.clock, thing, stamp, rows::stamp(until)],
            )?;
        }
        Ok(until)
    }
}

fn collect<T>(
    connection: &Connection,
    path: &Path,
    sql: &str,
    params: impl Params,
    read: impl FnMut(&Row<'_>) -> rusqlite::Result<Result<T>>,
) -> Result<Vec<T>> {
    let find = || {
        let mut statement = connection.prepare_cached(sql)?;
        statement.query_map(params, read)?.collect::<rusqlite::Result<Vec<_>>>()
    };
    find().map_err(|error| sqlite_error(path, error))?.into_iter().collect()
}

/// Returns the one copy of this label.
fn interned(labels: &mut HashMap<String, Arc<str>>, label: String) -> Arc<str> {
    const MAX_LABELS: usize = 1024;
    if let Some(known) = labels.get(&label) {
        return known.clone();
    }
    if labels.len() >= MAX_LABELS {
        labels.clear();
    }
    let interned: Arc<str> = label.as_str().into();
    labels.insert(label, interned.clone());
    interned
}
