//! The benches that compare: in each round every subject has its turn, so that a busy moment strikes all alike.

use super::subject::Subject;
use super::{Setting, bare, commandstats, turns, us};
use crate::contended::WAITERS;
use crate::report::Report;
use crate::rounds::{Reading, Rounds};
use crate::statistics::{number, percentile};
use crate::uncontended::pairs;
use crate::workers::{Crew, Found, Order, run};

pub(crate) const PAIRS: &str = "pairs per second";
pub(crate) const P50: &str = "pair p50";
pub(crate) const P99: &str = "pair p99";

/// Acquire + release, every task on a lock of its own.
pub(crate) fn uncontended(setting: &mut Setting, report: &mut Report) {
    let mut rounds = Rounds::new("uncontended", "redis");
    for tasks in [1, 64, 256] {
        for _ in 0..setting.rounds {
            for subject in
                setting.subjects.clone().iter().filter(|subject| subject.name != "python-redis-lock")
            {
                let order = Order::uncontended(&setting.server.url(), tasks, setting.length);
                let Some(found) = setting.tried(subject, report, |_| run(&subject.program, &order, 1)) else {
                    continue;
                };
                let samples = found.iter().map(|found| found.waits.len()).sum();
                rounds.add(subject.name, tasks, samples, &pair_values(&found));
            }
            match bare::benchmark(&setting.server, tasks, setting.length) {
                Ok(rate) => {
                    let value = Reading { metric: PAIRS, value: f64::from(rate) / 2.0, unit: "/s" };
                    let samples = usize::try_from(rate).unwrap_or(usize::MAX);
                    rounds.add(bare::BENCHMARK, tasks, samples, &[value]);
                }
                Err(why) => report.note(format!("{}: left out: {why}", bare::BENCHMARK)),
            }
        }
    }
    rounds.tell(report);
    rounds.tell_ratios(report, us::NAME, PAIRS);
    rounds.tell_ratios(report, us::NAME, P50);
}

fn pair_values(found: &[Found]) -> [Reading; 3] {
    let rate = found.iter().map(|found| pairs(found) / found.wall).sum();
    let mut waits: Vec<f64> = found.iter().flat_map(|found| found.waits.iter().copied()).collect();
    [
        Reading { metric: PAIRS, value: rate, unit: "/s" },
        Reading { metric: P50, value: percentile(&mut waits, 0.5) * 1e6, unit: "µs" },
        Reading { metric: P99, value: percentile(&mut waits, 0.99) * 1e6, unit: "µs" },
    ]
}

/// Sixteen that want one lock, in one process and over four.
pub(crate) fn contended(setting: &mut Setting, report: &mut Report) {
    for (bench, processes) in [("contended", 1), ("contended over 4", 4)] {
        let mut rounds = Rounds::new(bench, "redis");
        for _ in 0..setting.rounds {
            for subject in locks(&setting.subjects) {
                let order = Order::contended(&setting.server.url(), WAITERS / processes, setting.length);
                let Some(found) =
                    setting.tried(&subject, report, |_| run(&subject.program, &order, processes))
                else {
                    continue;
                };
                let overlaps = turns::overlaps(&found);
                if overlaps > 0 {
                    report.note(format!(
                        "{}: {bench}: {overlaps} turns began before the last had ended",
                        subject.name
                    ));
                }
                rounds.add(
                    subject.name,
                    WAITERS,
                    turns::count(&found),
                    &turns::values(&found, setting.length),
                );
            }
        }
        rounds.tell(report);
        rounds.tell_ratios(report, us::NAME, "utilisation");
        rounds.tell_ratios(report, us::NAME, "wait p99");
    }
}

/// A line of 1, 16 and 256 that never ends: what each hand-over costs the server.
pub(crate) fn line(setting: &mut Setting, report: &mut Report) {
    let mut rounds = Rounds::new("line", "redis");
    for waiters in [1, 16, 256] {
        for subject in locks(&setting.subjects) {
            let order = Order {
                // One has it, the others wait.
                tasks: waiters + 1,
                hold: std::time::Duration::from_millis(1),
                think: std::time::Duration::ZERO,
                ..Order::contended(&setting.server.url(), 0, setting.length)
            };
            let values = setting.tried(&subject, report, |setting| {
                let mut crew = Crew::start(&subject.program, &order, 1)?;
                commandstats::begin(&mut setting.look)?;
                let found = crew.work()?;
                let counted = commandstats::counted(&mut setting.look, subject.sends)?;
                Ok((turns::count(&found), counted))
            });
            let Some((turns, counted)) = values else { continue };
            let value = |metric, count: u64, unit| {
                let count = usize::try_from(count).unwrap_or(usize::MAX);
                Reading { metric, value: number(count) / number(turns), unit }
            };
            let values = [
                value("commands sent per turn", counted.sent, "commands"),
                value("commands in scripts per turn", counted.scripted, "commands"),
                value("bytes to the server per turn", counted.bytes_in, "bytes"),
                value("bytes from the server per turn", counted.bytes_out, "bytes"),
            ];
            rounds.add(subject.name, waiters, turns, &values);
        }
    }
    rounds.tell(report);
}

/// The subjects that are locks.
fn locks(subjects: &[Subject]) -> Vec<Subject> {
    subjects.iter().filter(|subject| subject.name != bare::NAME).cloned().collect()
}
