//! Every statement, and what its rows mean. Names and values only ever travel as parameters.

mod diagnose;
pub(crate) mod fetching;
pub(crate) mod leases;
mod saving;

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use fencepost_core::clock::StorageTime;
use fencepost_core::{Error, ErrorKind, LockName, Owner, Result, StorageId};
use rusqlite::{Connection, Params, params};

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
    pub(crate) swept: StorageTime,
}

impl Counter {
    /// Returns the next number that is reserved, for a token or a place in line.
    pub(crate) fn next_number(&mut self) -> Option<u64> {
        if self.last >= self.reserved {
            return None;
        }
        self.last += 1;
        u64::try_from(self.last).ok()
    }
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
        let id = id.try_into().map_err(|_| self.refuse(ErrorKind::Backend, "has a damaged storage id"))?;
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
                Err(self.refuse(ErrorKind::Backend, &text).with_hint("use a newer fencepost"))
            }
            _ if self.is_new()? => Ok(()),
            _ => {
                let text = "is a database of another program";
                Err(self.refuse(ErrorKind::Backend, text).with_hint("name another file"))
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
                self.refuse(ErrorKind::Backend, "took a transaction back: it is full or cannot be read")
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
                    let swept = rows::time(row.get(3)?);
                    Ok(Counter { last: row.get(0)?, reserved: row.get(1)?, boot: row.get(2)?, swept })
                },
            )
        };
        read().map_err(|error| self.failed(error))
    }

    pub(crate) fn set_counter(&self, counter: Counter) -> Result<()> {
        let Counter { last, reserved, boot, swept } = counter;
        let params = params![last, reserved, boot, rows::stamp(swept)];
        self.run("UPDATE storage SET last = ?1, reserved = ?2, boot = ?3, swept_ns = ?4", params).map(drop)
    }

    /// Names of lines in which something of our clock has ended, or that have something of another clock.
    pub(crate) fn overdue(&self, now: StorageTime, limit: i64) -> Result<Vec<LockName>> {
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
        self.names(sql, params![self.clock, rows::stamp(now), limit])
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
    pub(crate) fn may_be_granted(&self, name: &LockName, owner: Owner, now: StorageTime) -> Result<bool> {
        let sql = "SELECT EXISTS (SELECT 1 FROM holders WHERE name = ?1 AND owner = ?2) \
             OR (NOT EXISTS (SELECT 1 FROM holders WHERE name = ?1 AND (clock <> ?3 OR until_ns > ?4)) \
                AND ?2 = (SELECT owner FROM tickets WHERE name = ?1 ORDER BY seq LIMIT 1))";
        let params = params![name.as_str(), owner.to_bytes(), self.clock, rows::stamp(now)];
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

fn signed(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}

fn unsigned(number: i64) -> u64 {
    u64::try_from(number).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::fetching::{Sight, Waiters};
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
        let now = StorageTime::from_nanos(0) + Duration::from_secs(1000);
        let full = (0..200).find_map(|n| {
            let name = LockName::new(format!("{n:03}{long}")).unwrap();
            statements.fetch(&name, Waiters::All, now, Sight::Note).err()
        });
        assert!(full.is_some());
        assert!(statements.check_in_transaction().is_err());
    }
}
