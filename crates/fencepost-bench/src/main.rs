//! Measures Fencepost. `cargo xtask bench --help` lists the options; figures are for comparing subjects of one run on one
//! machine, never for passing or failing.

mod command;
mod compare;
mod contended;
mod etcd;
mod held_locks;
mod locking;
mod mysql;
mod plot;
mod postgres;
mod redis;
mod report;
mod rounds;
mod statistics;
mod trial;
mod uncontended;
mod workers;
mod zookeeper;

use std::iter::Peekable;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use compare::{BenchServer, ours};
use etcd::Etcd;
use fencepost::Options;
use mysql::Mysql;
use postgres::Postgres;
use redis::Redis;
use report::Report;
use trial::{MysqlTrial, PostgresTrial};
use zookeeper::ZooKeeper;

const HELP: &str = "\
usage: cargo xtask bench [BENCH…] [--json] [--seconds N] [--backend memory|sqlite]
       cargo xtask bench redis|etcd|zookeeper|postgres|mysql… [BENCH…] [--json] [--seconds N] [--rounds N] [--subjects A,B]
                         [--plot FILE.svg] [--write-docs]

benches on this machine alone (all if none is named):
  uncontended   acquire + release per second at 1, 64 and 256 tasks, and from 4 processes at once
  contended     16 waiters, hold 5 ms, think 20 ms: in one process, over 4 and over 16
  held          10,000 held locks: cost of renewal, memory
  command       `fencepost run x -- true` beside `flock f true` and `true`

comparisons with other libraries (all benches if none is named), each on a private server:
  redis         Fencepost, rslock, redsync, node-redlock, redis-py, python-redis-lock, two bare round trips of the same
                client library, and redis-benchmark
  etcd          Fencepost, concurrency.Mutex of the official client for Go, and its bare put + delete
  zookeeper     Fencepost, Curator and kazoo, and Curator's bare create + delete
  postgres      Fencepost, SELECT … FOR UPDATE and advisory locks through a pool, ShedLock, two bare updates, and pgbench
  mysql         Fencepost, GET_LOCK and SELECT … FOR UPDATE through a pool, ShedLock, and two bare updates; on MariaDB
Subjects whose toolchain (go, node and npm, python3, javac and mvn) is not installed are left out, with a note.
  uncontended   acquire + release per second and its latency at 1, 64 and 256 tasks
  contended     16 waiters, hold 5 ms, think 20 ms: in one process and over 4; hand-over, waits, fairness
  held          only redis: 10,000 held locks: a renewal of all at once, its longest call on the server, memory
  queue         only redis: commands and bytes per grant with 1, 16 and 256 waiters
  vacuum        only postgres: dead rows and sizes after an hour's worth of turns (--turns)

where the rules of a lock run, in the client or in the database (docs/decisions/0007-rules-in-the-database.md):
  trial-postgres, trial-mysql    the shipped backend beside a prototype of the other design
  uncontended, contended         as above, in one process
  waiters                        a release that hands over, and a join, with 2,500 and 10,000 waiters

--json        one object per line: {bench, backend, subject, tasks, metric, value, unit, samples}, and spread
              where the value is the median of several rounds
--seconds     length of each measurement (3)
--backend     only this backend (default: sqlite and memory)
--rounds      how often every subject is measured (3); the median is reported
--turns       how many turns `vacuum` takes (50,000); an hour of turns of 5 ms is about 670,000
--subjects    only these, such as fencepost,rslock
--plot        draw the figures into this file
--write-docs  write docs/benchmarks/BACKEND.md and BACKEND.svg";

/// What to measure, and for how long.
#[derive(Clone, Debug)]
struct Plan {
    benches: Vec<String>,
    backends: Vec<String>,
    length: Duration,
    /// The servers on which Fencepost is compared with others.
    comparisons: Vec<&'static Comparison>,
    rounds: usize,
    turns: usize,
    subjects: Vec<String>,
    plot: Option<PathBuf>,
    write_docs: bool,
    /// The command line, as it would be typed.
    command: String,
}

impl Plan {
    fn new(arguments: &[String]) -> Self {
        Self {
            benches: Vec::new(),
            backends: vec!["sqlite".into(), "memory".into()],
            length: Duration::from_secs(3),
            comparisons: Vec::new(),
            rounds: 3,
            turns: 50_000,
            subjects: Vec::new(),
            plot: None,
            write_docs: false,
            command: format!("cargo xtask bench {}", arguments.join(" ")),
        }
    }

    fn wants(&self, bench: &str) -> bool {
        self.benches.is_empty() || self.benches.iter().any(|wanted| wanted == bench)
    }

