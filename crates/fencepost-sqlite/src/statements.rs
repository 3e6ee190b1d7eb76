//! Every statement, and what its rows mean. Names and values only ever travel as parameters.

mod examination;
pub(crate) mod leases;

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use fencepost_core::backend::Keep;
use fencepost_core::book::{Book, Touched};
use fencepost_core::clock::Moment;
use fencepost_core::line::{ClientId, Holder, Line, StoredCell, Ticket};
use fencepost_core::{Attempt, Cell, Error, ErrorKind, FencingToken, LockName, Owner, Result, StorageId};
use rusqlite::{Connection, OptionalExtension, Params, Row, params};

use crate::error::{commit_error, sqlite_error};
use crate::rows;

const APPLICATION_ID: i64 = 0x4650_4f53;
const SCHEMA_VERSION: i64 = 1;

/// What the row of the storage says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Counter {
    pub(crate) last: i64,
    pub(crate) reserved: i64,
    pub(crate) boot: i64,
    pub(crate) swept: Moment,
}

/// What a load may do about leases of other clocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Sight {
    /// Note down when they were first seen: inside a write transaction.
    Note,
    /// Only look.
    Look,
}

/// The connection, and the clock its rows are written with.
pub(crate) struct Statements {
    connection: Connection,
    path: PathBuf,
    clock: i64,
    /// Labels are few and come with every row: one copy of each is enough.
    labels: HashMap<String, Arc<str>>,
}

impl Statements {
    pub(crate) fn new(connection: Connection, path: &Path, clock: i64) -> Self {
        connection.set_prepared_statement_cache_capacity(64);
        Self { connection, path: path.to_owned(), clock, labels: HashMap::new() }
    }

    fn failed(&self, error: rusqlite::Error) -> Error {
        sqlite_error(&self.path, error)
    }

    fn run(&self, sql: &str, params: impl Params) -> Result<usize> {
        let run = || self.connection.prepare_cached(sql)?.execute(params);
        run().map_err(|error| self.failed(error))
    }

    fn number(&self, sql: &str) -> Result<i64> {
        let read = || self.connection.prepare_cached(sql)?.query_row([], |row| row.get(0));
        read().map_err(|error| self.failed(error))
    }

    fn set(&self, pragma: &str) -> Result<()> {
        self.connection.execute_batch(pragma).map_err(|error| self.failed(error))
    }

    /// Makes commits survive a power cut, for the moments when that matters.
    pub(crate) fn durably<T>(&self, act: impl FnOnce() -> Result<T>) -> Result<T> {
        self.set("PRAGMA synchronous = FULL")?;
        let out = act();
        if out.is_err() {
            // Otherwise it could not be set back.
            self.rollback();
        }
        self.set("PRAGMA synchronous = NORMAL")?;
        out
    }

    /// Checks that the file is ours and of a version we know; makes the tables if it is new.
    pub(crate) fn prepare(&self, first: i64, reserve: i64, boot: i64) -> Result<StorageId> {
        let journal: String = self
            .connection
            .query_row("PRAGMA journal_mode = WAL", [], |row| row.get(0))
            .map_err(|error| self.failed(error))?;
        if journal != "wal" {
            return Err(self.refuse(ErrorKind::Unsupported, "cannot use SQLite's write-ahead log"));
        }
        self.set("PRAGMA synchronous = NORMAL; PRAGMA temp_store = MEMORY")?;
        if self.is_new()? {
            self.create(first, reserve, boot)?;
        }
        self.check()?;
        let id: Vec<u8> = self
            .connection
            .query_row("SELECT storage_id FROM storage", [], |row| row.get(0))
            .map_err(|error| self.failed(error))?;
        let id = id.try_into().map_err(|_| self.refuse(ErrorKind::Storage, "has a damaged storage id"))?;
        Ok(StorageId::from_bytes(id))
    }

