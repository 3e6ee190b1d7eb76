//! Connections that break, and what is special about those to ZooKeeper; the rest is in the test kit.

use std::sync::{Arc, Mutex};

use fencepost_core::{Client, ErrorKind, Guard, Keep, LostReason, Mode};
use fencepost_testkit::servers::zookeeper::{ZooKeeperServer, ZooKeeperServerConfig};
use fencepost_testkit::suite::assert_clean;
use fencepost_testkit::wait;
use fencepost_testkit::wire::Direction;
use fencepost_testkit::{TestBench, WireBench};
use tokio::task::JoinSet;

use crate::actions::{LONG_TTL, SHORT, enqueue, granted, hold, spawn_waiter, until_idle};
use crate::bench::ZooKeeperBench;

async fn contenders(bench: &ZooKeeperBench, node: &str) -> usize {
    bench.contenders(&bench.driver().await, node).await.len()
}

/// Scenario 6: the node was made and the connection ended before the answer came; there is one node, and one grant.
#[tokio::test]
async fn a_create_without_an_answer_is_one_node() {
    for more in ["", "?dialect=kazoo", "?dialect=plain"] {
        let bench = ZooKeeperBench::with(fencepost_testkit::servers::zookeeper::shared(), more);
        let (client, other) = (bench.client().await, bench.direct_client().await);
        for round in 1..=3 {
            bench.wire().lose_reply_to(bench.acquire_bytes());
            let guard = hold(&client.lock("a").ttl(SHORT * 10)).await;
            assert_eq!((bench.wire().replies_lost(), contenders(&bench, "a").await), (round, 1));
            assert_eq!(other.inspect("a").await.unwrap().holders[0].token, Some(guard.token()));
            guard.release().await.unwrap();
            assert_eq!(contenders(&bench, "a").await, 0);
        }
        assert_clean(&bench).await;
    }
}

/// Scenario 34: a try whose create was not answered, while the way stays cut, fails; its node goes after the reconnect.
#[tokio::test]
async fn the_node_of_a_failed_try_is_removed_after_the_reconnect() {
    let bench = ZooKeeperBench::plain();
    let (client, other) = (bench.client().await, bench.direct_client().await);
    // The session and the lock's own node are there already.
    hold(&client.lock("a").ttl(SHORT * 5)).await.release().await.unwrap();
    bench.wire().one_way(Direction::ToServer);
    let lock = client.lock("a").ttl(SHORT * 5);
    let failing = tokio::spawn(async move { lock.try_acquire().await });
    wait::until("the node was made", async || contenders(&bench, "a").await == 1).await;
    bench.wire().cut();
    let outcome = wait::within_timeout("the try is over", failing).await.unwrap();
    assert!(matches!(outcome.unwrap_err().kind(), ErrorKind::OutcomeUnknown | ErrorKind::Unreachable));
    bench.wire().heal();
    until_idle(&other, "a").await;
    assert_clean(&bench).await;
}

/// A release whose answer is lost is sent again, and no node stays.
#[tokio::test]
async fn a_release_without_an_answer_leaves_no_node() {
    let bench = ZooKeeperBench::plain();
    let client = bench.client().await;
    for _ in 0..5 {
        let guard = hold(&client.lock("a").ttl(SHORT * 10)).await;
        bench.wire().lose_reply_to(bench.release_bytes());
        if let Err(error) = guard.release().await {
            assert_eq!(error.kind(), ErrorKind::OutcomeUnknown, "{error}");
        }
        assert_eq!(contenders(&bench, "a").await, 0);
    }
    assert_clean(&bench).await;
}

/// Scenario 7: the server ends a session. Its grants are lost before others hold, they write no cell, and the
/// client goes on with a new session.
#[tokio::test]
async fn a_session_that_the_server_ends_loses_its_grants_first() {
    let bench = ZooKeeperBench::plain();
    let (client, other) = (bench.client().await, bench.direct_client().await);
    let guard = hold(&client.lock("a").ttl(SHORT)).await;
    let waiter = enqueue(&other, other.lock("a").ttl(LONG_TTL), "a", 1).await;
    bench.wire().blackhole();
    let next = granted(waiter).await;
    assert!(!guard.is_valid(), "it believes in its lock when the next has it");
    assert!(guard.write_cell(*b"late", Keep::Always).await.is_err());
    assert_eq!(wait::within_timeout("it is lost", guard.lost()).await, LostReason::Expired);
    bench.wire().heal();
    let again = spawn_waiter(client.lock("a").ttl(SHORT));
    wait::until("it asks anew", async || other.inspect("a").await.unwrap().waiter_count == 1).await;
    let token = next.token();
    next.release().await.unwrap();
    let again = granted(again).await;
    assert!(again.token() > token);
    again.release().await.unwrap();
    assert_clean(&bench).await;
}

