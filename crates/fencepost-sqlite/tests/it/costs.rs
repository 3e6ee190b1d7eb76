//! The cost of a renewal and of a heartbeat does not depend on other clients of the lock.

use std::time::Duration;

use fencepost_core::Mode;
use fencepost_testkit::actions::{granted, hold, spawn_waiter, until_queued, until_renewed};
use fencepost_testkit::{TestBench, wait};

use crate::bench::SqliteBench;

const LONG_TTL: Duration = Duration::from_secs(120);

/// Scenario 63: a renewal updates its own row. Others are not read: here one of them is unreadable.
#[tokio::test]
async fn a_renewal_reads_no_other_holder() {
    let bench = SqliteBench::new();
    let client = bench.client().await;
    let guard = hold(&client.lock("a").mode(Mode::Shared).ttl(bench.ttl())).await;
    let unreadable = "INSERT INTO holders SELECT name, randomblob(16), token + 1, mode, ttl_ns, \
         until_ns + 3600000000000, clock, since_ms, client, char(1), chosen, label, meta FROM holders";
    assert_eq!(bench.driver().execute(unreadable, []).unwrap(), 1);
    assert!(client.inspect("a").await.is_err(), "the row can be read");
    for _ in 0..3 {
        until_renewed(&guard).await;
    }
    bench.driver().execute("DELETE FROM holders WHERE names IS NOT NULL", []).unwrap();
    guard.release().await.unwrap();
}

/// Scenario 63: the heartbeat of a waiter behind an exclusive holder updates its own row.
#[tokio::test]
async fn a_heartbeat_reads_no_other_ticket() {
    let bench = SqliteBench::new();
    let (holding, client) = (bench.client().await, bench.client().await);
    let guard = hold(&holding.lock("a").ttl(LONG_TTL)).await;
    let waiter = spawn_waiter(client.lock("a").ttl(bench.ttl()));
    until_queued(&client, "a", 1).await;
    let unreadable = "INSERT INTO tickets SELECT name, seq + 1, randomblob(16), ttl_ns, \
         until_ns + 3600000000000, clock, since_ms, client, rule, '0 ' || char(1), label, meta FROM tickets";
    assert_eq!(bench.driver().execute(unreadable, []).unwrap(), 1);
    assert!(client.inspect("a").await.is_err(), "the row can be read");
    let driver = bench.driver();
    let until = || {
        let first = "SELECT until_ns FROM tickets ORDER BY seq LIMIT 1";
        driver.query_row(first, [], |row| row.get::<_, i64>(0)).unwrap()
    };
    for _ in 0..3 {
        let known = until();
        wait::until("a heartbeat", async || until() > known).await;
    }
    driver.execute("DELETE FROM tickets WHERE seq = (SELECT max(seq) FROM tickets)", []).unwrap();
    guard.release().await.unwrap();
    granted(waiter).await.release().await.unwrap();
}