    /// Refuses what is not ours, or of a version we do not know; a new file is neither.
    pub(crate) fn check(&self) -> Result<()> {
        let application = self.number("PRAGMA application_id")?;
        let version = self.number("PRAGMA user_version")?;
        match (application, version) {
            (APPLICATION_ID, SCHEMA_VERSION) => Ok(()),
            (APPLICATION_ID, newer) if newer > SCHEMA_VERSION => {
                let text = format!("has schema {newer}, and this program knows {SCHEMA_VERSION} only");
                Err(self.refuse(ErrorKind::Storage, &text).with_hint("use a newer fencepost"))
            }
            _ if self.is_new()? => Ok(()),
            _ => {
                let text = "is a database of another program";
                Err(self.refuse(ErrorKind::Storage, text).with_hint("name another file"))
            }
        }
    }

    fn is_new(&self) -> Result<bool> {
        let application = self.number("PRAGMA application_id")?;
        Ok(application == 0 && self.number("SELECT count(*) FROM sqlite_schema")? == 0)
    }

    fn create(&self, first: i64, reserve: i64, boot: i64) -> Result<()> {
        self.durably(|| {
            self.begin()?;
            self.set(include_str!("schema.sql"))?;
            self.set(&format!("PRAGMA application_id = {APPLICATION_ID}; PRAGMA user_version = {SCHEMA_VERSION}"))?;
            self.run(
                "INSERT INTO storage (id, storage_id, last, reserved, boot, swept_ns) VALUES (1, ?1, ?2, ?3, ?4, 0)",
                params![StorageId::random().to_bytes(), first, first + reserve, boot],
            )?;
            self.commit()
        })
    }

    fn refuse(&self, kind: ErrorKind, why: &str) -> Error {
        Error::new(kind, format!("sqlite:{} {why}", self.path.display()))
    }

    pub(crate) fn begin(&self) -> Result<()> {
        self.run("BEGIN IMMEDIATE", []).map(drop)
    }

    pub(crate) fn begin_read(&self) -> Result<()> {
        self.run("BEGIN", []).map(drop)
    }

    pub(crate) fn commit(&self) -> Result<()> {
        let run = || self.connection.prepare_cached("COMMIT")?.execute([]);
        run().map(drop).map_err(|error| commit_error(&self.path, error))
    }

    pub(crate) fn rollback(&self) {
        // Fails only if SQLite has rolled back by itself already.
        let _ = self.run("ROLLBACK", []);
    }

    /// SQLite takes a whole transaction back when a statement in it fails for lack of room or memory. What follows
    /// would be written statement by statement, so nothing may follow.
    pub(crate) fn check_in_transaction(&self) -> Result<()> {
        if self.connection.is_autocommit() {
            return Err(
                self.refuse(ErrorKind::Storage, "took a transaction back: it is full or cannot be read")
            );
        }
        Ok(())
    }

    /// A number that changes when another connection has written.
    pub(crate) fn data_version(&self) -> Result<i64> {
        self.number("PRAGMA data_version")
    }

    pub(crate) fn counter(&self) -> Result<Counter> {
        let read = || {
            self.connection.prepare_cached("SELECT last, reserved, boot, swept_ns FROM storage")?.query_row(
                [],
                |row| {
                    let swept = Moment::from_nanos(unsigned(row.get(3)?));
                    Ok(Counter { last: row.get(0)?, reserved: row.get(1)?, boot: row.get(2)?, swept })
                },
            )
        };
        read().map_err(|error| self.failed(error))
    }

    pub(crate) fn set_counter(&self, counter: Counter) -> Result<()> {
        let Counter { last, reserved, boot, swept } = counter;
        let params = params![last, reserved, boot, signed(swept.as_nanos())];
        self.run("UPDATE storage SET last = ?1, reserved = ?2, boot = ?3, swept_ns = ?4", params).map(drop)
    }

