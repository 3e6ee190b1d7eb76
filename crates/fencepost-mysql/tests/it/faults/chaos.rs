//! Leases, transactions, sweeps and broken connections at the same time.

use std::time::Duration;

use fencepost_core::Client;
use fencepost_testkit::databases::transactions::Watched;
use fencepost_testkit::rng::Rng;
use fencepost_testkit::{WireBench, wait};
use futures_util::future::join_all;

use crate::actions::Transaction;
use crate::bench::MariadbBench;

async fn hold_in_transactions(watched: &Watched, bench: &MariadbBench, seed: u64) {
    let mut rng = Rng::new(seed);
    let mut transaction = Transaction::begin(bench).await;
    while watched.goes_on() {
        let (lock, name) = Watched::choose(&mut rng);
        if let Some(token) = transaction.lock_in(&name).await {
            watched.enter_in_transaction(lock, token).await;
        }
        transaction.end(if rng.percent(50) { "COMMIT" } else { "ROLLBACK" }).await;
        wait::elapse(Duration::from_millis(5)).await;
    }
}

/// Removes what is not in use, without a pause.
async fn sweep(watched: &Watched, client: Client) {
    while watched.goes_on() {
        // Its connections are not broken.
        client.sweep().await.unwrap();
    }
}

/// Scenario 47: the lock has one holder at a time, and its tokens rise, whichever way it is acquired.
#[tokio::test]
async fn leases_and_transactions_never_overlap() {
    let (bench, watched) = (MariadbBench::plain(), Watched::default());
    let transactions = join_all((100..103).map(|seed| hold_in_transactions(&watched, &bench, seed)));
    let sweep = sweep(&watched, bench.direct_client().await);
    watched.run(&bench, Box::pin(async { drop(tokio::join!(transactions, sweep)) })).await;
}
