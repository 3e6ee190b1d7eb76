//! What is usually done instead of a lock service, through a pool of connections: `GET_LOCK` and `SELECT … FOR UPDATE`. And
//! the floor: two updates of one row.

use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use mysql_async::prelude::Queryable;
use mysql_async::{Conn, Opts, OptsBuilder, Statement};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::compare::subject::{Subject, TASKS, locked_version};
use crate::locking::Locking;
use crate::workers;

pub(crate) const GET_LOCK: &str = "GET_LOCK";
pub(crate) const FOR_UPDATE: &str = "FOR UPDATE";
pub(crate) const BARE: &str = "two bare updates";

/// The workers of this module are started as this and the name of the subject.
const WORKER: &str = "mysql ";

pub(crate) fn subject(name: &'static str) -> Subject {
    let sort = format!("{WORKER}{name}");
    let (what, connections) = way(&sort).map_or(("", 0), |way| (way.what, way.connections));
    let library = locked_version("mysql_async");
    let version = format!("{what}; {connections} connections of mysql_async {library}");
    Subject { name, version, program: workers::this_program(&sort), tasks: TASKS }
}

/// The statements of a way to lock: to acquire, and to release. A transaction has `begin` and `end`.
#[derive(Clone, Copy)]
struct Way {
    what: &'static str,
    begin: &'static str,
    acquire: &'static str,
    release: &'static str,
    end: &'static str,
    connections: usize,
}

fn way(sort: &str) -> Option<Way> {
    Some(match sort.strip_prefix(WORKER)? {
        GET_LOCK => Way {
            what: "GET_LOCK, RELEASE_LOCK",
            begin: "",
            acquire: "SELECT GET_LOCK(?, 3600)",
            release: "SELECT RELEASE_LOCK(?)",
            end: "",
            connections: 16,
        },
        FOR_UPDATE => Way {
            what: "BEGIN, SELECT … FOR UPDATE, COMMIT",
            begin: "BEGIN",
            acquire: "SELECT 1 FROM bench_rows WHERE name = ? FOR UPDATE",
            release: "SELECT ?",
            end: "COMMIT",
            connections: 16,
        },
        BARE => Way {
            what: "a prepared UPDATE of one row, twice, without a lock",
            begin: "",
            acquire: "UPDATE bench_rows SET token = token + 1 WHERE name = ?",
            release: "UPDATE bench_rows SET token = token + 1 WHERE name = ?",
            end: "",
            // As many as the floor of PostgreSQL has: the more there are, the more commits share a sync.
            connections: 64,
        },
        _ => return None,
    })
}

struct Connection {
    conn: Conn,
    acquire: Statement,
    release: Statement,
}

#[derive(Clone)]
struct Pool {
    way: Way,
    idle: Arc<Mutex<Vec<Connection>>>,
    permits: Arc<Semaphore>,
}

struct Lock {
    pool: Pool,
    name: String,
    /// Whether its row exists.
    is_created: AtomicBool,
}

impl Locking for Lock {
    type Held = (Connection, OwnedSemaphorePermit);

    async fn take(&self) -> Self::Held {
        let Pool { way, idle, permits } = &self.pool;
        let permit = permits.clone().acquire_owned().await.expect("it is never closed");
        let connection = idle.lock().unwrap_or_else(PoisonError::into_inner).pop();
        let mut connection = connection.expect("there are as many as permits");
        let Connection { conn, acquire, .. } = &mut connection;
        if !self.is_created.swap(true, Ordering::Relaxed) {
            let insert = "INSERT IGNORE INTO bench_rows (name) VALUES (?)";
            conn.exec_drop(insert, (&self.name,)).await.expect("the server replies");
        }
        if !way.begin.is_empty() {
            conn.query_drop(way.begin).await.expect("the server replies");
        }
        conn.exec_drop(&*acquire, (&self.name,)).await.expect("the server replies");
        (connection, permit)
    }

    async fn release(&self, (mut connection, _permit): Self::Held) {
        let Pool { way, idle, .. } = &self.pool;
        let Connection { conn, release, .. } = &mut connection;
        let released = if way.end.is_empty() {
            conn.exec_drop(&*release, (&self.name,)).await
        } else {
            conn.query_drop(way.end).await
        };
        released.expect("the server replies");
        idle.lock().unwrap_or_else(PoisonError::into_inner).push(connection);
    }
}

pub(crate) fn serve(sort: &str, words: &[String]) -> Option<ExitCode> {
    let way = way(sort)?;
    Some(workers::serve(words, async |url: &str| {
        let failed = |why: mysql_async::Error| format!("mysql_async: {why}");
        let opts = Opts::from_url(url).map_err(|why| format!("mysql_async: {why}"))?;
        let opts: Opts = OptsBuilder::from_opts(opts).prefer_socket(false).into();
        let mut idle = Vec::new();
        for number in 0..way.connections {
            let mut conn = Conn::new(opts.clone()).await.map_err(failed)?;
            if number == 0 {
                conn.query_drop(ROWS).await.map_err(failed)?;
            }
            let acquire = conn.prep(way.acquire).await.map_err(failed)?;
            let release = conn.prep(way.release).await.map_err(failed)?;
            idle.push(Connection { conn, acquire, release });
        }
        let (idle, permits) = (Arc::new(Mutex::new(idle)), Arc::new(Semaphore::new(way.connections)));
        let pool = Pool { way, idle, permits };
        Ok(move |name: String| Lock { pool: pool.clone(), name, is_created: AtomicBool::new(false) })
    }))
}

const ROWS: &str = "CREATE TABLE IF NOT EXISTS bench_rows (name VARBINARY(128) PRIMARY KEY, token BIGINT NOT NULL DEFAULT 0)";
