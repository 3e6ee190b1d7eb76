//! PostgreSQL: one server that syncs every commit to its disk, and the subjects that are measured on it.

mod pgbench;
mod pooled;
mod vacuum;

use std::process::ExitCode;
use std::time::Duration;

use fencepost_testkit::servers::postgres::{PostgresServer, PostgresServerConfig};

use crate::compare::docs::Page;
use crate::compare::shedlock::Database;
use crate::compare::subject::Subject;
use crate::compare::{Bench, BenchServer, Build, benches, ours, shedlock};

/// The database of the benches.
const DATABASE: &str = "postgres";

/// A private server.
pub(crate) struct Postgres {
    server: PostgresServer,
    /// Each subject has a namespace of its own, so that what an earlier one left does not matter.
    subjects: usize,
}

impl BenchServer for Postgres {
    const NAME: &'static str = "postgres";
    const TITLE: &'static str = "PostgreSQL";
    const FLOOR: &'static str = pooled::BARE;
    const PARTICIPANTS: &'static str = "fencepost is fenced, fair and renewed; ShedLock has leases and no queue; the others hold a connection as long as the lock, and have no token";
    const TOOL: Option<(&'static str, &'static str)> = Some(pgbench::TOOL);
    const SUBJECTS: &'static [(&'static str, Build)] = &[
        (ours::NAME, || Ok(ours::subject())),
        ("low-latency", || Ok(ours::low_latency())),
        (pooled::FOR_UPDATE, || {
            Ok(pooled::subject(pooled::FOR_UPDATE, "BEGIN, SELECT … FOR UPDATE, COMMIT"))
        }),
        (pooled::ADVISORY, || Ok(pooled::subject(pooled::ADVISORY, "pg_advisory_lock, pg_advisory_unlock"))),
        (shedlock::NAME, || shedlock::subject(Database::Postgres)),
        (pooled::BARE, || Ok(bare())),
    ];
    const BENCHES: &'static [(&'static str, Bench<Self>)] = &[
        ("uncontended", benches::uncontended),
        ("contended", benches::contended),
        ("vacuum", vacuum::measure),
    ];

    fn start() -> Result<Self, String> {
        Ok(Self { server: PostgresServer::start(&PostgresServerConfig::durable()), subjects: 0 })
    }

    fn url(&self) -> String {
        format!("{}?namespace=bench{}", self.server.url(DATABASE), self.subjects)
    }

    fn clear(&mut self) -> Result<(), String> {
        self.server.try_psql(DATABASE, &format!("DROP SCHEMA IF EXISTS bench{} CASCADE", self.subjects))?;
        self.subjects += 1;
        // Without this, later subjects would pay for the checkpoints of earlier ones.
        self.server.try_psql(DATABASE, "CHECKPOINT").map(drop)
    }

    fn describe(&mut self) -> Result<String, String> {
        let version = self.server.try_psql(DATABASE, "SHOW server_version")?;
        let version = version.split_whitespace().next().unwrap_or_default();
        Ok(format!("PostgreSQL {version}, on the same machine; every commit is synced to the disk"))
    }

    fn tool(&self, tasks: usize, length: Duration) -> Result<u32, String> {
        pgbench::statements_per_second(&self.server, tasks, length)
    }

    fn add_sections(page: &mut Page<'_>) {
        vacuum::add_section(page);
    }
}

impl Postgres {
    /// A server that does not sync its commits.
    pub(crate) fn unsynced() -> Self {
        Self::unsynced_with(&[])
    }

    /// The same with these settings.
    fn unsynced_with(settings: &[(&str, &str)]) -> Self {
        let config = PostgresServerConfig::durable().with_setting("fsync", "off");
        let config = settings.iter().fold(config, |config, (name, value)| config.with_setting(name, value));
        Self { server: PostgresServer::start(&config), subjects: 0 }
    }

    /// Returns the process id of the server.
    pub(crate) fn pid(&self) -> u32 {
        self.server.pid()
    }
}

/// The floor.
pub(crate) fn bare() -> Subject {
    pooled::subject(pooled::BARE, "UPDATE of one row, twice, without a lock")
}

/// Runs the worker of this kind, if it is one of those that only PostgreSQL has.
pub(crate) fn serve(sort: &str, words: &[String]) -> Option<ExitCode> {
    pooled::serve(sort, words)
}
