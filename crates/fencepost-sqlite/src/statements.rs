//! All SQL statements. Names and values are passed only as parameters.

mod diagnose;
pub(crate) mod fetching;
pub(crate) mod leases;
mod saving;

use std::path::{Path, PathBuf};

use fencepost_core::clock::StorageTime;
use fencepost_core::{Error, ErrorKind, LockName, Owner, Result, StorageId};
use fencepost_sql::{Labels, codec};
use rusqlite::{Connection, Params, params};

use crate::error::{commit_error, sqlite_error};

const APPLICATION_ID: i64 = 0x4650_4f53;
const SCHEMA_VERSION: i64 = 1;

/// The row of the table `storage`, without the id.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Counter {
    pub(crate) last: i64,
    pub(crate) reserved: i64,
    pub(crate) boot: i64,
    pub(crate) swept: StorageTime,
}

impl Counter {
    /// Returns the next reserved number, for a token or a queue position.
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
    labels: Labels,
}

impl Statements {
    pub(crate) fn new(connection: Connection, path: &Path, clock: i64) -> Self {
        connection.set_prepared_statement_cache_capacity(64);
        Self { connection, path: path.to_owned(), clock, labels: Labels::default() }
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

    /// Runs `act` with commits that survive a power failure.
    pub(crate) fn durably<T>(&self, act: impl FnOnce() -> Result<T>) -> Result<T> {
        self.set("PRAGMA synchronous = FULL")?;
        let out = act();
        if out.is_err() {
            // Otherwise `synchronous` could not be reset.
            self.rollback();
        }
        self.set("PRAGMA synchronous = NORMAL")?;
        out
    }

    /// Checks that the file is a Fencepost database of a supported version, and creates the tables if it is new.
    pub(crate) fn prepare(&self, first: i64, reserve: i64, boot: i64) -> Result<StorageId> {
        let journal: String = self
            .connection
            .query_row("PRAGMA journal_mode = WAL", [], |row| row.get(0))
            .map_err(|error| self.failed(error))?;
        if journal != "wal" {
            return Err(self.rejected(ErrorKind::Unsupported, "cannot use SQLite's write-ahead log"));
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
        let id = id.try_into().map_err(|_| self.rejected(ErrorKind::Backend, "has a damaged storage id"))?;
        Ok(StorageId::from_bytes(id))
    }

    /// Rejects the database of another program, or of an unsupported version. A new file is accepted.
    pub(crate) fn check(&self) -> Result<()> {
        let application = self.number("PRAGMA application_id")?;
        let version = self.number("PRAGMA user_version")?;
        match (application, version) {
            (APPLICATION_ID, SCHEMA_VERSION) => Ok(()),
            (APPLICATION_ID, newer) if newer > SCHEMA_VERSION => {
                let text = format!("has schema {newer}; this version supports only {SCHEMA_VERSION}");
                Err(self.rejected(ErrorKind::Backend, &text).with_hint("use a newer fencepost"))
            }
            _ if self.is_new()? => Ok(()),
            _ => {
                let text = "is a database of another program";
                Err(self.rejected(ErrorKind::Backend, text).with_hint("name another file"))
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

    fn rejected(&self, kind: ErrorKind, reason: &str) -> Error {
        Error::new(kind, format!("sqlite:{} {reason}", self.path.display()))
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

    /// Fails if SQLite has rolled back the transaction, as it does when a statement fails for lack of disk space or memory. Later
    /// statements would each be committed by themselves, so none may follow.
    pub(crate) fn check_in_transaction(&self) -> Result<()> {
        if self.connection.is_autocommit() {
            return Err(self.rejected(
                ErrorKind::Backend,
                "rolled back a transaction: the disk is full or cannot be read",
            ));
        }
        Ok(())
    }

    /// Returns a number that changes when another connection has written.
    pub(crate) fn data_version(&self) -> Result<i64> {
        self.number("PRAGMA data_version")
    }

    pub(crate) fn counter(&self) -> Result<Counter> {
        let read = || {
            self.connection.prepare_cached("SELECT last, reserved, boot, swept_ns FROM storage")?.query_row(
                [],
                |row| {
                    let swept = codec::time(row.get(3)?);
                    Ok(Counter { last: row.get(0)?, reserved: row.get(1)?, boot: row.get(2)?, swept })
                },
            )
        };
        read().map_err(|error| self.failed(error))
    }

    pub(crate) fn set_counter(&self, counter: Counter) -> Result<()> {
        let Counter { last, reserved, boot, swept } = counter;
        let params = params![last, reserved, boot, codec::stamp(swept)];
        self.run("UPDATE storage SET last = ?1, reserved = ?2, boot = ?3, swept_ns = ?4", params).map(drop)
    }

    /// Returns the names of locks with an expired row of this clock, or with a row of another clock.
    pub(crate) fn overdue(&self, now: StorageTime, limit: i64) -> Result<Vec<LockName>> {
        // Without the sightings, unexpired rows of another clock would fill the limit in sweep after sweep.
        let sql = "SELECT name FROM holders AS t WHERE (clock = ?1 AND until_ns <= ?2) OR (clock <> ?1 AND NOT EXISTS \
                (SELECT 1 FROM sightings AS s WHERE s.clock = ?1 AND s.thing = t.owner AND s.stamp_ns = t.until_ns \
                    AND s.until_ns > ?2)) \
             UNION SELECT name FROM tickets AS t WHERE (clock = ?1 AND until_ns <= ?2) OR (clock <> ?1 AND NOT EXISTS \
                (SELECT 1 FROM sightings AS s WHERE s.clock = ?1 AND s.thing = t.owner AND s.stamp_ns = t.until_ns \
                    AND s.until_ns > ?2)) \
             UNION SELECT name FROM cells AS t WHERE keep = 1 AND ((clock = ?1 AND until_ns <= ?2) OR (clock <> ?1 \
                AND NOT EXISTS (SELECT 1 FROM sightings AS s WHERE s.clock = ?1 AND s.thing = CAST(t.name AS BLOB) \
                    AND s.stamp_ns = t.until_ns AND s.until_ns > ?2))) LIMIT ?3";
        self.names(sql, params![self.clock, codec::stamp(now), limit])
    }

    /// Deletes the sightings of rows that no longer exist.
    pub(crate) fn delete_unused_sightings(&self) -> Result<usize> {
        self.run(
            "DELETE FROM sightings WHERE thing NOT IN (SELECT owner FROM holders UNION ALL SELECT owner FROM tickets \
             UNION ALL SELECT CAST(name AS BLOB) FROM cells)",
            [],
        )
    }

    /// Returns the names in use that begin with `prefix` and sort after `after`.
    pub(crate) fn list(&self, prefix: &str, after: &str, limit: i64) -> Result<Vec<LockName>> {
        let sql = "SELECT name FROM \
                (SELECT name FROM holders UNION SELECT name FROM tickets UNION SELECT name FROM cells) \
             WHERE name >= ?1 AND name > ?2 AND substr(name, 1, length(?1)) = ?1 ORDER BY name LIMIT ?3";
        self.names(sql, params![prefix, after, limit])
    }

    /// Whether this waiting owner already holds the lock, or is first in the queue of a free lock.
    pub(crate) fn may_be_granted(&self, name: &LockName, owner: Owner, now: StorageTime) -> Result<bool> {
        let sql = "SELECT EXISTS (SELECT 1 FROM holders WHERE name = ?1 AND owner = ?2) \
             OR (NOT EXISTS (SELECT 1 FROM holders WHERE name = ?1 AND (clock <> ?3 OR until_ns > ?4)) \
                AND ?2 = (SELECT owner FROM tickets WHERE name = ?1 ORDER BY seq LIMIT 1))";
        let params = params![name.as_str(), owner.to_bytes(), self.clock, codec::stamp(now)];
        let read = || self.connection.prepare_cached(sql)?.query_row(params, |row| row.get(0));
        read().map_err(|error| self.failed(error))
    }

    fn names(&self, sql: &str, params: impl Params) -> Result<Vec<LockName>> {
        let read = || {
            let mut statement = self.connection.prepare_cached(sql)?;
            statement.query_map(params, |row| row.get::<_, String>(0))?.collect::<rusqlite::Result<Vec<_>>>()
        };
        read().map_err(|error| self.failed(error))?.into_iter().map(LockName::new).collect()
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::fetching::{QueuePart, Sightings};
    use super::*;

    /// The disk is full while the sighting of a lease is inserted: SQLite rolls the transaction back, and the changes of the
    /// other operations of the flight would be written without one.
    #[test]
    fn a_transaction_that_sqlite_rolled_back_is_detected() {
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
            statements.fetch(&name, QueuePart::All, now, Sightings::Insert).err()
        });
        assert!(full.is_some());
        assert!(statements.check_in_transaction().is_err());
    }
}