/// Scenario 4: the server is away for longer than the session and comes back with its node. Nobody takes that for a lock.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_a_server_brings_back_is_not_held() {
    let server = ZooKeeperServer::start(&ZooKeeperServerConfig::plain());
    let bench = ZooKeeperBench::with(&server, "");
    let client = bench.client().await;
    let guard = hold(&client.lock("a").ttl(SHORT)).await;
    tokio::task::block_in_place(|| server.kill());
    assert_eq!(wait::within_timeout("it is lost", guard.lost()).await, LostReason::Expired);
    tokio::task::block_in_place(|| server.restart());
    let again = hold(&client.lock("a").ttl(SHORT)).await;
    assert!(!guard.is_valid() && again.token() > guard.token());
    let driver = bench.driver().await;
    let [node] = &bench.contenders(&driver, "a").await[..] else { panic!("one has it, nobody waits") };
    let made = driver.check_stat(node).await.unwrap().expect("it is held").czxid;
    assert_eq!(u64::try_from(made), Ok(again.token().get()));
    again.release().await.unwrap();
    assert_clean(&bench).await;
}

/// Wants to lead, again and again; nobody else may when it does.
async fn lead(client: Client, own: usize, seats: Arc<[Mutex<Option<Arc<Guard>>>; 2]>) {
    loop {
        let Ok(guard) = client.lock("a").ttl(SHORT).acquire().await else { continue };
        let guard = Arc::new(guard);
        let rival = seats[1 - own].lock().unwrap().clone();
        assert!(!rival.is_some_and(|rival| rival.is_valid()), "two lead");
        *seats[own].lock().unwrap() = Some(guard.clone());
        guard.lost().await;
    }
}

/// Scenario 5: who leads and who waits to lead lose their sessions and come back at once. Never do two lead, and one does.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_that_come_back_at_once_have_one_leader() {
    let bench = ZooKeeperBench::plain();
    let (seats, other) = (Arc::default(), bench.direct_client().await);
    let mut candidates = JoinSet::new();
    for own in 0..2 {
        candidates.spawn(lead(bench.client().await, own, Arc::clone(&seats)));
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
        assert!(candidates.try_join_next().is_none(), "they go on");
    }
    wait::until("one leads again", async || other.inspect("a").await.unwrap().holders.len() == 1).await;
    candidates.shutdown().await;
    *seats[0].lock().unwrap() = None;
    *seats[1].lock().unwrap() = None;
    assert_clean(&bench).await;
}

/// Whoever waits is told of its turn also after a new connection, however it waits: nobody checks before that.
#[tokio::test]
async fn waiters_hear_of_their_turn_after_a_new_connection() {
    for mode in [Mode::Exclusive, Mode::Shared, Mode::Semaphore { permits: 1 }] {
        let bench = ZooKeeperBench::plain();
        let (client, other) = (bench.client().await, bench.direct_client().await);
        let holds = if mode == Mode::Shared { Mode::Exclusive } else { mode };
        let guard = hold(&other.lock("a").ttl(LONG_TTL).mode(holds)).await;
        let waiter = enqueue(&other, client.lock("a").ttl(LONG_TTL).mode(mode), "a", 1).await;
        for _ in 0..3 {
            bench.wire().reset();
            // Whoever has come back answers again.
            hold(&client.lock("b").ttl(LONG_TTL)).await.release().await.unwrap();
        }
        guard.release().await.unwrap();
        granted(waiter).await.release().await.unwrap();
        assert_clean(&bench).await;
    }
}

/// A holder hears that its node was taken also after a new connection.
#[tokio::test]
async fn a_theft_is_heard_of_after_a_new_connection() {
    let bench = ZooKeeperBench::plain();
    let client = bench.client().await;
    let guard = hold(&client.lock("a").ttl(LONG_TTL)).await;
    bench.wire().reset();
    hold(&client.lock("b").ttl(LONG_TTL)).await.release().await.unwrap();
    bench.steal(&fencepost_core::LockName::new("a").unwrap()).await;
    assert_eq!(wait::within_timeout("it is lost", guard.lost()).await, LostReason::NotHeld);
}
