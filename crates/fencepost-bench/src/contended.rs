//! 16 tasks compete for one lock: held for 5 ms, then 20 ms of other work.

use std::time::Duration;

use fencepost::clock::{Clock, Moment};

use crate::Plan;
use crate::locking::Locking;
use crate::report::{Figure, Report};
use crate::statistics::{jain, percentile};
use crate::uncontended::fresh_url;
use crate::workers::{self, Order, WorkerResult};

pub(crate) const HOLD: Duration = Duration::from_millis(5);
pub(crate) const THINK: Duration = Duration::from_millis(20);
pub(crate) const WAITERS: usize = 16;

pub(crate) fn measure(plan: &Plan, report: &mut Report) {
    for backend in &plan.backends {
        let (_folder, url) = fresh_url(backend);
        let found = workers::runtime().block_on(async {
            let client = fencepost::connect(&url).await.expect("the backend can be reached");
            let order = Order::contended(&url, WAITERS, plan.length);
            let found = work(|name| client.lock(name), &order).await;
            client.close().await;
            found
        });
        report_figures(report, backend, "one process", &[found]);
        if backend == "sqlite" {
            for processes in [4, WAITERS] {
                let (_folder, url) = fresh_url(backend);
                let order = Order::contended(&url, WAITERS / processes, plan.length);
                let found = workers::run(&workers::this_program("worker"), &order, processes);
                report_figures(
                    report,
                    backend,
                    &format!("{processes} processes"),
                    &found.expect("the workers work"),
                );
            }
        }
    }
}

/// The work of one process.
pub(crate) async fn work<L: Locking>(lock: impl Fn(String) -> L, order: &Order) -> WorkerResult {
    let clock = Clock::system();
    let start = clock.now();
    let end = start + order.length;
    let (hold, think) = (order.hold, order.think);
    let tasks: Vec<_> = (0..order.tasks)
        .map(|_| {
            let lock = lock("bench".to_owned());
            let clock = clock.clone();
            tokio::spawn(async move {
                let (mut waits, mut spans) = (Vec::new(), Vec::new());
                while clock.now() < end {
                    let asked = clock.now();
                    let guard = lock.take().await;
                    let entered = clock.now();
                    pause(hold).await;
                    let left = clock.now();
                    lock.release(guard).await;
                    waits.push(entered.since(asked).as_secs_f64());
                    spans.push((seconds(entered), seconds(left)));
                    pause(think).await;
                }
                (waits, spans)
            })
        })
        .collect();
    let mut found = WorkerResult::default();
    for task in tasks {
        let (waits, spans) = task.await.expect("no panic");
        found.turns.push(waits.len());
        found.waits.extend(waits);
        found.held += spans.iter().map(|(entered, left)| left - entered).sum::<f64>();
        found.spans.extend(spans);
    }
    // The last task has no competition: only the time in which all compete counts.
    found.wall = clock.now().since(start).as_secs_f64();
    found
}

fn seconds(moment: Moment) -> f64 {
    moment.since(Moment::START).as_secs_f64()
}

#[allow(clippy::disallowed_methods, reason = "work that takes time is what is measured")]
async fn pause(length: Duration) {
    if !length.is_zero() {
        tokio::time::sleep(length).await;
    }
}

#[allow(clippy::cast_precision_loss, reason = "far below 2^53")]
fn report_figures(report: &mut Report, backend: &str, subject: &str, found: &[WorkerResult]) {
    let mut waits: Vec<f64> = found.iter().flat_map(|found| found.waits.iter().copied()).collect();
    let turns: Vec<f64> =
        found.iter().flat_map(|found| found.turns.iter().map(|turns| *turns as f64)).collect();
    let wall = found.iter().map(|found| found.wall).fold(0.0, f64::max);
    let held: f64 = found.iter().map(|found| found.held).sum();
    let samples = waits.len();
    let dead = (wall - held) / samples as f64 * 1e6;
    let mut add = |metric, value, unit| {
        let (backend, subject) = (backend.to_owned(), subject.to_owned());
        report.add(Figure {
            bench: "contended",
            backend,
            subject,
            tasks: WAITERS,
            metric,
            value,
            unit,
            samples,
            spread: None,
        });
    };
    add("utilisation", held / wall, "held ÷ wall");
    add("dead time per grant", dead, "µs");
    add("wait p50", percentile(&mut waits, 0.5) * 1e3, "ms");
    add("wait p99", percentile(&mut waits, 0.99) * 1e3, "ms");
    add("fairness between tasks", jain(&turns), "Jain");
}
