//! Leases, transactions, sweeps and broken connections at the same time.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use fencepost_core::Client;
use fencepost_testkit::rng::Rng;
use fencepost_testkit::servers::postgres::shared;
use fencepost_testkit::{TestBench, WireBench, suite, wait};
use futures_util::future::{LocalBoxFuture, join_all};

use crate::actions::{Transaction, connect};
use crate::bench::PostgresBench;

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

async fn hold_in_transactions(watched: Arc<Watched>, bench: Arc<PostgresBench>, seed: u64) {
    let mut rng = Rng::new(seed);
    let transaction = Transaction::begin(&bench).await;
    while watched.goes_on() {
        let lock = rng.index(NAMES);
        let wait_ms = i32::try_from(rng.index(100)).unwrap();
        if let Some(token) = transaction.lock_in(&name(lock), wait_ms).await {
            watched.enter(lock, token, true).await;
        }
        transaction.end(if rng.percent(50) { "COMMIT; BEGIN" } else { "ROLLBACK; BEGIN" }).await;
    }
}

/// Deletes the rows of locks as soon as they are free, which takes a second otherwise.
async fn sweep(watched: Arc<Watched>, bench: Arc<PostgresBench>) {
    let driver = bench.driver().await;
    let namespace = bench.namespace();
    let age = format!(
        "UPDATE {namespace}.locks SET expires_at = expires_at - interval '2 s' WHERE name IN \
         (SELECT name FROM {namespace}.locks WHERE owner IS NULL FOR NO KEY UPDATE SKIP LOCKED)"
    );
    let sweep = format!("SELECT removed FROM {namespace}.sweep(100, '')");
    let mut removed = 0;
    while watched.goes_on() {
        driver.batch_execute(&age).await.unwrap();
        removed += driver.query_one(&sweep, &[]).await.unwrap().get::<_, i64>(0);
    }
    assert!(removed > 0, "no row was deleted");
}

/// Scenario 47: the lock has one holder at a time, and its tokens rise, whichever way it is acquired.
#[tokio::test]
async fn leases_and_transactions_never_overlap() {
    let wired = PostgresBench::behind_a_wire(shared());
    let bench = Arc::new(wired.without_wire());
    let watched = Arc::new(Watched::default());
    let clients = [wired.client().await, connect(&bench).await, connect(&bench).await];
    let mut tasks: Vec<LocalBoxFuture<'_, ()>> = Vec::new();
    for seed in 0..6 {
        let client = clients[usize::try_from(seed).unwrap() % clients.len()].clone();
        tasks.push(Box::pin(hold_leases(watched.clone(), client, seed)));
    }
    for seed in 0..3 {
        tasks.push(Box::pin(hold_in_transactions(watched.clone(), bench.clone(), 100 + seed)));
    }
    tasks.push(Box::pin(sweep(watched.clone(), bench.clone())));
    tasks.push(Box::pin(async {
        for _ in 0..10 {
            wait::elapse(Duration::from_millis(300)).await;
            wired.wire().reset();
        }
        watched.is_over.store(true, Ordering::Relaxed);
    }));
    wait::within_timeout("all end", join_all(tasks)).await;
    let [leases, transactions] = &watched.turns;
    println!("{leases:?} turns of leases, {transactions:?} of transactions");
    assert!(leases.load(Ordering::Relaxed) > 5 && transactions.load(Ordering::Relaxed) > 5);
    suite::assert_clean(&wired).await;
}
