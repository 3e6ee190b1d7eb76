//! Workers that acquire and release locks while faults are injected, and the check of what they saw.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use fencepost_core::{Client, Mode};
use tokio::task::JoinHandle;

use crate::history::History;
use crate::rng::Rng;
use crate::wait;

/// Workers on two locks, which acquire one of them, either of them or both. Most waits have a timeout, and some guards are
/// dropped instead of released.
#[derive(Debug)]
pub struct Workload {
    history: Arc<History>,
    is_over: Arc<AtomicBool>,
    workers: Vec<JoinHandle<()>>,
}

impl Workload {
    /// Starts two workers for each client, with leases of this ttl.
    pub fn start(clients: &[Client], ttl: Duration) -> Self {
        let (history, is_over) = (Arc::new(History::default()), Arc::new(AtomicBool::new(false)));
        let workers = (0..).zip(clients.iter().chain(clients)).map(|(number, client)| {
            tokio::spawn(take_turns(client.clone(), ttl, number, history.clone(), is_over.clone()))
        });
        Self { workers: workers.collect(), history, is_over }
    }

    /// Waits for this many more grants.
    ///
    /// # Panics
    /// If there is no progress.
    pub async fn wait_for_grants(&self, more: usize) {
        let goal = self.history.len() + more;
        wait::until("locks are granted", async || self.history.len() > goal).await;
    }

    /// Waits for some more grants without faults, stops the workers and checks the history.
    ///
    /// # Panics
    /// If there is no progress, if incompatible holders overlap, or if a token did not grow.
    pub async fn stop_and_check(self) {
        self.wait_for_grants(100).await;
        self.is_over.store(true, Ordering::Relaxed);
        for worker in self.workers {
            wait::within_timeout("the worker stops", worker).await.expect("the worker did not panic");
        }
        self.history.check().unwrap_or_else(|violation| panic!("{violation}"));
    }
}

/// Errors are retried.
async fn take_turns(
    client: Client,
    ttl: Duration,
    number: u64,
    history: Arc<History>,
    is_over: Arc<AtomicBool>,
) {
    let mut rng = Rng::new(number);
    while !is_over.load(Ordering::Relaxed) {
        let mode = if rng.percent(20) { Mode::Shared } else { Mode::Exclusive };
        let both = ["turn/0", "turn/1"];
        let lock = match rng.below(10) {
            0 => client.lock_any(both),
            1 => client.lock_all(both),
            _ => client.lock(both[rng.index(2)]),
        };
        let lock = lock.mode(mode).ttl(ttl);
        let lock = if rng.percent(70) { lock.wait(Duration::from_millis(rng.below(1500))) } else { lock };
        let Ok(guard) = lock.acquire().await else {
            continue;
        };
        let record = history.granted(&number.to_string(), &guard, mode);
        for _ in 0..rng.below(20) {
            tokio::task::yield_now().await;
            history.still_held(record, &guard);
        }
        if rng.percent(60) {
            // The release of a lost lock fails.
            let _ = guard.release().await;
        }
    }
}
