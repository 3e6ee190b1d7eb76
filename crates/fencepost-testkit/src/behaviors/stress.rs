//! Many clients at once, with cancelled waits and crashes: the history keeps every guarantee.

use std::sync::Arc;

use fencepost_core::{Client, Guard, Lock, Mode};
use futures_util::FutureExt;

use crate::history::History;
use crate::proxy::Proxy;
use crate::rng::Rng;
use crate::test_bench::TestBench;
use crate::wait;

const CLIENTS: u64 = 8;
const ROUNDS: usize = 40;

/// One of the clients.
struct Worker {
    holder: String,
    client: Client,
    proxy: Proxy,
    rng: Rng,
    history: Arc<History>,
}

impl Worker {
    async fn round<B: TestBench>(&mut self, bench: &B) {
        let mode = if self.rng.percent(25) { Mode::Shared } else { Mode::Exclusive };
        let name = format!("stress/{}", self.rng.below(3));
        let lock = self.client.lock(name).ttl(bench.ttl()).mode(mode);
        if self.rng.percent(20) {
            self.cancel_acquire(&lock).await;
            return;
        }
        let Ok(guard) = wait::within_timeout("the lock is granted", lock.acquire()).await else {
            return;
        };
        if self.rng.percent(2) {
            self.crash_while_holding(bench, &guard, mode).await;
            return;
        }
        let record = self.history.granted(&self.holder, &guard, mode);
        for _ in 0..self.rng.below(30) {
            tokio::task::yield_now().await;
        }
        self.history.still_held(record, &guard);
        if self.rng.percent(50) {
            // A lease that was lost on a busy machine is not a failure here.
            let _ = guard.release().await;
        }
    }

    async fn cancel_acquire(&mut self, lock: &Lock) {
        let mut acquire = Box::pin(lock.acquire());
        for _ in 0..self.rng.below(10) {
            if (&mut acquire).now_or_never().is_some() {
                return;
            }
            tokio::task::yield_now().await;
        }
    }

    /// Crashes, records for how long the guard stays valid, and connects again.
    async fn crash_while_holding<B: TestBench>(&mut self, bench: &B, guard: &Guard, mode: Mode) {
        let record = self.history.granted(&self.holder, guard, mode);
        self.proxy.crash();
        let history = &self.history;
        wait::until("the dead holder has lost its lock", async || !history.still_held(record, guard)).await;
        (self.client, self.proxy) = bench.proxied().await;
    }
}

/// Eight clients lock three names in two modes, cancel waits and crash: incompatible holders never overlap, and tokens grow.
pub async fn holders_never_overlap<B: TestBench>(bench: &B) {
    let history = Arc::new(History::default());
    let workers = (0..CLIENTS).map(|number| {
        let history = history.clone();
        async move {
            let (client, proxy) = bench.proxied().await;
            let holder = format!("client {number}");
            let mut worker = Worker { holder, client, proxy, rng: Rng::new(number), history };
            for _ in 0..ROUNDS {
                worker.round(bench).await;
            }
        }
    });
    futures_util::future::join_all(workers).await;
    assert!(history.len() > 100, "only {} grants", history.len());
    history.check().unwrap_or_else(|violation| panic!("{violation}"));
}
