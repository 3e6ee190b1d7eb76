//! Leases, transactions, sweeps and broken connections at the same time.

use fencepost_testkit::databases::transactions::Watched;
use fencepost_testkit::rng::Rng;
use futures_util::future::join_all;

use crate::actions::Transaction;
use crate::bench::PostgresBench;

async fn hold_in_transactions(watched: &Watched, bench: &PostgresBench, seed: u64) {
    let mut rng = Rng::new(seed);
    let transaction = Transaction::begin(bench).await;
    while watched.goes_on() {
        let (lock, name) = Watched::choose(&mut rng);
        let wait_ms = i32::try_from(rng.index(100)).unwrap();
        if let Some(token) = transaction.lock_in(&name, wait_ms).await {
            watched.enter_in_transaction(lock, token).await;
        }
        transaction.end(if rng.percent(50) { "COMMIT; BEGIN" } else { "ROLLBACK; BEGIN" }).await;
    }
}

/// Deletes the rows of locks as soon as they are free, which takes a second otherwise.
async fn sweep(watched: &Watched, bench: &PostgresBench) {
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
    let (bench, watched) = (PostgresBench::plain(), Watched::default());
    let transactions = join_all((100..103).map(|seed| hold_in_transactions(&watched, &bench, seed)));
    let sweep = sweep(&watched, &bench);
    watched.run(&bench, Box::pin(async { drop(tokio::join!(transactions, sweep)) })).await;
}
