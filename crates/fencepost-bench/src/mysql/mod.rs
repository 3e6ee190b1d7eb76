//! MariaDB: one server that syncs every commit to its disk, and the subjects that are measured on it.

mod pooled;

use std::process::ExitCode;

use fencepost_testkit::servers::mariadb::{MariadbServer, MariadbServerConfig};

use crate::compare::shedlock::Database;
use crate::compare::subject::{self, Subject};
use crate::compare::{Bench, BenchServer, Build, benches, ours, shedlock};

/// A private server.
pub(crate) struct Mysql {
    server: MariadbServer,
    /// Each subject has a database of its own, so that what an earlier one left does not matter.
    subjects: usize,
}

impl BenchServer for Mysql {
    const NAME: &'static str = "mysql";
    const TITLE: &'static str = "MariaDB";
    const FLOOR: &'static str = pooled::BARE;
    const PARTICIPANTS: &'static str = "fencepost is fenced, fair and renewed; ShedLock has leases and no queue; the others hold a connection as long as the lock, and have no token";
    const SUBJECTS: &'static [(&'static str, Build)] = &[
        (ours::NAME, || Ok(ours::subject())),
        ("low-latency", || Ok(ours::low_latency())),
        (pooled::GET_LOCK, || Ok(pooled::subject(pooled::GET_LOCK))),
        (pooled::FOR_UPDATE, || Ok(pooled::subject(pooled::FOR_UPDATE))),
        (shedlock::NAME, || shedlock::subject(Database::Mariadb)),
        (pooled::BARE, || Ok(bare())),
    ];
    const BENCHES: &'static [(&'static str, Bench<Self>)] =
        &[("uncontended", benches::uncontended), ("contended", benches::contended)];
    const CONTENDED_COLUMNS: &'static [(&'static str, usize, &'static str)] =
        &[("queries per second", 16, benches::QUERIES)];

    fn start() -> Result<Self, String> {
        subject::require("mariadbd")?;
        let server = MariadbServer::start(&MariadbServerConfig::durable());
        Ok(Self { server, subjects: 0 })
    }

    fn url(&self) -> String {
        let url = self.server.url();
        let (server, _) = url.rsplit_once('/').unwrap_or((&url, ""));
        format!("{server}/bench{}", self.subjects)
    }

    fn clear(&mut self) -> Result<(), String> {
        let last = self.subjects;
        self.subjects += 1;
        let sql = format!("DROP DATABASE IF EXISTS bench{last}; CREATE DATABASE bench{}", self.subjects);
        self.server.try_sql(&sql).map(drop)
    }

    fn describe(&mut self) -> Result<String, String> {
        let version = self.server.try_sql("SELECT VERSION()")?;
        let version = version.split('-').next().unwrap_or_default();
        Ok(format!("MariaDB {version}, on the same machine; every commit is synced to the disk"))
    }

    fn queries(&mut self) -> Option<u64> {
        let status = self.server.try_sql("SHOW GLOBAL STATUS LIKE 'Questions'").ok()?;
        status.split_whitespace().nth(1)?.parse().ok()
    }
}

impl Mysql {
    /// A server that does not sync its commits.
    pub(crate) fn unsynced() -> Self {
        let config = MariadbServerConfig::durable().with_option("--innodb-flush-method=nosync");
        Self { server: MariadbServer::start(&config), subjects: 0 }
    }

    /// Returns the process id of the server.
    pub(crate) fn pid(&self) -> u32 {
        self.server.pid()
    }
}

/// The floor.
pub(crate) fn bare() -> Subject {
    pooled::subject(pooled::BARE)
}

/// Runs the worker of this kind, if it is one of those that only MariaDB has.
pub(crate) fn serve(sort: &str, words: &[String]) -> Option<ExitCode> {
    pooled::serve(sort, words)
}
