//! Connections that end at any moment, or that only one side believes to be alive.

use fencepost_core::Client;
use fencepost_testkit::databases::{outages, requests};
use fencepost_testkit::servers::postgres::shared;
use fencepost_testkit::{TestBench, WireBench, wait};

use crate::actions::{LONG_TTL, bench_on, connect, enqueue, granted, hold};
use crate::bench::PostgresBench;

#[tokio::test]
async fn a_free_lock_is_acquired_and_released_by_one_request_each() {
    requests::a_free_lock_is_acquired_and_released_by_one_request_each(&PostgresBench::plain()).await;
}

#[tokio::test]
async fn every_operation_is_one_request() {
    requests::every_operation_is_one_request(&PostgresBench::plain()).await;
}

#[tokio::test]
async fn terminated_connections_lose_nothing() {
    let bench = bench_on(shared());
    let driver = bench.driver().await;
    let terminate = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = $1";
    outages::ended_connections_lose_nothing(&bench, async || {
        driver.query(terminate, &[&bench.namespace()]).await.unwrap().len()
    })
    .await;
}

#[tokio::test]
async fn many_clients_that_start_at_once_create_the_schema_once() {
    let bench = bench_on(shared());
    let clients = (0..10).map(|_| fencepost_postgres::connect(bench.url()));
    let clients = futures_util::future::join_all(clients).await;
    let clients: Vec<Client> = clients.into_iter().map(|client| client.expect("it connects")).collect();
    let ids: Vec<_> = clients.iter().map(|client| client.info().storage_id).collect();
    assert!(ids.iter().all(|id| *id == ids[0]), "{ids:?}");
    for client in &clients {
        hold(&client.lock("a").ttl(LONG_TTL)).await.release().await.unwrap();
    }
}

/// The connection on which a client listens is dead, and the server does not notice it. The client listens on a new one, and
/// pushes arrive there.
#[tokio::test]
async fn pushes_arrive_although_the_server_believes_an_old_connection_to_be_alive() {
    let bench = PostgresBench::plain();
    let (client, other) = (bench.client().await, bench.direct_client().await);
    let guard = hold(&other.lock("a").ttl(LONG_TTL)).await;
    let waiter = enqueue(&other, client.lock("a").ttl(LONG_TTL), "a", 1).await;
    bench.wire().strand(b"no request contains this");
    let driver = bench.driver().await;
    let listening =
        "SELECT count(*) FROM pg_stat_activity WHERE application_name = $1 AND query LIKE '%advisory_lock%'";
    wait::until("it listens on another connection", async || {
        driver.query_one(listening, &[&bench.namespace()]).await.unwrap().get::<_, i64>(0) == 1
    })
    .await;
    guard.release().await.unwrap();
    granted(waiter).await.release().await.unwrap();
}

/// Scenario 35: the connections of a client end at any moment between connecting and releasing, in the middle of a message as
/// well. It reconnects, and nothing stays behind.
#[tokio::test]
async fn connections_cut_after_any_number_of_bytes() {
    fencepost_testkit::cutter::cut_everywhere(&PostgresBench::plain(), 40).await;
}

/// A client that is idle has at most two connections, for calls and for pushes; a busy one at most four.
#[tokio::test]
async fn a_client_has_few_connections() {
    let bench = bench_on(shared());
    let client = connect(&bench).await;
    let driver = bench.driver().await;
    let sql = "SELECT count(*) FROM pg_stat_activity WHERE application_name = $1";
    let count = async || driver.query_one(sql, &[&bench.namespace()]).await.unwrap().get::<_, i64>(0);
    assert!(count().await <= 2, "{}", count().await);
    let guard = hold(&client.lock("a").ttl(LONG_TTL)).await;
    let waiter = enqueue(&client, client.lock("a").ttl(LONG_TTL), "a", 1).await;
    wait::until("it listens", async || bench.listeners().await == Some(1)).await;
    assert!(count().await <= 3, "one more for a query at the same time");
    let locks: Vec<_> = (0..500).map(|number| client.lock(format!("{number}")).ttl(LONG_TTL)).collect();
    let turns = locks.iter().map(async |lock| hold(lock).await.release().await.unwrap());
    let (_, most) = tokio::join!(futures_util::future::join_all(turns), count());
    assert!(most.max(count().await) <= 4, "{most}");
    guard.release().await.unwrap();
    granted(waiter).await.release().await.unwrap();
    client.close().await;
    wait::until("all connections are closed", async || count().await == 0).await;
}
