//! Connections that end at any moment, or that only one side believes to be alive.

use std::time::Duration;

use fencepost_core::clock::Clock;
use fencepost_testkit::databases::{outages, requests};
use fencepost_testkit::servers::mariadb::MariadbServerConfig;
use fencepost_testkit::{TestBench, WireBench, wait};
use mysql_async::prelude::Queryable;

use crate::actions::{LONG_TTL, hold};
use crate::bench::MariadbBench;

/// Scenario 35: the connections of a client end at any moment between connecting and releasing, in the middle of a message as
/// well: in the requests of a flight, and in their replies. It reconnects, and nothing stays behind.
#[tokio::test]
async fn connections_cut_after_any_number_of_bytes() {
    fencepost_testkit::cutter::cut_everywhere(&MariadbBench::plain(), 40).await;
}

#[tokio::test]
async fn a_free_lock_is_acquired_and_released_by_one_request_each() {
    requests::a_free_lock_is_acquired_and_released_by_one_request_each(&MariadbBench::plain()).await;
}

#[tokio::test]
async fn killed_connections_lose_nothing() {
    let bench = MariadbBench::on(&MariadbServerConfig::plain());
    outages::ended_connections_lose_nothing(&bench, async || {
        let ids = bench.try_sql(CONNECTIONS).await.unwrap();
        for id in ids.lines() {
            // It may have ended meanwhile.
            let _ = bench.try_sql(&format!("KILL {id}")).await;
        }
        ids.lines().count()
    })
    .await;
}

const CONNECTIONS: &str =
    "SELECT ID FROM information_schema.PROCESSLIST WHERE ID <> CONNECTION_ID() AND COMMAND <> 'Daemon'";

/// The statements of flights are killed, again and again, not their connections: flights are repeated, or their outcome is found
/// out. No lock has two holders, and none is lost.
#[tokio::test]
async fn killed_statements_lose_nothing() {
    let bench = MariadbBench::on(&MariadbServerConfig::plain());
    let client = bench.client().await;
    let ttl = Duration::from_secs(3);
    let kept = hold(&client.lock("kept").ttl(LONG_TTL)).await;
    let turns = async {
        let mut newest = kept.token();
        for _ in 0..50 {
            // Its outcome may be unknown; then it is undone.
            let Ok(guard) = client.lock("a").ttl(ttl).acquire().await else { continue };
            assert!(guard.token() > newest);
            newest = guard.token();
            if let Err(error) = guard.release().await {
                assert_eq!(error.kind(), fencepost_core::ErrorKind::OutcomeUnknown, "{error:?}");
            }
        }
    };
    let sql = format!("{CONNECTIONS} AND COMMAND = 'Query'");
    let (mut driver, mut killed) = (bench.driver().await, 0);
    let killing = async {
        loop {
            let ids: Vec<u64> = driver.query(&sql).await.unwrap();
            for id in ids {
                // It may have ended meanwhile.
                killed += usize::from(driver.query_drop(format!("KILL QUERY {id}")).await.is_ok());
            }
        }
    };
    let turns = async {
        tokio::select! {
            () = turns => {}
            () = killing => {}
        }
    };
    wait::within_timeout("the turns end", turns).await;
    println!("{killed} statements were killed");
    assert!(killed > 0);
    hold(&client.lock("a").ttl(ttl)).await.release().await.unwrap();
    assert!(kept.is_valid());
    kept.release().await.unwrap();
}

/// A client stops between the two requests of a flight that is not plain, with the rows of its locks locked. The server ends its transaction after two
/// seconds; another client then acquires the lock, which the first had not been granted.
#[tokio::test]
async fn a_client_that_stops_between_its_requests_blocks_a_lock_for_seconds() {
    let bench = MariadbBench::plain();
    let (stopped, client) = (bench.client().await, bench.direct_client().await);
    // After the first one, a sweep may use its connection; then the second one leaves another.
    for _ in 0..2 {
        hold(&stopped.lock("b").ttl(LONG_TTL)).await.release().await.unwrap();
    }
    let mut driver = bench.driver().await;
    // The request that locks the row arrives; its reply does not, nor does anything after it.
    bench.wire().one_way(fencepost_testkit::wire::Direction::ToServer);
    let lock = stopped.lock_all(["a", "b"]).ttl(LONG_TTL);
    let acquiring = tokio::spawn(async move { lock.acquire().await });
    let row = bench.with_tables("SELECT name FROM {locks} WHERE name = 'a' FOR UPDATE NOWAIT");
    wait::until("its row is locked", async || driver.query_drop(&row).await.is_err()).await;
    let (clock, other) = (Clock::system(), hold(&client.lock("other").ttl(LONG_TTL)).await);
    let sent = clock.now();
    let guard = hold(&client.lock("a").ttl(LONG_TTL)).await;
    let waited = clock.now().since(sent);
    println!("acquired after {waited:?}");
    assert!(waited < Duration::from_secs(20), "{waited:?}");
    assert!(!acquiring.is_finished());
    acquiring.abort();
    bench.wire().heal();
    guard.release().await.unwrap();
    other.release().await.unwrap();
}
