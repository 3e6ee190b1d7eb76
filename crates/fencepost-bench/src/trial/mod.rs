//! `cargo xtask bench trial-postgres trial-mysql`: where the rules of a lock run, in the client or in the database, measured on
//! both databases. One side of each is the shipped backend, the other a prototype; both run under the same engine.
//! `docs/decisions/0007-rules-in-the-database.md` has the figures.

mod client_rules;
mod cpu;
mod procedures;
mod prototype;
mod waiters;

use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use fencepost_core::{Backend, Client, Result as LockResult};

use crate::compare::subject::{Subject, TASKS};
use crate::compare::{Bench, BenchServer, Build, Setting, benches};
use crate::mysql::{self, Mysql};
use crate::postgres::{self, Postgres};
use crate::report::Report;
use crate::workers::{self, Order};
use client_rules::ClientRules;
use procedures::Procedures;
use prototype::PrototypeBackend;
use waiters::Unsynced;

/// The subject with the rules in the client, and the one with the rules in the database.
const IN_CLIENT: &str = "rules in the client";
const IN_DATABASE: &str = "rules in the database";

/// The kinds of workers.
const POSTGRES_CLIENT: &str = "trial postgres client";
const POSTGRES_DATABASE: &str = "trial postgres database";
const MYSQL_CLIENT: &str = "trial mysql client";
const MYSQL_DATABASE: &str = "trial mysql database";

/// Opens the backend that this kind of worker measures.
async fn open(sort: &str, url: &str) -> LockResult<Arc<dyn Backend>> {
    match sort {
        POSTGRES_CLIENT => ClientRules::open(url).await.map(PrototypeBackend::start),
        POSTGRES_DATABASE => fencepost_postgres::open(url).await,
        MYSQL_CLIENT => fencepost_mysql::open(url).await,
        _ => Procedures::open(url).await.map(PrototypeBackend::start),
    }
}

/// Runs the worker of this kind, if it is one of the trial.
pub(crate) fn serve(sort: &str, words: &[String]) -> Option<ExitCode> {
    if !sort.starts_with("trial ") {
        return None;
    }
    if let Some(order) = Order::read(words).filter(waiters::is_order) {
        return Some(waiters::serve(sort, &order));
    }
    Some(workers::serve(words, async |url: &str| {
        let client = open(sort, url).await.and_then(Client::new).map_err(|why| why.to_string())?;
        Ok(move |name: String| client.lock(name))
    }))
}

fn subject(name: &'static str, what: &str, sort: &str) -> Subject {
    Subject { name, version: what.to_owned(), program: workers::this_program(sort), tasks: TASKS }
}

/// PostgreSQL, with the subjects of the trial.
pub(crate) struct PostgresTrial(Postgres);

impl BenchServer for PostgresTrial {
    const NAME: &'static str = "trial-postgres";
    const TITLE: &'static str = "PostgreSQL: where the rules run";
    const FLOOR: &'static str = Postgres::FLOOR;
    const PARTICIPANTS: &'static str =
        "the client's are a prototype, an upper bound of what that design reaches";
    const SUBJECTS: &'static [(&'static str, Build)] = &[
        (IN_DATABASE, || {
            Ok(subject(IN_DATABASE, "fencepost: functions, a round trip for each flight", POSTGRES_DATABASE))
        }),
        (IN_CLIENT, || Ok(subject(IN_CLIENT, "a prototype: fetch, decide, save", POSTGRES_CLIENT))),
        (Postgres::FLOOR, || Ok(postgres::bare())),
    ];
    const BENCHES: &'static [(&'static str, Bench<Self>)] =
        &[("uncontended", benches::uncontended), ("contended", contended), ("waiters", waiters::measure)];

    fn start() -> Result<Self, String> {
        Postgres::start().map(Self)
    }

    fn url(&self) -> String {
        self.0.url()
    }

    fn clear(&mut self) -> Result<(), String> {
        self.0.clear()
    }

    fn describe(&mut self) -> Result<String, String> {
        self.0.describe()
    }
}

impl Unsynced for PostgresTrial {
    fn start_unsynced() -> Self {
        Self(Postgres::unsynced())
    }

    fn used(&self) -> Duration {
        cpu::used_by(self.0.pid())
    }
}

/// MariaDB, with the subjects of the trial.
pub(crate) struct MysqlTrial(Mysql);

impl BenchServer for MysqlTrial {
    const NAME: &'static str = "trial-mysql";
    const TITLE: &'static str = "MariaDB: where the rules run";
    const FLOOR: &'static str = Mysql::FLOOR;
    const PARTICIPANTS: &'static str =
        "the database's are a prototype, an upper bound of what that design reaches";
    const SUBJECTS: &'static [(&'static str, Build)] = &[
        (IN_CLIENT, || Ok(subject(IN_CLIENT, "fencepost: fetch, decide, save", MYSQL_CLIENT))),
        (IN_DATABASE, || {
            Ok(subject(
                IN_DATABASE,
                "a prototype: a stored procedure, a round trip for each flight",
                MYSQL_DATABASE,
            ))
        }),
        (Mysql::FLOOR, || Ok(mysql::bare())),
    ];
    const BENCHES: &'static [(&'static str, Bench<Self>)] =
        &[("uncontended", benches::uncontended), ("contended", contended), ("waiters", waiters::measure)];

    fn start() -> Result<Self, String> {
        Mysql::start().map(Self)
    }

    fn url(&self) -> String {
        self.0.url()
    }

    fn clear(&mut self) -> Result<(), String> {
        self.0.clear()
    }

    fn describe(&mut self) -> Result<String, String> {
        self.0.describe()
    }
}

impl Unsynced for MysqlTrial {
    fn start_unsynced() -> Self {
        Self(Mysql::unsynced())
    }

    fn used(&self) -> Duration {
        cpu::used_by(self.0.pid())
    }
}

/// 16 tasks that compete for one lock, in one process: the prototypes have no pushes to others.
fn contended<S: BenchServer>(setting: &mut Setting<S>, report: &mut Report) {
    benches::contended_over(setting, report, ("contended", 1));
}
