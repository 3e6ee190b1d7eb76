//! Reads the records of locks, with all leases converted to this process's clock.

use std::path::Path;
use std::time::Duration;

use fencepost_core::backend::Keep;
use fencepost_core::clock::StorageTime;
use fencepost_core::record::{Holder, LockRecord, StoredCell, Ticket};
use fencepost_core::{LockName, Result};
use fencepost_sql::{Row as _, cell, cell_columns, codec, holder, holder_columns, ticket, ticket_columns};
use rusqlite::types::FromSql;
use rusqlite::{Connection, OptionalExtension, Params, Row, params};

use super::Statements;
use super::leases::TicketKey;
use crate::error::sqlite_error;

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
        concat!("SELECT ", ticket_columns!(), ", clock FROM tickets ", $which)
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
            QueuePart::First(count) => codec::signed(count as u64),
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
        let key = params![name.as_str(), codec::signed(seq), owner.to_bytes()];
        let sql = tickets!("WHERE name = ?1 AND seq = ?2 AND owner = ?3");
        self.tickets(sql, key, now, Sightings::Insert).map(|mut found| found.pop())
    }

    fn holders(&mut self, name: &LockName) -> Result<Vec<(i64, Holder)>> {
        const SQL: &str =
            concat!("SELECT ", holder_columns!(), ", clock FROM holders WHERE name = ?1 ORDER BY token");
        let Self { connection, labels, path, .. } = self;
        let read = |row: FileRow<'_>| Ok((row.integer(12)?, holder(&row, labels)?));
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
        let read = |row: FileRow<'_>| Ok((row.integer(11)?, ticket(&row, labels)?));
        let mut tickets = Vec::new();
        for (row_clock, mut ticket) in collect(connection, path, sql, params, read)? {
            let (owner, ttl) = (ticket.attempt.owner.to_bytes(), ticket.attempt.ttl);
            ticket.until = self.local_deadline(row_clock, &owner, ticket.until, ttl, now, sightings)?;
            tickets.push(ticket);
        }
        Ok(tickets)
    }

    fn cell(&self, name: &LockName) -> Result<Option<(i64, StoredCell)>> {
        const SQL: &str = concat!("SELECT ", cell_columns!(), ", clock FROM cells WHERE name = ?1");
        let read = |row: FileRow<'_>| Ok((row.integer(6)?, cell(&row)?));
        collect(&self.connection, &self.path, SQL, [name.as_str()], read).map(|mut found| found.pop())
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
        let stamp = codec::stamp(until);
        let seen = || {
            let sql = "SELECT until_ns FROM sightings WHERE clock = ?1 AND thing = ?2 AND stamp_ns = ?3";
            let mut statement = self.connection.prepare_cached(sql)?;
            statement.query_row(params![self.clock, thing, stamp], |row| row.get::<_, i64>(0)).optional()
        };
        if let Some(until) = seen().map_err(|error| self.failed(error))? {
            return Ok(codec::time(until));
        }
        let until = now + length;
        if sightings == Sightings::Insert {
            self.run(
                "INSERT OR REPLACE INTO sightings (clock, thing, stamp_ns, until_ns) VALUES (?1, ?2, ?3, ?4)",
                params![self.clock, thing, stamp, codec::stamp(until)],
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
    mut read: impl FnMut(FileRow<'_>) -> Result<T>,
) -> Result<Vec<T>> {
    let find = || {
        let mut statement = connection.prepare_cached(sql)?;
        let read = |row: &Row<'_>| Ok(read(FileRow { row, path }));
        statement.query_map(params, read)?.collect::<rusqlite::Result<Vec<_>>>()
    };
    find().map_err(|error| sqlite_error(path, error))?.into_iter().collect()
}

/// A row of the file at this path.
struct FileRow<'a> {
    row: &'a Row<'a>,
    path: &'a Path,
}

impl FileRow<'_> {
    fn get<T: FromSql>(&self, column: usize) -> Result<T> {
        self.row.get(column).map_err(|error| sqlite_error(self.path, error))
    }
}

impl fencepost_sql::Row for FileRow<'_> {
    fn integer(&self, column: usize) -> Result<i64> {
        self.get(column)
    }

    fn optional_text(&self, column: usize) -> Result<Option<String>> {
        self.get(column)
    }

    fn bytes(&self, column: usize) -> Result<Vec<u8>> {
        self.get(column)
    }
}
