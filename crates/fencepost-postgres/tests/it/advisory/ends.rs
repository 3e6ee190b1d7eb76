//! What ends a session: administrators, restarts, failovers.

use std::time::Duration;

use fencepost_core::LostReason;
use fencepost_testkit::actions::{LONG_TTL, enqueue, granted, hold};
use fencepost_testkit::databases::outages;
use fencepost_testkit::servers::postgres::{PostgresPair, PostgresServer, PostgresServerConfig, Replication};
use fencepost_testkit::{TestBench, wait};

use super::AdvisoryBench;

/// Scenario 35: the sessions of a client end at any moment between connecting and releasing.
#[tokio::test(flavor = "multi_thread")]
async fn connections_cut_after_any_number_of_bytes() {
    fencepost_testkit::cutter::cut_sessions_everywhere(&AdvisoryBench::plain(), 40).await;
}

/// A waiter whose session is terminated waits in a new one.
#[tokio::test(flavor = "multi_thread")]
async fn a_terminated_waiter_waits_again() {
    let bench = AdvisoryBench::plain();
    let client = bench.client().await;
    let guard = hold(&client.lock("a").ttl(LONG_TTL)).await;
    let waiter = enqueue(&client, client.lock("a").ttl(LONG_TTL), "a", 1).await;
    let driver = bench.driver().await;
    let mut last = None;
    for end in ["pg_terminate_backend", "pg_cancel_backend"] {
        let sql = format!(
            "SELECT pid, {end}(pid) FROM pg_locks WHERE locktype = 'advisory' AND NOT granted AND pid IN \
            (SELECT pid FROM pg_stat_activity WHERE application_name = $1)"
        );
        let mut ended = last;
        wait::until("another session waits, and is ended", async || {
            let found = driver.query_opt(&sql, &[&bench.namespace()]).await.unwrap();
            ended = found.map(|row| row.get::<_, i32>(0));
            ended.is_some() && ended != last
        })
        .await;
        last = ended;
    }
    guard.release().await.unwrap();
    granted(waiter).await.release().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn locks_end_with_the_server() {
    let server = PostgresServer::start(&PostgresServerConfig::plain());
    outages::locks_in_sessions_end_with_the_server(&AdvisoryBench::on(&server, ""), &server).await;
}

/// A standby that is promoted knows no advisory locks of the primary before it, but its tokens are larger.
#[tokio::test(flavor = "multi_thread")]
async fn a_promoted_standby_grants_larger_tokens() {
    let pair = PostgresPair::start(Replication::Asynchronous);
    let url = format!("{}?mode=advisory", pair.primary().url("postgres"));
    let url = url.replace("/postgres?", &format!(",127.0.0.1:{}/postgres?", pair.standby().port()));
    let client = fencepost_postgres::connect(&url).await.unwrap();
    let guard = hold(&client.lock("a").ttl(LONG_TTL)).await;
    let waiter = enqueue(&client, client.lock("a").ttl(Duration::from_secs(2)), "a", 1).await;
    pair.wait_until_caught_up();
    pair.primary().kill();
    let reason = wait::within_timeout("the lock is lost", guard.lost()).await;
    assert_eq!(reason, LostReason::NotHeld);
    pair.promote();
    let next = granted(waiter).await;
    assert!(next.token() > guard.token());
    next.release().await.unwrap();
}
