//! The wall clock of the server is set: it decides when leases end, and tokens rise all the same.

use std::time::Duration;

use fencepost_core::{Client, LostReason};
use fencepost_testkit::databases::outages;
use fencepost_testkit::servers::postgres::{PostgresServer, PostgresServerConfig};
use fencepost_testkit::wait;

use crate::actions::{LONG_TTL, Transaction, bench_on, connect, enqueue, granted, hold};
use crate::bench::PostgresBench;

const TTL: Duration = Duration::from_secs(3);
const HOUR: i64 = 3600;

fn server() -> PostgresServer {
    PostgresServer::start(&PostgresServerConfig::plain().with_movable_clock())
}

/// Set forward, the clock ends leases early: the lock is granted to another client, and its holder is told at its next
/// renewal. A fence that knows tokens rejects the first holder.
#[tokio::test]
async fn a_clock_set_forward_ends_leases_early() {
    let server = server();
    let bench = bench_on(&server);
    let (client, other) = (connect(&bench).await, connect(&bench).await);
    let guard = hold(&client.lock("a").ttl(TTL)).await;
    server.shift_clock(HOUR);
    let second = hold(&other.lock("a").ttl(TTL)).await;
    assert!(second.token() > guard.token());
    assert_eq!(wait::within_timeout("the loss is told", guard.lost()).await, LostReason::NotHeld);

    // Back again: names that were deleted meanwhile have larger tokens, too.
    let mut tokens = Vec::new();
    for name in ["lease", "lock_in"] {
        let guard = hold(&client.lock(name).ttl(TTL)).await;
        tokens.push(guard.token().get());
        guard.release().await.unwrap();
    }
    let transaction = Transaction::begin(&bench).await;
    let sweep = "SELECT (@.sweep(1000, '')).removed FROM (SELECT $1::text) AS unused";
    wait::until("the rows are deleted", async || {
        transaction.value(sweep, "").await;
        transaction.end("COMMIT; BEGIN").await;
        let left = "SELECT count(*) FROM @.locks WHERE name <> $1";
        transaction.value(left, "a").await == Some(0)
    })
    .await;
    server.shift_clock(0);
    let guard = hold(&client.lock("lease").ttl(TTL)).await;
    assert!(guard.token().get() > tokens[0]);
    assert!(transaction.lock_in("lock_in", 0).await > Some(tokens[1]));
}

/// Scenario 42: set back, the clock does not make leases longer. Live holders renew, and waiters of dead ones are granted after a
/// ttl.
#[tokio::test]
async fn a_clock_set_back_keeps_no_lock() {
    let server = server();
    outages::a_clock_set_back_keeps_no_lock(&PostgresBench::behind_a_wire(&server), &server).await;
}

/// A transaction may have used the token of `lock_in` before it is rolled back, so that no row has it. No later grant repeats it: not
/// if the clock is set back afterwards, and not if it was before, when the tokens of the rows are ahead of it.
#[tokio::test]
async fn a_clock_set_back_repeats_no_token_of_a_rolled_back_transaction() {
    let server = server();
    let bench = bench_on(&server);
    let client = connect(&bench).await;
    let transaction = Transaction::begin(&bench).await;
    for (before, rolled_back) in [(0, HOUR), (HOUR, 0)] {
        let mut forgotten = Vec::new();
        for path in PATHS {
            let name = format!("{path}/{before}");
            server.shift_clock(before);
            hold(&client.lock(&name).ttl(LONG_TTL)).await.release().await.unwrap();
            server.shift_clock(rolled_back);
            forgotten.push(transaction.lock_in(&name, 5_000).await);
            transaction.end("ROLLBACK; BEGIN").await;
        }
        server.shift_clock(0);
        for (path, token) in PATHS.into_iter().zip(forgotten) {
            let next = next_token(&client, &transaction, path, &format!("{path}/{before}")).await;
            assert!(next > token, "{path}, from {before} s: {next:?} after {token:?}");
        }
    }
}

/// The ways to a grant, each with code of its own.
const PATHS: [&str; 6] = ["single", "together", "shared", "several names", "queued", "lock_in"];

/// Returns the token of the next grant.
async fn next_token(client: &Client, transaction: &Transaction, path: &str, name: &str) -> Option<u64> {
    let lock = client.lock(name).ttl(LONG_TTL);
    let guard = match path {
        "together" => {
            let others: Vec<_> =
                (0..8).map(|number| client.lock(format!("{name}/{number}")).ttl(LONG_TTL)).collect();
            let others = futures_util::future::join_all(others.iter().map(hold));
            tokio::join!(others, hold(&lock)).1
        }
        "shared" => hold(&lock.shared()).await,
        "several names" => hold(&client.lock_all([name, "another"]).ttl(LONG_TTL)).await,
        "queued" => {
            let first = hold(&lock).await;
            let waiter = enqueue(client, lock, name, 1).await;
            first.release().await.unwrap();
            granted(waiter).await
        }
        "lock_in" => {
            let token = transaction.lock_in(name, 5_000).await;
            transaction.end("ROLLBACK; BEGIN").await;
            return token;
        }
        _ => hold(&lock).await,
    };
    Some(guard.token().get())
}
