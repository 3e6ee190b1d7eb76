//! The test bench of an SQLite file.

use std::fs::File;
use std::future::Future;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use fencepost_core::{Backend, Client, LockName, Options, Result};
use fencepost_testkit::{StoredCounts, TestBench};
use rusqlite::Connection;
use tempfile::TempDir;

/// A database file in a temporary folder.
pub(crate) struct SqliteBench {
    folder: TempDir,
    /// Blocks all other writers while it is set.
    blocker: Mutex<Option<Connection>>,
}

impl SqliteBench {
    pub(crate) fn new() -> Self {
        Self { folder: tempfile::tempdir().expect("a folder"), blocker: Mutex::new(None) }
    }

    pub(crate) fn path(&self) -> PathBuf {
        self.folder.path().join("locks.db")
    }

    pub(crate) fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// Opens one of the two files of the turnstile: `turn` for the process that writes, `gate` for the next one.
    pub(crate) fn turnstile(&self, name: &str) -> File {
        let path = self.folder().join("locks.db-peers").join(name);
        File::options().write(true).open(path).unwrap()
    }

    /// Opens a connection of the driver itself.
    pub(crate) fn driver(&self) -> Connection {
        let driver = Connection::open(self.path()).expect("the file opens");
        driver.busy_timeout(fencepost_testkit::wait::TIMEOUT).expect("it can wait");
        driver
    }

    pub(crate) fn count(&self, table: &str) -> usize {
        let sql = format!("SELECT count(*) FROM {table}");
        self.driver().query_row(&sql, [], |row| row.get::<_, u32>(0)).expect("the table is there") as usize
    }
}

impl TestBench for SqliteBench {
    fn connect(&self) -> impl Future<Output = Result<Arc<dyn Backend>>> + Send + 'static {
        let path = self.path();
        async move { fencepost_sqlite::open(&path) }
    }

    async fn peek(&self) -> StoredCounts {
        StoredCounts {
            holders: self.count("holders"),
            tickets: self.count("tickets"),
            cells: self.count("cells"),
            others: self.count("sightings"),
        }
    }

    async fn steal(&self, name: &LockName) {
        self.driver().execute("DELETE FROM holders WHERE name = ?1", [name.as_str()]).expect("it deletes");
    }

    async fn read_only_client(&self) -> Option<Result<Client>> {
        Some(
            fencepost_sqlite::connect_with(
                self.path().to_str().expect("the path is UTF-8"),
                Options::new().only_existing(),
            )
            .await,
        )
    }

    async fn cut(&self) {
        let blocker = self.driver();
        blocker.execute_batch("BEGIN IMMEDIATE").expect("it waits for its turn");
        *self.blocker.lock().unwrap() = Some(blocker);
    }

    async fn heal(&self) {
        if let Some(blocker) = self.blocker.lock().unwrap().take() {
            blocker.execute_batch("ROLLBACK").expect("nothing was written");
        }
    }

    fn crowd_size(&self) -> usize {
        1_000
    }
}
