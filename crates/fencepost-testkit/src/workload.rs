//! Workers that acquire and release locks while faults are injected, and the check of what they saw.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use fencepost_core::{Client, Mode};
use tokio::task::JoinHandle;

use crate::actions::LONG_TTL;
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

    /// Waits for this many more grants, however long that takes on a busy machine.
    ///
    /// # Panics
    /// If there is no progress.
    pub async fn wait_for_grants(&self, more: usize) {
        let goal = self.history.len() + more;
        while self.history.len() <= goal {
            let before = self.history.len();
            wait::until("a lock is granted", async || self.history.len() > before).await;
        }
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

/// Increments a counter under the lock `counter`, `rounds` times by each client, without other protection: no increment is lost,
/// the tokens of each client grow, and no client is left in the queue.
///
/// # Panics
/// If one of these does not hold.
pub async fn count_under_the_lock(clients: Vec<Client>, rounds: u64) {
    let counter = Arc::new(AtomicU64::new(0));
    let tasks = clients.iter().cloned().map(|client| {
        let counter = counter.clone();
        tokio::spawn(async move {
            let mut last = None;
            for _ in 0..rounds {
                let guard = client.lock("counter").ttl(LONG_TTL).acquire().await.expect("it is granted");
                assert!(last < Some(guard.token()), "tokens grow");
                last = Some(guard.token());
                let seen = counter.load(Ordering::Relaxed);
                let moment = Duration::from_millis(2);
                let _ = tokio::time::timeout(moment, std::future::pending::<()>()).await;
                counter.store(seen + 1, Ordering::Relaxed);
                guard.release().await.expect("it is held");
            }
        })
    });
    for task in tasks.collect::<Vec<_>>() {
        task.await.expect("the task did not panic");
    }
    assert_eq!(counter.load(Ordering::Relaxed), clients.len() as u64 * rounds);
    for client in clients {
        assert!(client.inspect("counter").await.expect("it can be inspected").is_idle());
    }
}
