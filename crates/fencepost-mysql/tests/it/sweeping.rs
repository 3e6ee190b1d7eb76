//! What is stored is bounded: expired rows and unused names are removed.

use fencepost_core::Keep;
use fencepost_testkit::databases::{dead_tickets, sweeping};
use fencepost_testkit::{StoredCounts, TestBench, WireBench};

use crate::actions::{LONG_TTL, enqueue, hold};
use crate::bench::MariadbBench;

/// A client dies with holders, tickets, cells and tombstones. The operations of others remove them after a ttl.
#[tokio::test]
async fn what_a_dead_client_leaves_is_removed() {
    let bench = MariadbBench::plain();
    let tombstone = "INSERT INTO {tombstones} VALUES (UNHEX(REPLACE(UUID(), '-', '')), 1)";
    // The lock with the cell has a row.
    let left = StoredCounts { cells: 1, others: 1, ..StoredCounts::default() };
    sweeping::what_a_dead_client_leaves_is_removed(
        &bench,
        async || drop(bench.try_sql(tombstone).await.unwrap()),
        async || bench.peek().await == left,
    )
    .await;
}

/// Everything at once, although no client uses the locks: 1,200 names of a client that is gone, more than one page.
#[tokio::test]
async fn a_sweep_removes_expired_and_unused_names_only() {
    let bench = MariadbBench::plain();
    let client = bench.direct_client().await;
    let held = hold(&client.lock("held").ttl(LONG_TTL)).await;
    let kept = hold(&client.lock("kept").ttl(LONG_TTL)).await;
    kept.write_cell(*b"value", Keep::Always).await.unwrap();
    kept.release().await.unwrap();
    let waiter = enqueue(&client, client.lock("held").ttl(LONG_TTL), "held", 1).await;
    for fill in [
        "INSERT INTO {locks} (name) SELECT CONCAT('once/', seq) FROM seq_1_to_1200",
        "INSERT INTO {holders} SELECT CONCAT('once/', seq), LPAD(seq, 16, '0'), seq, 0, 1000, 1, 1, 7, NULL, 0, '', '' FROM seq_1_to_900",
        "INSERT INTO {tombstones} SELECT LPAD(seq, 16, '0'), 1 FROM seq_1_to_500",
        "INSERT INTO {tokens} SELECT seq FROM seq_1_to_9000",
    ] {
        bench.try_sql(fill).await.unwrap();
    }
    // The background sweep may have been faster with some of them.
    let removed = client.sweep().await.unwrap().expect("there is something to sweep");
    assert!((1..=1200).contains(&removed), "{removed}");
    let names = "SELECT GROUP_CONCAT(name ORDER BY name) FROM {locks}";
    assert_eq!(bench.try_sql(names).await.unwrap(), "held,kept");
    let left = "SELECT (SELECT COUNT(*) FROM {tombstones}), (SELECT COUNT(*) FROM {tokens}) < 3000";
    assert_eq!(bench.try_sql(left).await.unwrap(), "0\t1");
    assert_eq!(client.sweep().await.unwrap(), Some(0));
    held.release().await.expect("it is still held");
    crate::actions::granted(waiter).await.release().await.unwrap();
    assert_eq!(&*client.read_cell("kept").await.unwrap().unwrap().bytes, b"value");
}

/// Scenario 64: a client died with 25,000 tickets, which have not expired yet.
#[tokio::test]
async fn a_waiter_is_granted_behind_tickets_of_a_dead_client() {
    dead_tickets::a_waiter_is_granted_behind_tickets_of_a_dead_client(&MariadbBench::plain()).await;
}

/// Scenario 64: 25,000 tickets have expired, and are still stored.
#[tokio::test]
async fn a_waiter_is_granted_behind_expired_tickets() {
    dead_tickets::a_waiter_is_granted_behind_expired_tickets(&MariadbBench::plain()).await;
}
