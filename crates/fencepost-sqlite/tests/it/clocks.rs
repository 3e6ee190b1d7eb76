//! Leases written under another boot or on another host: timed by the reader's own clock, never treated as expired at once.

use std::time::Duration;

use fencepost_core::clock::Clock;
use fencepost_core::{Client, LostReason};
use fencepost_testkit::wait;

use crate::bench::SqliteBench;
use crate::scripted_process::scripted_process;

const TTL: Duration = Duration::from_millis(1500);

async fn connected(bench: &SqliteBench) -> Client {
    fencepost_sqlite::connect(bench.path().to_str().unwrap()).await.unwrap()
}

/// Turns all leases into those of another clock that shows a time long past.
fn reboot(bench: &SqliteBench) {
    let rows = bench.driver().execute("UPDATE holders SET clock = clock + 1, until_ns = 1", []).unwrap();
    assert_eq!(rows, 1);
}

/// A holder that crashed with its host: the row exists, and no process renews it.
fn crashed_holder(bench: &SqliteBench) {
    let mut holder = scripted_process(bench);
    holder.send(&format!("acquire a {}", TTL.as_millis()));
    holder.receive("granted");
    holder.kill();
    reboot(bench);
}

/// Scenario 57.
#[tokio::test]
async fn a_lease_of_another_clock_is_waited_for_in_full() {
    let bench = SqliteBench::new();
    crashed_holder(&bench);
    let client = connected(&bench).await;
    let clock = Clock::system();
    let first_seen = clock.now();
    assert!(client.lock("a").try_acquire().await.unwrap().is_none(), "it was granted at once");
    let guard = wait::within_timeout("the lock", client.lock("a").acquire()).await.unwrap();
    assert!(clock.now().since(first_seen) >= TTL, "it was granted early");
    drop(guard);
}

#[tokio::test]
async fn all_processes_share_the_time_of_the_first_sighting() {
    let bench = SqliteBench::new();
    crashed_holder(&bench);
    // Short-lived clients that only try, one after the other: none of them lives for a whole ttl.
    wait::until("one of them to acquire it", async || {
        let client = connected(&bench).await;
        let is_acquired = client.lock("a").try_acquire().await.unwrap().is_some();
        client.close().await;
        is_acquired
    })
    .await;
}

#[tokio::test]
async fn a_live_holder_of_another_clock_keeps_its_lock() {
    let bench = SqliteBench::new();
    let holder = connected(&bench).await;
    let guard = holder.lock("a").ttl(TTL).acquire().await.unwrap();
    let client = connected(&bench).await;
    let clock = Clock::system();
    let end = clock.now() + TTL * 3;
    wait::until("three ttls to pass", async || {
        // Simulates renewals under another clock.
        bench.driver().execute("UPDATE holders SET clock = 1, until_ns = until_ns + 1", []).unwrap();
        assert!(
            client.lock("a").try_acquire().await.unwrap().is_none(),
            "the lock of a live holder was granted"
        );
        clock.now() >= end
    })
    .await;
    assert!(guard.is_valid());
}

#[tokio::test]
async fn sightings_are_deleted_with_the_rows_they_are_about() {
    let bench = SqliteBench::new();
    crashed_holder(&bench);
    let client = connected(&bench).await;
    client.lock("a").acquire().await.unwrap().release().await.unwrap();
    wait::until("the sighting to be deleted", async || {
        client.lock("b").acquire().await.unwrap().release().await.unwrap();
        bench.count("sightings") == 0
    })
    .await;
}

#[tokio::test]
async fn a_deleted_row_is_detected_at_the_next_renewal() {
    let bench = SqliteBench::new();
    let client = connected(&bench).await;
    let guard = client.lock("a").ttl(TTL).acquire().await.unwrap();
    bench.driver().execute("DELETE FROM holders", []).unwrap();
    assert_eq!(wait::within_timeout("the loss", guard.lost()).await, LostReason::NotHeld);
}
