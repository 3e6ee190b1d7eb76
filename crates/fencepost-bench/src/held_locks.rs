//! Ten thousand locks that are held at once: the cost of their renewal, and their memory.

use std::time::Duration;

use fencepost::clock::Clock;
use rustix::time::{ClockId, clock_gettime};

use crate::Plan;
use crate::report::{Figure, Report};
use crate::uncontended::fresh_url;
use crate::workers;

pub(crate) const LOCKS: usize = 10_000;
const TTL: Duration = Duration::from_secs(30);

pub(crate) fn measure(plan: &Plan, report: &mut Report) {
    for backend in &plan.backends {
        let (_folder, url) = fresh_url(backend);
        let (cpu, bytes) = workers::runtime().block_on(hold(&url));
        let mut add = |metric, value, unit| {
            let (backend, subject) = (backend.clone(), "one process".to_owned());
            report.add(Figure {
                bench: "held",
                backend,
                subject,
                tasks: LOCKS,
                metric,
                value,
                unit,
                samples: LOCKS,
                spread: None,
            });
        };
        add("renewal, share of one core", cpu * 100.0, "%");
        add("memory per lock", bytes, "bytes");
    }
}

#[allow(clippy::cast_precision_loss, reason = "far below 2^53")]
async fn hold(url: &str) -> (f64, f64) {
    let client = fencepost::connect(url).await.expect("the backend can be reached");
    // One round before, so that what every client needs once is not counted.
    drop(take(&client, 100).await);
    let before = resident("self");
    let guards = take(&client, LOCKS).await;
    let bytes = (resident("self") - before) / LOCKS as f64;

    let clock = Clock::system();
    let (start, cpu) = (clock.now(), cpu_seconds());
    #[allow(clippy::disallowed_methods, reason = "the renewals of one ttl are what is measured")]
    tokio::time::sleep(TTL).await;
    let share = (cpu_seconds() - cpu) / clock.now().since(start).as_secs_f64();
    assert!(guards.iter().all(fencepost::Guard::is_valid), "a lock was lost");
    drop(guards);
    client.close().await;
    (share, bytes)
}

async fn take(client: &fencepost::Client, count: usize) -> Vec<fencepost::Guard> {
    let mut guards = Vec::with_capacity(count);
    for number in 0..count {
        let lock = client.lock(format!("job/{number}")).ttl(TTL);
        guards.push(lock.acquire().await.expect("the lock is free"));
    }
    guards
}

/// Processor time of this process.
#[allow(clippy::cast_precision_loss, reason = "seconds")]
fn cpu_seconds() -> f64 {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    time.tv_sec as f64 + time.tv_nsec as f64 / 1e9
}

/// Memory of this process that is in use, in bytes.
pub(crate) fn resident(process: &str) -> f64 {
    let status = std::fs::read_to_string(format!("/proc/{process}/status")).unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap_or("0 kB");
    line.split_whitespace().next().and_then(|number| number.parse::<f64>().ok()).unwrap_or(0.0) * 1024.0
}
