//! The benches that compare: each round runs every subject, so that a busy moment affects all alike.

use super::subject::TASKS;
use super::{BenchServer, Setting, hold_times, ours};
use crate::contended::WAITERS;
use crate::report::Report;
use crate::rounds::{Reading, Rounds};
use crate::statistics::percentile;
use crate::uncontended::pairs;
use crate::workers::{Order, WorkerResult, run};

pub(crate) const PAIRS: &str = "pairs per second";
pub(crate) const P50: &str = "pair p50";
pub(crate) const P99: &str = "pair p99";

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
    for (bench, processes) in [("contended", 1), ("contended over 4", 4)] {
        let mut rounds = Rounds::new(bench, S::NAME);
        for _ in 0..setting.rounds {
            for subject in setting.locks() {
                let length = setting.length;
                let done = setting.run_on_empty(&subject, report, |server| {
                    let order = Order::contended(&server.url(), WAITERS / processes, length);
                    run(&subject.program, &order, processes)
                });
                let Some(found) = done else { continue };
                let overlaps = hold_times::overlaps(&found);
                if overlaps > 0 {
                    let early = format!("{overlaps} turns began before the last had ended");
                    report.note(S::NAME, &format!("{}: {bench}: {early}", subject.name));
                }
                rounds.add(
                    subject.name,
                    WAITERS,
                    hold_times::count(&found),
                    &hold_times::values(&found, setting.length),
                );
            }
        }
        rounds.report(report);
        rounds.report_ratios(report, ours::NAME, "utilisation");
        rounds.report_ratios(report, ours::NAME, "wait p99");
    }
}
