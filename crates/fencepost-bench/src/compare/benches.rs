//! The benches that compare: each round runs every subject, so that a busy moment affects all alike.

use super::subject::TASKS;
use super::{BenchServer, Setting, hold_times, ours};
use crate::contended::WAITERS;
use crate::report::Report;
use crate::rounds::{Reading, Rounds};
use crate::statistics::{number, percentile};
use crate::uncontended::pairs;
use crate::workers::{Order, WorkerGroup, WorkerResult, run};

pub(crate) const PAIRS: &str = "pairs per second";
pub(crate) const P50: &str = "pair p50";
pub(crate) const P99: &str = "pair p99";
pub(crate) const QUERIES: &str = "queries per second";

/// Acquire + release, every task on a lock of its own.
pub(crate) fn uncontended<S: BenchServer>(setting: &mut Setting<S>, report: &mut Report) {
    let mut rounds = Rounds::new("uncontended", S::NAME);
    for tasks in TASKS.iter().copied() {
        for _ in 0..setting.rounds {
            for subject in setting.subjects.clone().iter().filter(|subject| subject.tasks.contains(&tasks)) {
                let length = setting.length;
                let done = setting.run_on_empty(subject, report, |server| {
                    run(&subject.program, &Order::uncontended(&server.url(), tasks, length), 1)
                });
                let Some(found) = done else { continue };
                rounds.add(subject.name, tasks, hold_times::count(&found), &pair_values(&found));
            }
            if let Some((tool, _)) = S::TOOL {
                match setting.server.tool(tasks, setting.length) {
                    Ok(rate) => {
                        let value = Reading { metric: PAIRS, value: f64::from(rate) / 2.0, unit: "/s" };
                        let samples = usize::try_from(rate).unwrap_or(usize::MAX);
                        rounds.add(tool, tasks, samples, &[value]);
                    }
                    Err(why) => report.note(S::NAME, &format!("{tool}: left out: {why}")),
                }
            }
        }
    }
    rounds.report(report);
    rounds.report_ratios(report, ours::NAME, PAIRS);
    rounds.report_ratios(report, ours::NAME, P50);
}

fn pair_values(found: &[WorkerResult]) -> [Reading; 3] {
    let rate = found.iter().map(|found| pairs(found) / found.wall).sum();
    let mut waits: Vec<f64> = found.iter().flat_map(|found| found.waits.iter().copied()).collect();
    [
        Reading { metric: PAIRS, value: rate, unit: "/s" },
        Reading { metric: P50, value: percentile(&mut waits, 0.5) * 1e6, unit: "µs" },
        Reading { metric: P99, value: percentile(&mut waits, 0.99) * 1e6, unit: "µs" },
    ]
}

/// 16 tasks that compete for one lock, in one process and over four.
pub(crate) fn contended<S: BenchServer>(setting: &mut Setting<S>, report: &mut Report) {
    for bench in [("contended", 1), ("contended over 4", 4)] {
        contended_over(setting, report, bench);
    }
}

/// 16 tasks that compete for one lock, over this many processes.
pub(crate) fn contended_over<S: BenchServer>(
    setting: &mut Setting<S>,
    report: &mut Report,
    (bench, processes): (&'static str, usize),
) {
    let mut rounds = Rounds::new(bench, S::NAME);
    let length = setting.length;
    for _ in 0..setting.rounds {
        for subject in setting.locks() {
            let done = setting.run_on_empty(&subject, report, |server| {
                let order = Order::contended(&server.url(), WAITERS / processes, length);
                let mut group = WorkerGroup::start(&subject.program, &order, processes)?;
                let before = server.queries();
                let found = group.work()?;
                Ok((found, before.zip(server.queries()).map(|(before, after)| after - before)))
            });
            let Some((found, queries)) = done else { continue };
            let overlaps = hold_times::overlaps(&found);
            if overlaps > 0 {
                let early = format!("{overlaps} turns began before the last had ended");
                report.note(S::NAME, &format!("{}: {bench}: {early}", subject.name));
            }
            let mut values = hold_times::values(&found, length);
            values.extend(queries.map(|queries| query_rate(queries, &found)));
            rounds.add(subject.name, WAITERS, hold_times::count(&found), &values);
        }
    }
    rounds.report(report);
    rounds.report_ratios(report, ours::NAME, "utilisation");
    rounds.report_ratios(report, ours::NAME, "wait p99");
}

/// Returns the statements per second, while these workers worked.
fn query_rate(queries: u64, found: &[WorkerResult]) -> Reading {
    let wall = found.iter().map(|found| found.wall).fold(0.0, f64::max);
    let queries = number(usize::try_from(queries).unwrap_or(usize::MAX));
    Reading { metric: QUERIES, value: queries / wall.max(f64::MIN_POSITIVE), unit: "/s" }
}
