//! What ends a connection: administrators and restarts.

use fencepost_testkit::actions::{LONG_TTL, enqueue, granted, hold};
use fencepost_testkit::databases::outages;
use fencepost_testkit::servers::mariadb::MariadbServerConfig;
use fencepost_testkit::{TestBench, wait};

use super::NamedBench;

/// A waiter whose connection is killed, or whose wait is interrupted, waits again.
#[tokio::test(flavor = "multi_thread")]
async fn a_killed_waiter_waits_again() {
    let bench = NamedBench::plain();
    let client = bench.client().await;
    let guard = hold(&client.lock("a").ttl(LONG_TTL)).await;
    let waiter = enqueue(&client, client.lock("a").ttl(LONG_TTL), "a", 1).await;
    for end in ["KILL", "KILL QUERY"] {
        let waiting = bench.connections("a", 0).await;
        assert_eq!(waiting.len(), 1);
        bench.sql(&format!("{end} {}", waiting[0])).await;
        wait::until("it waits on another connection", async || {
            let now = bench.connections("a", 0).await;
            now.len() == 1 && now != waiting && client.inspect("a").await.unwrap().waiter_count == 1
        })
        .await;
    }
    guard.release().await.unwrap();
    granted(waiter).await.release().await.unwrap();
}

/// Scenario 35: the connections of a client end at any moment between connecting and releasing.
#[tokio::test(flavor = "multi_thread")]
async fn connections_cut_after_any_number_of_bytes() {
    fencepost_testkit::cutter::cut_sessions_everywhere(&NamedBench::plain(), 40).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn locks_end_with_the_server() {
    let bench = NamedBench::on(&MariadbServerConfig::plain());
    outages::locks_in_sessions_end_with_the_server(&bench, bench.server()).await;
}

/// Tokens follow the clock of the server, and grow although it is set back and the server restarted.
#[tokio::test(flavor = "multi_thread")]
async fn tokens_grow_although_the_clock_is_set_back() {
    let bench = NamedBench::on(&MariadbServerConfig::plain().with_movable_clock());
    let client = bench.client().await;
    let mut last = hold(&client.lock("a")).await.token();
    let micros = "SELECT CAST(UNIX_TIMESTAMP(SYSDATE(6)) * 1000000 AS UNSIGNED)";
    let micros: u64 = bench.sql(micros).await.parse().unwrap();
    assert!(last.get() > micros - 60_000_000 && last.get() <= micros, "{last} is not near {micros}");
    for shift in [-3600, -7200, 0, 3600, -3600] {
        bench.server().shift_clock(shift);
        bench.server().restart();
        let client = bench.client().await;
        let next = hold(&client.lock("a")).await.token();
        assert!(next > last, "{next} after {last} at {shift}");
        last = next;
    }
}