    /// Reads one argument with its value; returns false if it is invalid.
    fn take(&mut self, argument: &str, rest: &mut Peekable<impl Iterator<Item = String>>) -> bool {
        let is_count = |word: &String| word.parse::<u32>().is_ok_and(|count| count > 0);
        match argument {
            "uncontended" | "contended" | "held" | "command" | "queue" | "waiters" | "vacuum" => {
                self.benches.push(argument.to_owned());
            }
            "--write-docs" => self.write_docs = true,
            "--seconds" => match rest.next_if(is_count).and_then(|word| word.parse().ok()) {
                Some(seconds) => self.length = Duration::from_secs(seconds),
                None => return false,
            },
            "--rounds" => match rest.next_if(is_count).and_then(|word| word.parse().ok()) {
                Some(rounds) => self.rounds = rounds,
                None => return false,
            },
            "--turns" => match rest.next_if(is_count).and_then(|word| word.parse().ok()) {
                Some(turns) => self.turns = turns,
                None => return false,
            },
            "--backend" => match rest.next_if(|word| ["memory", "sqlite"].contains(&word.as_str())) {
                Some(backend) => self.backends = vec![backend],
                None => return false,
            },
            "--subjects" => match rest.next() {
                Some(names) => self.subjects = names.split(',').map(str::to_owned).collect(),
                None => return false,
            },
            "--plot" => match rest.next() {
                Some(file) => self.plot = Some(file.into()),
                None => return false,
            },
            name => match COMPARISONS.iter().find(|comparison| comparison.name == name) {
                Some(comparison) => self.comparisons.push(comparison),
                None => return false,
            },
        }
        true
    }

    /// Returns why the plan is invalid, if it is.
    fn complaint(&self) -> Option<String> {
        for comparison in &self.comparisons {
            let known = (comparison.benches)();
            if let Some(other) = self.benches.iter().find(|bench| !known.contains(&bench.as_str())) {
                return Some(format!("`{other}` is no bench of {}", comparison.name));
            }
        }
        if self.plot.is_some() && self.comparisons.len() > 1 {
            return Some("a plot shows one backend".to_owned());
        }
        let compares = self.write_docs || self.plot.is_some() || !self.subjects.is_empty();
        let compares = compares || self.benches.iter().any(|bench| bench == "queue");
        (compares && self.comparisons.is_empty())
            .then(|| "this option needs redis, etcd, zookeeper, postgres or mysql".to_owned())
    }
}

/// A server on which Fencepost is compared with others.
#[derive(Debug)]
struct Comparison {
    name: &'static str,
    benches: fn() -> Vec<&'static str>,
    measure: fn(&Plan, &mut Report) -> Result<(), String>,
}

impl Comparison {
    const fn of<S: BenchServer>() -> Self {
        let benches = || S::BENCHES.iter().map(|(name, _)| *name).collect();
        Self { name: S::NAME, benches, measure: compare::measure::<S> }
    }
}

const COMPARISONS: &[Comparison] = &[
    Comparison::of::<Redis>(),
    Comparison::of::<Etcd>(),
    Comparison::of::<ZooKeeper>(),
    Comparison::of::<Postgres>(),
    Comparison::of::<Mysql>(),
    Comparison::of::<PostgresTrial>(),
    Comparison::of::<MysqlTrial>(),
];

/// Runs the worker of this kind, if it is one of ours.
fn serve(sort: &str, words: &[String]) -> Option<ExitCode> {
    match sort {
        "worker" => Some(ours::serve(words, &Options::new())),
        ours::LOW_LATENCY_WORKER => Some(ours::serve(words, &Options::new().low_latency())),
        _ => redis::serve(sort, words)
            .or_else(|| postgres::serve(sort, words))
            .or_else(|| mysql::serve(sort, words))
            .or_else(|| trial::serve(sort, words)),
    }
}

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    if let Some(code) = arguments.split_first().and_then(|(sort, words)| serve(sort, words)) {
        return code;
    }
    let mut plan = Plan::new(&arguments);
    let mut report = Report::default();
    let mut rest = arguments.into_iter().peekable();
    while let Some(argument) = rest.next() {
        match argument.as_str() {
            "--json" => report.json = true,
            "-h" | "--help" => {
                println!("{HELP}");
                return ExitCode::SUCCESS;
            }
            word if plan.take(word, &mut rest) => {}
            word => return misread(&format!("cannot read {word:?}")),
        }
    }
    if let Some(complaint) = plan.complaint() {
        return misread(&complaint);
    }
    if plan.comparisons.is_empty() {
        measure(&plan, &mut report);
    }
    // A failure on one server does not affect the next.
    let outcomes: Vec<Result<(), String>> =
        plan.comparisons.iter().map(|comparison| (comparison.measure)(&plan, &mut report)).collect();
    let outcome: Result<(), String> = outcomes.into_iter().collect();
    report.print();
    outcome.map_or_else(|why| workers::failed(&format!("cargo xtask bench: {why}")), |()| ExitCode::SUCCESS)
}

fn misread(why: &str) -> ExitCode {
    eprintln!("cargo xtask bench: {why}\n\n{HELP}");
    ExitCode::from(2)
}

fn measure(plan: &Plan, report: &mut Report) {
    if plan.wants("uncontended") {
        uncontended::measure(plan, report);
    }
    if plan.wants("contended") {
        contended::measure(plan, report);
    }
    if plan.wants("held") {
        held_locks::measure(plan, report);
    }
    if plan.wants("command") {
        command::measure(report);
    }
}