    /// The line of this name, its leases timed on our clock.
    pub(crate) fn load(
        &mut self,
        name: &LockName,
        now: Moment,
        sight: Sight,
    ) -> Result<Option<(Line, Vec<Ticket>)>> {
        let mut line = Line::default();
        for (row_clock, mut holder) in self.holders(name)? {
            let (owner, ttl) = (holder.owner.to_bytes(), holder.ttl);
            holder.until = self.timed(row_clock, &owner, holder.until, ttl, now, sight)?;
            line.holders.insert(holder);
        }
        let mut tickets = Vec::new();
        for (row_clock, mut ticket) in self.tickets(name)? {
            let (owner, ttl) = (ticket.attempt.owner.to_bytes(), ticket.attempt.ttl);
            ticket.until = self.timed(row_clock, &owner, ticket.until, ttl, now, sight)?;
            line.queue.insert(ticket.seq, ticket.attempt.owner);
            tickets.push(ticket);
        }
        if let Some((row_clock, mut stored)) = self.cell(name)? {
            if let Keep::For(keep) = stored.keep {
                stored.until =
                    self.timed(row_clock, name.as_str().as_bytes(), stored.until, keep, now, sight)?;
            }
            line.cell = Some(stored);
        }
        Ok((!line.is_empty()).then_some((line, tickets)))
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
                until: Moment::from_nanos(unsigned(row.get(5)?)),
                since: Duration::from_millis(unsigned(row.get(6)?)),
                client: ClientId(row.get::<_, i64>(7)?.cast_unsigned()),
                names,
                chosen: usize::try_from(row.get::<_, i64>(9)?).unwrap_or(0),
                label: shared(labels, row.get(10)?),
                meta: rows::meta_of(&row.get::<_, String>(11)?),
            };
            Ok(Ok((row.get(0)?, holder)))
        };
        collect(connection, path, SQL, name, read)
    }

    fn tickets(&mut self, name: &LockName) -> Result<Vec<(i64, Ticket)>> {
        const SQL: &str = "SELECT clock, seq, owner, ttl_ns, until_ns, since_ms, client, rule, wants, label, meta \
             FROM tickets WHERE name = ?1 ORDER BY seq";
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
                until: Moment::from_nanos(unsigned(row.get(4)?)),
                since: Duration::from_millis(unsigned(row.get(5)?)),
                client: ClientId(row.get::<_, i64>(6)?.cast_unsigned()),
            };
            Ok(Ok((row.get(0)?, ticket)))
        };
        collect(connection, path, SQL, name, read)
    }

    fn cell(&self, name: &LockName) -> Result<Option<(i64, StoredCell)>> {
        let read = |row: &Row<'_>| {
            let bytes: Vec<u8> = row.get(2)?;
            let cell = Cell { token: FencingToken::new(unsigned(row.get(1)?)), bytes: bytes.into() };
            let keep = rows::keep_of(row.get(3)?, row.get(4)?);
            Ok((row.get(0)?, StoredCell { cell, keep, until: Moment::from_nanos(unsigned(row.get(5)?)) }))
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
        until: Moment,
        length: Duration,
        now: Moment,
        sight: Sight,
    ) -> Result<Moment> {
        if row_clock == self.clock {
            // More time left than the lease has would mean that the clock stepped back.
            return Ok(until.min(now + length));
        }
        let stamp = signed(until.as_nanos());
        let seen = || {
            let sql = "SELECT until_ns FROM sightings WHERE clock = ?1 AND thing = ?2 AND stamp_ns = ?3";
            let mut statement = self.connection.prepare_cached(sql)?;
            statement.query_row(params![self.clock, thing, stamp], |row| row.get::<_, i64>(0)).optional()
        };
        if let Some(until) = seen().map_err(|error| self.failed(error))? {
            return Ok(Moment::from_nanos(unsigned(until)));
        }
        let until = now + length;
        if sight == Sight::Note {
            self.run(
                "INSERT OR REPLACE INTO sightings (clock, thing, stamp_ns, until_ns) VALUES (?1, ?2, ?3, ?4)",
                params![self.clock, thing, stamp, signed(until.as_nanos())],
            )?;
        }
        Ok(until)
    }

    /// Writes back what the book has changed.
    pub(crate) fn save(&self, book: &Book, touched: &Touched) -> Result<()> {
        for (name, owner) in &touched.holders {
            match book.line(name).and_then(|line| line.holder(*owner)) {
                Some(holder) => self.put_holder(name, holder)?,
                None => self.run(
                    "DELETE FROM holders WHERE name = ?1 AND owner = ?2",
                    params![name.as_str(), owner.to_bytes()],
                )?,
            };
        }
        for (name, seq, owner) in &touched.tickets {
            match book.tickets().get(owner) {
                Some(ticket) if ticket.seq == *seq => self.put_ticket(name, ticket)?,
                _ => self.run(
                    "DELETE FROM tickets WHERE name = ?1 AND seq = ?2",
                    params![name.as_str(), signed(*seq)],
                )?,
            };
        }
        for name in &touched.cells {
            match book.line(name).and_then(|line| line.cell.as_ref()) {
                Some(stored) => self.put_cell(name, stored)?,
                None => self.run("DELETE FROM cells WHERE name = ?1", params![name.as_str()])?,
            };
        }
        Ok(())
    }

    fn put_holder(&self, name: &LockName, holder: &Holder) -> Result<usize> {
        self.run(
            "INSERT INTO holders (name, owner, token, mode, ttl_ns, until_ns, clock, since_ms, client, names, chosen, \
                label, meta) VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13) \
             ON CONFLICT (name, owner) DO UPDATE SET until_ns = excluded.until_ns, clock = excluded.clock, \
                token = excluded.token, since_ms = excluded.since_ms, client = excluded.client, chosen = excluded.chosen",
            params![
                name.as_str(),
                holder.owner.to_bytes(),
                signed(holder.token.get()),
                rows::mode_number(holder.mode),
                rows::nanos(holder.ttl),
                signed(holder.until.as_nanos()),
                self.clock,
                signed_millis(holder.since),
                holder.client.0.cast_signed(),
                holder.names.as_deref().map(rows::names_text),
                signed(holder.chosen as u64),
                &*holder.label,
                rows::meta_text(&holder.meta),
            ],
        )
    }

    fn put_ticket(&self, name: &LockName, ticket: &Ticket) -> Result<usize> {
        let attempt = &ticket.attempt;
        self.run(
            "INSERT INTO tickets (name, seq, owner, ttl_ns, until_ns, clock, since_ms, client, rule, wants, label, meta) \
             VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12) \
             ON CONFLICT (name, seq) DO UPDATE SET until_ns = excluded.until_ns, clock = excluded.clock, \
                client = excluded.client",
            params![
                name.as_str(),
                signed(ticket.seq),
                attempt.owner.to_bytes(),
                rows::nanos(attempt.ttl),
                signed(ticket.until.as_nanos()),
                self.clock,
                signed_millis(ticket.since),
                ticket.client.0.cast_signed(),
                rows::rule_number(attempt.rule),
                rows::wants_text(&attempt.wants),
                &*attempt.label,
                rows::meta_text(&attempt.meta),
            ],
        )
    }

    fn put_cell(&self, name: &LockName, stored: &StoredCell) -> Result<usize> {
        let (keep, keep_ns) = rows::keep_numbers(stored.keep);
        self.run(
            "INSERT OR REPLACE INTO cells (name, token, bytes, keep, keep_ns, until_ns, clock) \
             VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7)",
            params![
                name.as_str(),
                signed(stored.cell.token.get()),
                &*stored.cell.bytes,
                keep,
                keep_ns,
                signed(stored.until.as_nanos()),
                self.clock,
            ],
        )
    }

    /// Names of lines in which something of our clock has ended, or that have something of another clock.
    pub(crate) fn overdue(&self, now: Moment, limit: i64) -> Result<Vec<LockName>> {
        // What was seen already and has time left would otherwise stand before everything else, sweep after sweep.
        let sql = "SELECT name FROM holders AS t WHERE (clock = ?1 AND until_ns <= ?2) OR (clock <> ?1 AND NOT EXISTS \
                (SELECT 1 FROM sightings AS s WHERE s.clock = ?1 AND s.thing = t.owner AND s.stamp_ns = t.until_ns \
                    AND s.until_ns > ?2)) \
             UNION SELECT name FROM tickets AS t WHERE (clock = ?1 AND until_ns <= ?2) OR (clock <> ?1 AND NOT EXISTS \
                (SELECT 1 FROM sightings AS s WHERE s.clock = ?1 AND s.thing = t.owner AND s.stamp_ns = t.until_ns \
                    AND s.until_ns > ?2)) \
             UNION SELECT name FROM cells AS t WHERE keep = 1 AND ((clock = ?1 AND until_ns <= ?2) OR (clock <> ?1 \
                AND NOT EXISTS (SELECT 1 FROM sightings AS s WHERE s.clock = ?1 AND s.thing = CAST(t.name AS BLOB) \
                    AND s.stamp_ns = t.until_ns AND s.until_ns > ?2))) LIMIT ?3";
        self.names(sql, params![self.clock, signed(now.as_nanos()), limit])
    }

    /// Forgets sightings of what is no longer there.
    pub(crate) fn forget_sightings(&self) -> Result<usize> {
        self.run(
            "DELETE FROM sightings WHERE thing NOT IN (SELECT owner FROM holders UNION ALL SELECT owner FROM tickets \
             UNION ALL SELECT CAST(name AS BLOB) FROM cells)",
            [],
        )
    }

    /// The names in use that begin with `prefix` and come after `after`.
    pub(crate) fn list(&self, prefix: &str, after: &str, limit: i64) -> Result<Vec<LockName>> {
        let sql = "SELECT name FROM \
                (SELECT name FROM holders UNION SELECT name FROM tickets UNION SELECT name FROM cells) \
             WHERE name >= ?1 AND name > ?2 AND substr(name, 1, length(?1)) = ?1 ORDER BY name LIMIT ?3";
        self.names(sql, params![prefix, after, limit])
    }

    /// Whether this owner, who waits, holds the lock by now, or it is free and the owner the first in line.
    pub(crate) fn may_be_granted(&self, name: &LockName, owner: Owner, now: Moment) -> Result<bool> {
        let sql = "SELECT EXISTS (SELECT 1 FROM holders WHERE name = ?1 AND owner = ?2) \
             OR (NOT EXISTS (SELECT 1 FROM holders WHERE name = ?1 AND (clock <> ?3 OR until_ns > ?4)) \
                AND ?2 = (SELECT owner FROM tickets WHERE name = ?1 ORDER BY seq LIMIT 1))";
        let params = params![name.as_str(), owner.to_bytes(), self.clock, signed(now.as_nanos())];
        let ask = || self.connection.prepare_cached(sql)?.query_row(params, |row| row.get(0));
        ask().map_err(|error| self.failed(error))
    }

    fn names(&self, sql: &str, params: impl Params) -> Result<Vec<LockName>> {
        let read = || {
            let mut statement = self.connection.prepare_cached(sql)?;
            statement.query_map(params, |row| row.get::<_, String>(0))?.collect::<rusqlite::Result<Vec<_>>>()
        };
        read().map_err(|error| self.failed(error))?.into_iter().map(LockName::new).collect()
    }
}

