//! Acquire + release without contention: every task has a lock of its own.

use std::time::Duration;

use fencepost::clock::Clock;

use crate::Plan;
use crate::locking::Locking;
use crate::report::{Figure, Report};
use crate::statistics::{jain, percentile};
use crate::workers::{self, Order, WorkerResult};

pub(crate) fn measure(plan: &Plan, report: &mut Report) {
    for backend in &plan.backends {
        for tasks in [1, 64, 256] {
            let (_folder, url) = fresh_url(backend);
            let found = workers::runtime().block_on(async {
                let client = fencepost::connect(&url).await.expect("the backend can be reached");
                let found = work(|name| client.lock(name), tasks, plan.length).await;
                client.close().await;
                found
            });
            report_figures(report, backend, "one process", tasks, &[found]);
        }
    }
    if plan.backends.iter().any(|backend| backend == "sqlite") {
        let (_folder, url) = fresh_url("sqlite");
        let order = Order::uncontended(&url, 16, plan.length);
        let found = workers::run(&workers::this_program("worker"), &order, 4).expect("the workers work");
        report_figures(report, "sqlite", "4 processes", 64, &found);
        let shares: Vec<f64> = found.iter().map(|found| pairs(found) / found.wall).collect();
        report.add(figure(
            "sqlite",
            "4 processes",
            64,
            "fairness between processes",
            jain(&shares),
            "Jain",
            4,
        ));
    }
}

/// Returns the URL of an empty backend for one measurement.
pub(crate) fn fresh_url(backend: &str) -> (tempfile::TempDir, String) {
    let folder = tempfile::tempdir().expect("a folder");
    let url = match backend {
        "memory" => format!("memory:{}", folder.path().display()),
        _ => format!("sqlite:{}", folder.path().join("bench.db").display()),
    };
    (folder, url)
}

/// The work of one process.
pub(crate) async fn work<L: Locking>(
    lock: impl Fn(String) -> L,
    tasks: usize,
    length: Duration,
) -> WorkerResult {
    let clock = Clock::system();
    let start = clock.now();
    let end = start + length;
    let pid = std::process::id();
    let tasks: Vec<_> = (0..tasks)
        .map(|task| {
            let lock = lock(format!("bench/{pid}/{task}"));
            let clock = clock.clone();
            tokio::spawn(async move {
                let mut waits = Vec::new();
                loop {
                    let begun = clock.now();
                    if begun >= end {
                        return waits;
                    }
                    let guard = lock.take().await;
                    lock.release(guard).await;
                    waits.push(clock.now().since(begun).as_secs_f64());
                }
            })
        })
        .collect();
    let mut found = WorkerResult::default();
    for task in tasks {
        let waits = task.await.expect("no panic");
        found.turns.push(waits.len());
        found.waits.extend(waits);
    }
    found.wall = clock.now().since(start).as_secs_f64();
    found
}

fn report_figures(report: &mut Report, backend: &str, subject: &str, tasks: usize, found: &[WorkerResult]) {
    let rate: f64 = found.iter().map(|found| pairs(found) / found.wall).sum();
    let mut waits: Vec<f64> = found.iter().flat_map(|found| found.waits.iter().copied()).collect();
    let samples = waits.len();
    report.add(figure(backend, subject, tasks, "pairs per second", rate, "/s", samples));
    let p50 = percentile(&mut waits, 0.5) * 1e6;
    report.add(figure(backend, subject, tasks, "pair p50", p50, "µs", samples));
    let p99 = percentile(&mut waits, 0.99) * 1e6;
    report.add(figure(backend, subject, tasks, "pair p99", p99, "µs", samples));
}

#[allow(clippy::cast_precision_loss, reason = "far below 2^53")]
pub(crate) fn pairs(found: &WorkerResult) -> f64 {
    found.turns.iter().sum::<usize>() as f64
}

fn figure(
    backend: &str,
    subject: &str,
    tasks: usize,
    metric: &'static str,
    value: f64,
    unit: &'static str,
    samples: usize,
) -> Figure {
    let (backend, subject) = (backend.to_owned(), subject.to_owned());
    Figure { bench: "uncontended", backend, subject, tasks, metric, value, unit, samples, spread: None }
}
