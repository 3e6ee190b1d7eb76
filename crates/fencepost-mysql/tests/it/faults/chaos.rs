//! Leases, transactions, sweeps and broken connections at the same time.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use fencepost_core::Client;
use fencepost_testkit::rng::Rng;
use fencepost_testkit::{TestBench, WireBench, suite, wait};
use futures_util::future::{LocalBoxFuture, join_all};

use crate::actions::Transaction;
use crate::bench::MariadbBench;

const NAMES: usize = 3;
const TTL: Duration = Duration::from_secs(3);

/// Who is inside which lock, and which tokens there were.
#[derive(Default)]
struct Watched {
    inside: [AtomicUsize; NAMES],
    newest: [AtomicU64; NAMES],
    turns: [AtomicUsize; 2],
    is_over: AtomicBool,
}

impl Watched {
    /// Is inside for a moment; no other may be.
    async fn enter(&self, lock: usize, token: u64, is_transaction: bool) {
        assert_eq!(self.inside[lock].fetch_add(1, Ordering::SeqCst), 0, "two hold the lock");
        let before = self.newest[lock].swap(token, Ordering::SeqCst);
        assert!(before < token, "token {token} after {before}");
        wait::elapse(Duration::from_millis(1)).await;
        self.turns[usize::from(is_transaction)].fetch_add(1, Ordering::Relaxed);
        self.inside[lock].fetch_sub(1, Ordering::SeqCst);
    }

    fn goes_on(&self) -> bool {
        !self.is_over.load(Ordering::Relaxed)
    }
}

fn name(lock: usize) -> String {
    format!("lock/{lock}")
}

async fn hold_leases(watched: Arc<Watched>, client: Client, seed: u64) {
    let mut rng = Rng::new(seed);
    while watched.goes_on() {
        let lock = rng.index(NAMES);
        let acquired = if rng.percent(30) {
            client.lock(name(lock)).ttl(TTL).try_acquire().await.ok().flatten()
        } else {
            client.lock(name(lock)).ttl(TTL).wait(Duration::from_millis(300)).acquire().await.ok()
        };
        if let Some(guard) = acquired {
            watched.enter(lock, guard.token().get(), false).await;
            // Its outcome may be unknown.
            let _ = guard.release().await;
        }
    }
}

async fn hold_in_transactions(watched: Arc<Watched>, bench: Arc<MariadbBench>, seed: u64) {
    let mut rng = Rng::new(seed);
    let mut transaction = Transaction::begin(&bench).await;
    while watched.goes_on() {
        let lock = rng.index(NAMES);
        if let Some(token) = transaction.lock_in(&name(lock)).await {
            watched.enter(lock, token, true).await;
        }
        transaction.end(if rng.percent(50) { "COMMIT" } else { "ROLLBACK" }).await;
        wait::elapse(Duration::from_millis(5)).await;
    }
}

/// Removes what is not in use, without a pause.
async fn sweep(watched: Arc<Watched>, client: Client) {
    while watched.goes_on() {
        // Its connections are not broken.
        client.sweep().await.unwrap();
    }
}

/// Scenario 47: the lock has one holder at a time, and its tokens rise, whichever way it is acquired.
#[tokio::test]
async fn leases_and_transactions_never_overlap() {
    let bench = Arc::new(MariadbBench::plain());
    let watched = Arc::new(Watched::default());
    let clients = [bench.client().await, bench.direct_client().await, bench.direct_client().await];
    let mut tasks: Vec<LocalBoxFuture<'_, ()>> = Vec::new();
    for seed in 0..6 {
        let client = clients[usize::try_from(seed).unwrap() % clients.len()].clone();
        tasks.push(Box::pin(hold_leases(watched.clone(), client, seed)));
    }
    for seed in 0..3 {
        tasks.push(Box::pin(hold_in_transactions(watched.clone(), bench.clone(), 100 + seed)));
    }
    tasks.push(Box::pin(sweep(watched.clone(), bench.direct_client().await)));
    tasks.push(Box::pin(async {
        for _ in 0..10 {
            wait::elapse(Duration::from_millis(300)).await;
            bench.wire().reset();
        }
        let [leases, transactions] = &watched.turns;
        wait::until("both sides had turns", async || {
            leases.load(Ordering::Relaxed) > 5 && transactions.load(Ordering::Relaxed) > 5
        })
        .await;
        watched.is_over.store(true, Ordering::Relaxed);
    }));
    wait::within_timeout("all end", join_all(tasks)).await;
    println!("{:?} turns of leases and of transactions", watched.turns);
    suite::assert_clean(&*bench).await;
}
