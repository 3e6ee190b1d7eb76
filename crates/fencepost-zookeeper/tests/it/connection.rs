//! Broken connections: behaviour specific to ZooKeeper; the rest is in the test kit.

use std::sync::{Arc, Mutex};

use fencepost_core::{Client, ErrorKind, Guard, Keep, LostReason, Mode};
use fencepost_testkit::servers::zookeeper::{ZooKeeperServer, ZooKeeperServerConfig};
use fencepost_testkit::suite::assert_clean;
use fencepost_testkit::wait;
use fencepost_testkit::wire::Direction;
use fencepost_testkit::{TestBench, WireBench};
use tokio::task::JoinSet;

use crate::actions::{LONG_TTL, SHORT_TTL, enqueue, granted, hold, spawn_waiter, until_idle};
use crate::bench::ZooKeeperBench;

async fn contenders(bench: &ZooKeeperBench, node: &str) -> usize {
    bench.contenders(&bench.driver().await, node).await.len()
}

/// Scenario 6: the node was created and the connection was lost before the reply; there is one node, and one grant.
#[tokio::test]
async fn a_create_without_a_reply_is_one_node() {
    for query in ["", "?dialect=kazoo", "?dialect=plain"] {
        let bench = ZooKeeperBench::with(fencepost_testkit::servers::zookeeper::shared(), query);
        let (client, other) = (bench.client().await, bench.direct_client().await);
        for round in 1..=3 {
            bench.wire().lose_reply_to(bench.acquire_bytes());
            let guard = hold(&client.lock("a").ttl(SHORT_TTL * 10)).await;
            assert_eq!((bench.wire().replies_lost(), contenders(&bench, "a").await), (round, 1));
            assert_eq!(other.inspect("a").await.unwrap().holders[0].token, Some(guard.token()));
            guard.release().await.unwrap();
            assert_eq!(contenders(&bench, "a").await, 0);
        }
        assert_clean(&bench).await;
    }
}

/// Scenario 34: a try whose create has no reply fails while the connection stays cut; its node is removed after the
/// reconnect.
#[tokio::test]
async fn the_node_of_a_failed_try_is_removed_after_the_reconnect() {
    let bench = ZooKeeperBench::plain();
    let (client, other) = (bench.client().await, bench.direct_client().await);
    // The session and the lock's own node exist already.
    hold(&client.lock("a").ttl(SHORT_TTL * 5)).await.release().await.unwrap();
    bench.wire().one_way(Direction::ToServer);
    let lock = client.lock("a").ttl(SHORT_TTL * 5);
    let failing = tokio::spawn(async move { lock.try_acquire().await });
    wait::until("the node is created", async || contenders(&bench, "a").await == 1).await;
    bench.wire().cut();
    let outcome = wait::within_timeout("the try ends", failing).await.unwrap();
    assert!(matches!(outcome.unwrap_err().kind(), ErrorKind::OutcomeUnknown | ErrorKind::Unreachable));
    bench.wire().heal();
    until_idle(&other, "a").await;
    assert_clean(&bench).await;
}

/// A release whose reply is lost is sent again, and no node remains.
#[tokio::test]
async fn a_release_without_a_reply_leaves_no_node() {
    let bench = ZooKeeperBench::plain();
    let client = bench.client().await;
    for _ in 0..5 {
        let guard = hold(&client.lock("a").ttl(SHORT_TTL * 10)).await;
        bench.wire().lose_reply_to(bench.release_bytes());
        if let Err(error) = guard.release().await {
            assert_eq!(error.kind(), ErrorKind::OutcomeUnknown, "{error}");
        }
        assert_eq!(contenders(&bench, "a").await, 0);
    }
    assert_clean(&bench).await;
}

/// Scenario 7: the server expires a session. Its grants are lost before another client holds their locks, they write no
/// cell, and the client continues with a new session.
#[tokio::test]
async fn grants_are_lost_before_the_server_expires_their_session() {
    let bench = ZooKeeperBench::plain();
    let (client, other) = (bench.client().await, bench.direct_client().await);
    let guard = hold(&client.lock("a").ttl(SHORT_TTL)).await;
    let waiter = enqueue(&other, other.lock("a").ttl(LONG_TTL), "a", 1).await;
    bench.wire().blackhole();
    let next = granted(waiter).await;
    assert!(!guard.is_valid(), "it is valid although the next client holds the lock");
    assert!(guard.write_cell(*b"late", Keep::Always).await.is_err());
    assert_eq!(wait::within_timeout("it is lost", guard.lost()).await, LostReason::Expired);
    bench.wire().heal();
    let again = spawn_waiter(client.lock("a").ttl(SHORT_TTL));
    wait::until("it waits again", async || other.inspect("a").await.unwrap().waiter_count == 1).await;
    let token = next.token();
    next.release().await.unwrap();
    let again = granted(again).await;
    assert!(again.token() > token);
    again.release().await.unwrap();
    assert_clean(&bench).await;
}