fn collect<T>(
    connection: &Connection,
    path: &Path,
    sql: &str,
    name: &LockName,
    read: impl FnMut(&Row<'_>) -> rusqlite::Result<Result<T>>,
) -> Result<Vec<T>> {
    let find = || {
        let mut statement = connection.prepare_cached(sql)?;
        statement.query_map([name.as_str()], read)?.collect::<rusqlite::Result<Vec<_>>>()
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

fn signed(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}

fn signed_millis(duration: Duration) -> i64 {
    i64::try_from(duration.as_millis()).unwrap_or(i64::MAX)
}

fn unsigned(number: i64) -> u64 {
    u64::try_from(number).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A full disk while a lease of another clock is noted: SQLite takes the transaction back, and what the other
    /// operations of the flight decided would be written without one.
    #[test]
    fn a_transaction_that_was_taken_back_is_noticed() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("x.db");
        let mut statements = Statements::new(Connection::open(&path).unwrap(), &path, 1);
        statements.prepare(1, 1000, 1).unwrap();
        let long = "x".repeat(400);
        for n in 0..200 {
            let mut owner = [0u8; 16];
            owner[0] = n;
            statements
                .run(
                    "INSERT INTO holders VALUES (?1, ?2, 1, 0, 1000000000, 5, 2, 1, 1, NULL, 0, '', '')",
                    params![format!("{n:03}{long}"), owner],
                )
                .unwrap();
        }
        let pages = statements.number("PRAGMA page_count").unwrap();
        statements.set(&format!("PRAGMA max_page_count = {pages}")).unwrap();
        statements.begin().unwrap();
        let now = Moment::START + Duration::from_secs(1000);
        let full = (0..200).find_map(|n| {
            statements.load(&LockName::new(format!("{n:03}{long}")).unwrap(), now, Sight::Note).err()
        });
        assert!(full.is_some());
        assert!(statements.check_in_transaction().is_err());
    }
}
