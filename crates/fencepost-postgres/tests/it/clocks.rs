//! The wall clock of the server is set: it decides when leases end, and tokens rise all the same.

use std::time::Duration;

use fencepost_core::LostReason;
use fencepost_testkit::servers::postgres::{PostgresServer, PostgresServerConfig};
use fencepost_testkit::{TestBench, WireBench, wait};

use crate::actions::{Transaction, bench_on, connect, enqueue, granted, hold, until_renewed};
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
    let dead_bench = PostgresBench::behind_a_wire(&server);
    let bench = dead_bench.without_wire();
    let (dead, client, other) = (dead_bench.client().await, connect(&bench).await, connect(&bench).await);
    server.shift_clock(HOUR);
    let kept = hold(&client.lock("kept").ttl(3 * TTL)).await;
    let kept_reader = hold(&client.lock("kept/read").shared().ttl(3 * TTL)).await;
    let mut orphans = Vec::new();
    for name in ["exclusive", "queued"] {
        orphans.push(hold(&dead.lock(name).ttl(TTL)).await);
    }
    let dead_waiter = enqueue(&client, dead.lock("queued").ttl(TTL), "queued", 1).await;
    let reader = hold(&dead.lock("shared").shared().ttl(TTL)).await;
    // Its lease is extended after the row of its lock was last written.
    server.shift_clock(HOUR + 2);
    until_renewed(&reader).await;
    orphans.push(reader);
    dead_bench.wire().cut();
    server.shift_clock(0);
    let waiters = ["exclusive", "queued", "shared"].map(|name| {
        let lock = other.lock(name).ttl(TTL);
        tokio::spawn(async move { lock.acquire().await })
    });
    for (waiter, orphan) in waiters.into_iter().zip([0, 1, 2]) {
        let guard = granted(waiter).await;
        assert!(guard.token() > orphans[orphan].token(), "{:?}", guard.name());
        guard.release().await.unwrap();
    }
    for guard in [&kept, &kept_reader] {
        until_renewed(guard).await;
        until_renewed(guard).await;
    }
    assert!(other.lock("kept").ttl(TTL).try_acquire().await.unwrap().is_none());
    dead_waiter.abort();
}