/// Scenario 4: the server is down for longer than the session timeout and restarts with the node. No client takes it
/// for a held lock.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_restored_by_a_server_is_not_held() {
    let server = ZooKeeperServer::start(&ZooKeeperServerConfig::plain());
    let bench = ZooKeeperBench::with(&server, "");
    let client = bench.client().await;
    let guard = hold(&client.lock("a").ttl(SHORT_TTL)).await;
    tokio::task::block_in_place(|| server.kill());
    assert_eq!(wait::within_timeout("it is lost", guard.lost()).await, LostReason::Expired);
    tokio::task::block_in_place(|| server.restart());
    let again = hold(&client.lock("a").ttl(SHORT_TTL)).await;
    assert!(!guard.is_valid() && again.token() > guard.token());
    let driver = bench.driver().await;
    let [node] = &bench.contenders(&driver, "a").await[..] else { panic!("one holder and no waiter") };
    let czxid = driver.check_stat(node).await.unwrap().expect("it is held").czxid;
    assert_eq!(u64::try_from(czxid), Ok(again.token().get()));
    again.release().await.unwrap();
    assert_clean(&bench).await;
}

/// Acquires leadership again and again; no other candidate may hold it at the same time.
async fn lead(client: Client, own: usize, guards: Arc<[Mutex<Option<Arc<Guard>>>; 2]>) {
    loop {
        let Ok(guard) = client.lock("a").ttl(SHORT_TTL).acquire().await else { continue };
        let guard = Arc::new(guard);
        let rival = guards[1 - own].lock().unwrap().clone();
        assert!(!rival.is_some_and(|rival| rival.is_valid()), "two lead");
        *guards[own].lock().unwrap() = Some(guard.clone());
        guard.lost().await;
    }
}

/// Scenario 5: the leader and the next candidate lose their sessions and reconnect at the same time. Two never lead,
/// and one does.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_candidates_that_reconnect_at_once_have_one_leader() {
    let bench = ZooKeeperBench::plain();
    let (guards, other) = (Arc::default(), bench.direct_client().await);
    let mut candidates = JoinSet::new();
    for own in 0..2 {
        candidates.spawn(lead(bench.client().await, own, Arc::clone(&guards)));
    }
    for _ in 0..3 {
        wait::until("one leads and one waits", async || {
            let state = other.inspect("a").await.unwrap();
            (state.holders.len(), state.waiter_count) == (1, 1)
        })
        .await;
        bench.wire().blackhole();
        until_idle(&other, "a").await;
        bench.wire().heal();
        assert!(candidates.try_join_next().is_none(), "no candidate ended");
    }
    wait::until("one leads again", async || other.inspect("a").await.unwrap().holders.len() == 1).await;
    candidates.shutdown().await;
    *guards[0].lock().unwrap() = None;
    *guards[1].lock().unwrap() = None;
    assert_clean(&bench).await;
}

/// Waiters of every mode are woken after a reconnect: no periodic check is due before.
#[tokio::test]
async fn waiters_are_woken_after_a_reconnect() {
    for mode in [Mode::Exclusive, Mode::Shared, Mode::Semaphore { permits: 1 }] {
        let bench = ZooKeeperBench::plain();
        let (client, other) = (bench.client().await, bench.direct_client().await);
        let holds = if mode == Mode::Shared { Mode::Exclusive } else { mode };
        let guard = hold(&other.lock("a").ttl(LONG_TTL).mode(holds)).await;
        let waiter = enqueue(&other, client.lock("a").ttl(LONG_TTL).mode(mode), "a", 1).await;
        for _ in 0..3 {
            bench.wire().reset();
            // A grant shows that the client has reconnected.
            hold(&client.lock("b").ttl(LONG_TTL)).await.release().await.unwrap();
        }
        guard.release().await.unwrap();
        granted(waiter).await.release().await.unwrap();
        assert_clean(&bench).await;
    }
}

/// A holder is told that its node was deleted, also after a reconnect.
#[tokio::test]
async fn a_deleted_node_is_noticed_after_a_reconnect() {
    let bench = ZooKeeperBench::plain();
    let client = bench.client().await;
    let guard = hold(&client.lock("a").ttl(LONG_TTL)).await;
    bench.wire().reset();
    hold(&client.lock("b").ttl(LONG_TTL)).await.release().await.unwrap();
    bench.steal(&fencepost_core::LockName::new("a").unwrap()).await;
    assert_eq!(wait::within_timeout("it is lost", guard.lost()).await, LostReason::NotHeld);
}
