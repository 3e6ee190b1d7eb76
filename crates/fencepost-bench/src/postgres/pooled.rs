//! What is usually done instead of a lock service, through a pool of connections: `SELECT … FOR UPDATE` and advisory locks. And
//! the floor: two updates of one row.

use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio_postgres::{Client, NoTls, Statement};

use crate::compare::subject::{Subject, TASKS, locked_version};
use crate::locking::Locking;
use crate::workers;

pub(crate) const FOR_UPDATE: &str = "FOR UPDATE";
pub(crate) const ADVISORY: &str = "advisory lock";
pub(crate) const BARE: &str = "two bare updates";

/// As many as an application has, and as the contended bench has waiters.
const CONNECTIONS: usize = 16;

pub(crate) fn subject(name: &'static str, what: &str) -> Subject {
    let version =
        format!("{what}; {CONNECTIONS} connections of tokio-postgres {}", locked_version("tokio-postgres"));
    Subject { name, version, program: workers::this_program(name), tasks: TASKS }
}

/// The statements of a way to lock: to acquire, and to release.
#[derive(Clone, Copy)]
struct Way {
    begin: &'static str,
    acquire: &'static str,
    release: &'static str,
    end: &'static str,
}

fn way(sort: &str) -> Option<Way> {
    Some(match sort {
        FOR_UPDATE => Way {
            begin: "BEGIN",
            acquire: "SELECT FROM bench_rows WHERE name = $1 FOR UPDATE",
            release: "SELECT $1::text",
            end: "COMMIT",
        },
        ADVISORY => Way {
            begin: "",
            acquire: "SELECT pg_advisory_lock(hashtextextended($1, 0))",
            release: "SELECT pg_advisory_unlock(hashtextextended($1, 0))",
            end: "",
        },
        BARE => Way {
            begin: "",
            acquire: "UPDATE bench_rows SET token = token + 1 WHERE name = $1",
            release: "UPDATE bench_rows SET token = token WHERE name = $1",
            end: "",
        },
        _ => return None,
    })
}

struct Connection {
    client: Client,
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
        let connection = connection.expect("there are as many as permits");
        if !self.is_created.swap(true, Ordering::Relaxed) {
            let insert = "INSERT INTO bench_rows (name) VALUES ($1) ON CONFLICT DO NOTHING";
            connection.client.execute(insert, &[&self.name]).await.expect("the server replies");
        }
        if !way.begin.is_empty() {
            connection.client.batch_execute(way.begin).await.expect("the server replies");
        }
        let client = &connection.client;
        client.query(&connection.acquire, &[&self.name]).await.expect("the server replies");
        (connection, permit)
    }

    async fn release(&self, (connection, _permit): Self::Held) {
        let Pool { way, idle, .. } = &self.pool;
        if way.end.is_empty() {
            let client = &connection.client;
            client.query(&connection.release, &[&self.name]).await.expect("the server replies");
        } else {
            connection.client.batch_execute(way.end).await.expect("the server replies");
        }
        idle.lock().unwrap_or_else(PoisonError::into_inner).push(connection);
    }
}

pub(crate) fn serve(sort: &str, words: &[String]) -> Option<ExitCode> {
    let way = way(sort)?;
    Some(workers::serve(words, async |url: &str| {
        let url = url.split('?').next().unwrap_or_default();
        let failed = |why: tokio_postgres::Error| format!("tokio-postgres: {why}");
        let mut idle = Vec::new();
        for number in 0..CONNECTIONS {
            let (client, connection) = tokio_postgres::connect(url, NoTls).await.map_err(failed)?;
            tokio::spawn(connection);
            if number == 0 {
                client.batch_execute(ROWS).await.map_err(failed)?;
            }
            let (acquire, release) = (client.prepare(way.acquire).await, client.prepare(way.release).await);
            idle.push(Connection {
                client,
                acquire: acquire.map_err(failed)?,
                release: release.map_err(failed)?,
            });
        }
        let pool =
            Pool { way, idle: Arc::new(Mutex::new(idle)), permits: Arc::new(Semaphore::new(CONNECTIONS)) };
        Ok(move |name: String| Lock { pool: pool.clone(), name, is_created: AtomicBool::new(false) })
    }))
}

const ROWS: &str = "SELECT pg_advisory_lock(1);
    CREATE TABLE IF NOT EXISTS bench_rows (name text PRIMARY KEY, token bigint NOT NULL DEFAULT 0) WITH (fillfactor = 50);
    SELECT pg_advisory_unlock(1)";
