//! What is stored is bounded: expired rows and unused names are removed.

use std::time::Duration;

use fencepost_core::Keep;
use fencepost_testkit::{TestBench, WireBench, wait};

use crate::actions::{LONG_TTL, enqueue, hold};
use crate::bench::MariadbBench;

/// A client dies with holders, tickets, cells and tombstones. The operations of others remove them after a ttl.
#[tokio::test]
async fn what_a_dead_client_leaves_is_removed() {
    let bench = MariadbBench::plain();
    let (dead, client) = (bench.client().await, bench.direct_client().await);
    let ttl = Duration::from_secs(2);
    let exclusive = hold(&dead.lock("exclusive").ttl(ttl)).await;
    exclusive.write_cell(*b"while held", Keep::WhileHeld).await.unwrap();
    let shared_holder = hold(&dead.lock("shared").shared().ttl(ttl)).await;
    shared_holder.write_cell(*b"for a while", Keep::For(Duration::from_secs(1))).await.unwrap();
    let permit = hold(&dead.lock("permit").semaphore(3).ttl(ttl)).await;
    let several = hold(&dead.lock_all(["several/1", "several/2"]).ttl(ttl)).await;
    let always = hold(&client.lock("always").ttl(ttl)).await;
    always.write_cell(*b"always", Keep::Always).await.unwrap();
    let waiter = enqueue(&client, dead.lock("always").ttl(ttl), "always", 1).await;
    bench.try_sql("INSERT INTO {tombstones} VALUES (UNHEX(REPLACE(UUID(), '-', '')), 1)").await.unwrap();
    bench.wire().cut();
    always.release().await.unwrap();
    wait::until("all but the kept cell is removed", async || {
        for _ in 0..20 {
            hold(&client.lock("busy").ttl(LONG_TTL)).await.release().await.unwrap();
        }
        let left = bench.peek().await;
        // The lock with the cell has a row.
        left.holders + left.tickets == 0 && left.cells == 1 && left.others == 1
    })
    .await;
    assert_eq!(client.read_cell("always").await.unwrap().unwrap().bytes.as_ref(), b"always");
    waiter.abort();
    drop((exclusive, shared_holder, permit, several));
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
