//! Sixteen that want the same lock: held for 5 ms, then 20 ms of other work.

use std::time::Duration;

use fencepost::Client;
use fencepost::clock::Clock;

use crate::Plan;
use crate::report::{Figure, Report, jain, percentile};
use crate::uncontended::storage;
use crate::workers::{self, Found};

const HOLD: Duration = Duration::from_millis(5);
const THINK: Duration = Duration::from_millis(20);
const WAITERS: usize = 16;

pub(crate) fn measure(plan: &Plan, report: &mut Report) {
    for backend in &plan.backends {
        let (_folder, url) = storage(backend);
        let found = workers::runtime().block_on(async {
            let client = fencepost::connect(&url).await.expect("the storage is there");
            let found = work(&client, WAITERS, plan.length).await;
            client.close().await;
            found
        });
        tell(report, backend, "one process", &[found]);
        if backend == "sqlite" {
            for processes in [4, WAITERS] {
                let (_folder, url) = storage(backend);
                let found = workers::run("contended", &url, processes, WAITERS / processes, plan.length);
                tell(report, backend, &format!("{processes} processes"), &found);
            }
        }
    }
}

/// What one process does.
pub(crate) async fn work(client: &Client, tasks: usize, length: Duration) -> Found {
    let clock = Clock::system();
    let start = clock.now();
    let end = start + length;
    let tasks: Vec<_> = (0..tasks)
        .map(|_| {
            let lock = client.lock("bench");
            let clock = clock.clone();
            tokio::spawn(async move {
                let (mut waits, mut held) = (Vec::new(), 0.0);
                while clock.now() < end {
                    let asked = clock.now();
                    let guard = lock.acquire().await.expect("it comes to its turn");
                    let entered = clock.now();
                    pause(HOLD).await;
                    let left = clock.now();
                    guard.release().await.expect("it is held");
                    waits.push(entered.since(asked).as_secs_f64());
                    held += left.since(entered).as_secs_f64();
                    pause(THINK).await;
                }
                (waits, held)
            })
        })
        .collect();
    let mut found = Found::default();
    for task in tasks {
        let (waits, held) = task.await.expect("no panic");
        found.turns.push(waits.len());
        found.waits.extend(waits);
        found.held += held;
    }
    // Whoever is last waits for nobody: only the time in which all were there counts.
    found.wall = clock.now().since(start).as_secs_f64();
    found
}

#[allow(clippy::disallowed_methods, reason = "work that takes time is what is measured")]
async fn pause(length: Duration) {
    tokio::time::sleep(length).await;
}

#[allow(clippy::cast_precision_loss, reason = "far below 2^53")]
fn tell(report: &mut Report, backend: &str, subject: &str, found: &[Found]) {
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
        });
    };
    add("utilisation", held / wall, "held ÷ wall");
    add("dead time per turn", dead, "µs");
    add("wait p50", percentile(&mut waits, 0.5) * 1e3, "ms");
    add("wait p99", percentile(&mut waits, 0.99) * 1e3, "ms");
    add("fairness between tasks", jain(&turns), "Jain");
}
