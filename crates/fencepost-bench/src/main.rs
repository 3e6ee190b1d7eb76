//! Measures Fencepost. `cargo xtask bench --help` says how to call it; figures are for comparing subjects of one run on
//! one machine, never for passing or failing.

mod command;
mod contended;
mod held;
mod report;
mod uncontended;
mod workers;

use std::process::ExitCode;
use std::time::Duration;

use report::Report;

const HELP: &str = "\
usage: cargo xtask bench [BENCH…] [--json] [--seconds N] [--backend memory|sqlite]

benches (all if none is named):
  uncontended   acquire + release per second at 1, 64 and 256 tasks, and from 4 processes at once
  contended     16 waiters, hold 5 ms, think 20 ms: in one process, over 4 and over 16
  held          10,000 held locks: cost of renewal, memory
  command       `fencepost run x -- true` beside `flock f true` and `true`

--json      one object per line: {bench, backend, subject, tasks, metric, value, unit, samples}
--seconds   length of each measurement (3)
--backend   which storage (sqlite and memory, where both make sense)";

/// What to measure, and for how long.
#[derive(Clone, Debug)]
struct Plan {
    benches: Vec<String>,
    backends: Vec<String>,
    length: Duration,
}

impl Plan {
    fn wants(&self, bench: &str) -> bool {
        self.benches.is_empty() || self.benches.iter().any(|wanted| wanted == bench)
    }
}

fn main() -> ExitCode {
    let mut arguments = std::env::args().skip(1).peekable();
    if arguments.peek().is_some_and(|first| first == "worker") {
        return workers::serve(&arguments.skip(1).collect::<Vec<_>>());
    }
    let mut plan = Plan {
        benches: Vec::new(),
        backends: vec!["sqlite".into(), "memory".into()],
        length: Duration::from_secs(3),
    };
    let mut report = Report::default();
    while let Some(argument) = arguments.next() {
        match (argument.as_str(), arguments.peek()) {
            ("--json", _) => report.json = true,
            ("--seconds", Some(seconds)) if seconds.parse::<u64>().is_ok_and(|seconds| seconds > 0) => {
                plan.length = Duration::from_secs(seconds.parse().unwrap_or(3));
                arguments.next();
            }
            ("--backend", Some(backend)) if ["memory", "sqlite"].contains(&backend.as_str()) => {
                plan.backends = vec![backend.clone()];
                arguments.next();
            }
            ("uncontended" | "contended" | "held" | "command", _) => plan.benches.push(argument),
            ("-h" | "--help", _) => {
                println!("{HELP}");
                return ExitCode::SUCCESS;
            }
            _ => {
                eprintln!("cargo xtask bench: cannot read {argument:?}\n\n{HELP}");
                return ExitCode::from(2);
            }
        }
    }
    measure(&plan, &mut report);
    report.print();
    ExitCode::SUCCESS
}

fn measure(plan: &Plan, report: &mut Report) {
    if plan.wants("uncontended") {
        uncontended::measure(plan, report);
    }
    if plan.wants("contended") {
        contended::measure(plan, report);
    }
    if plan.wants("held") {
        held::measure(plan, report);
    }
    if plan.wants("command") {
        command::measure(report);
    }
}
