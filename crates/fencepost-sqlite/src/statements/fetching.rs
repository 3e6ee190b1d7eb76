//! Lines as they are in the file, their leases timed on our clock.

use std::collections::HashMap;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use fencepost_core::backend::Keep;
use fencepost_core::clock::StorageTime;
use fencepost_core::record::{ClientId, Holder, LockRecord, StoredCell, Ticket};
use fencepost_core::{Attempt, Cell, FencingToken, LockName, Owner, Result};
use rusqlite::{Connection, OptionalExtension, Params, Row, params};

use super::leases::Place;
use super::{Statements, signed, unsigned};
use crate::error::sqlite_error;
use crate::rows;

/// What a fetch may do about leases of other clocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Sight {
    /// Note when they were first seen: inside a write transaction.
    Note,
    /// Only look.
    Look,
}

/// Which waiters of a line to fetch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Waiters {
    First(usize),
    All,
}

/// The columns of a ticket.
macro_rules! tickets {
    ($which:literal) => {
        concat!(
            "SELECT clock, seq, owner, ttl_ns, until_ns, since_ms, client, rule, wants, label, meta FROM tickets ",
            $which
        )
    };
}

impl Statements {
    /// Fetches a line.
    pub(crate) fn fetch(
        &mut self,
        name: &LockName,
        waiters: Waiters,
        now: StorageTime,
        sight: Sight,
    ) -> Result<(LockRecord, Vec<Ticket>)> {
        let mut line = LockRecord::default();
        for (row_clock, mut holder) in self.holders(name)? {
            let (owner, ttl) = (holder.owner.to_bytes(), holder.ttl);
            holder.until = self.timed(row_clock, &owner, holder.until, ttl, now, sight)?;
            line.holders.insert(holder);
        }
        let limit = match waiters {
            Waiters::First(count) => signed(count as u64),
            Waiters::All => i64::MAX,
        };
        let first = params![name.as_str(), limit];
        let tickets = self.tickets(tickets!("WHERE name = ?1 ORDER BY seq LIMIT ?2"), first, now, sight)?;
        line.queue = tickets.iter().map(|ticket| (ticket.seq, ticket.attempt.owner)).collect();
        let last = tickets.last().filter(|_| waiters == Waiters::First(tickets.len()));
        line.unknown_from = last.map(|last| last.seq + 1);
        if let Some((row_clock, mut stored)) = self.cell(name)? {
            if let Keep::For(keep) = stored.keep {
                stored.until =
                    self.timed(row_clock, name.as_str().as_bytes(), stored.until, keep, now, sight)?;
            }
            line.cell = Some(stored);
        }
        Ok((line, tickets))
    }

    /// Fetches the ticket at a place, inside a write transaction.
    pub(crate) fn ticket(&mut self, place: Place<'_>, now: StorageTime) -> Result<Option<Ticket>> {
        let Place { name, seq, owner } = place;
        let at = params![name.as_str(), signed(seq), owner.to_bytes()];
        let sql = tickets!("WHERE name = ?1 AND seq = ?2 AND owner = ?3");
        self.tickets(sql, at, now, Sight::Note).map(|mut found| found.pop())
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
                label: shared(labels, row.get(10)?),
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
        sight: Sight,
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
                label: shared(labels, row.get(9)?),
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
            ticket.until = self.timed(row_clock, &owner, ticket.until, ttl, now, sight)?;
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

    /// When something that lasts `length` ends on our clock. Of another clock only this is known: as long as the row
    /// does not change, it has been there since we first saw it. So it is given its full length from then on.
    fn timed(
        &self,
        row_clock: i64,
        thing: &[u8],
        until: StorageTime,
        length: Duration,
        now: StorageTime,
        sight: Sight,
    ) -> Result<StorageTime> {
        if row_clock == self.clock {
            // More time left than the lease has would mean that the clock stepped back.
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
        if sight == Sight::Note {
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

fn shared(labels: &mut HashMap<String, Arc<str>>, label: String) -> Arc<str> {
    /// More than this many are not kept.
    const MANY: usize = 1024;
    if let Some(known) = labels.get(&label) {
        return known.clone();
    }
    if labels.len() >= MANY {
        labels.clear();
    }
    let kept: Arc<str> = label.as_str().into();
    labels.insert(label, kept.clone());
    kept
}
