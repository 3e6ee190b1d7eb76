//! Connections that break: who notices, who does not, and what is left behind.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use fencepost_core::{Client, ErrorKind, Guard, Keep, LostReason, Mode};
use fencepost_testkit::TestBench;
use fencepost_testkit::servers::zookeeper::{Setup, ZooKeeperServer};
use fencepost_testkit::suite::assert_clean;
use fencepost_testkit::wait;
use fencepost_testkit::wire::{Direction, Wire};
use tokio::task::JoinSet;

use crate::actors::{LONG, SHORT, connect, granted, hold, joined, until_idle, waiting};
use crate::bench::ZooKeeperBench;

/// What stands in every request that makes a node of a contender, and in no other.
pub(crate) const CREATE: &[u8] = b"\"label\"";
/// What stands in every request about a node that was made: the beginning of its number.
const NODE: &[u8] = b"-lock-00000";

/// A client of the same chroot whose connection is always fine.
async fn bystander(bench: &ZooKeeperBench) -> Client {
    connect(&bench.direct()).await
}

async fn contenders(bench: &ZooKeeperBench, node: &str) -> usize {
    bench.contenders(&bench.driver().await, node).await.len()
}

/// Holds a lock, lets the fault last until half of the lease is nearly gone, and sees that nobody noticed.
async fn goes_unnoticed(break_it: impl FnOnce(&Wire)) {
    let bench = ZooKeeperBench::plain();
    let ttl = SHORT * 4;
    let client = bench.client().await;
    let guard = hold(&client.lock("a").ttl(ttl)).await;
    let token = guard.token();
    break_it(bench.wire());
    wait::until("a renewal is late", async || guard.remaining() < ttl * 6 / 10).await;
    bench.wire().heal();
    wait::until("it is renewed", async || guard.remaining() > ttl * 9 / 10).await;
    assert_eq!((guard.lost_reason(), guard.token()), (None, token));
    guard.release().await.unwrap();
    assert_clean(&bench).await;
}

#[tokio::test]
async fn a_cut_of_less_than_half_a_lease_goes_unnoticed() {
    goes_unnoticed(Wire::cut).await;
}

#[tokio::test]
async fn silence_of_less_than_half_a_lease_goes_unnoticed() {
    goes_unnoticed(Wire::half_open).await;
}

#[tokio::test]
async fn silence_in_one_direction_goes_unnoticed() {
    goes_unnoticed(|wire| wire.one_way(Direction::ToServer)).await;
    goes_unnoticed(|wire| wire.one_way(Direction::ToClient)).await;
}

/// Scenario 6: the node was made and the connection ended before the answer came; there is one node, and one grant.
#[tokio::test]
async fn a_create_without_an_answer_is_one_node() {
    for more in ["", "?dialect=kazoo", "?dialect=plain"] {
        let bench = ZooKeeperBench::with(fencepost_testkit::servers::zookeeper::shared(), more);
        let (client, other) = (bench.client().await, bystander(&bench).await);
        for round in 1..=3 {
            bench.wire().lose_answer_to(CREATE);
            let guard = hold(&client.lock("a").ttl(SHORT * 10)).await;
            assert_eq!((bench.wire().answers_lost(), contenders(&bench, "a").await), (round, 1));
            assert_eq!(other.inspect("a").await.unwrap().holders[0].token, guard.token());
            guard.release().await.unwrap();
            assert_eq!(contenders(&bench, "a").await, 0);
        }
        assert_clean(&bench).await;
    }
}

/// The same for several names, which are made in one step.
#[tokio::test]
async fn creates_of_several_names_without_an_answer_are_one_grant() {
    let bench = ZooKeeperBench::plain();
    let client = bench.client().await;
    for _ in 0..3 {
        bench.wire().lose_answer_to(CREATE);
        let guard = hold(&client.lock_all(["a", "b"]).ttl(SHORT * 10)).await;
        assert_eq!((contenders(&bench, "a").await, contenders(&bench, "b").await), (1, 1));
        guard.release().await.unwrap();
    }
    assert_clean(&bench).await;
}

/// A waiter whose create was not answered has one place.
#[tokio::test]
async fn a_waiters_create_without_an_answer_is_one_place() {
    let bench = ZooKeeperBench::plain();
    let (client, other) = (bench.client().await, bystander(&bench).await);
    let guard = hold(&other.lock("a").ttl(LONG)).await;
    bench.wire().lose_answer_to(CREATE);
    let waiter = joined(&other, client.lock("a").ttl(SHORT * 10), "a", 1).await;
    guard.release().await.unwrap();
    granted(waiter).await.release().await.unwrap();
    assert_clean(&bench).await;
}

/// Scenario 34: a try whose create was not answered, while the way stays cut, fails; its node goes after the reconnect.
#[tokio::test]
async fn the_node_of_a_failed_try_is_removed_after_the_reconnect() {
    let bench = ZooKeeperBench::plain();
    let (client, other) = (bench.client().await, bystander(&bench).await);
    // The session and the lock's own node are there already.
    hold(&client.lock("a").ttl(SHORT * 5)).await.release().await.unwrap();
    bench.wire().one_way(Direction::ToServer);
    let lock = client.lock("a").ttl(SHORT * 5);
    let failing = tokio::spawn(async move { lock.try_acquire().await });
    wait::until("the node was made", async || contenders(&bench, "a").await == 1).await;
    bench.wire().cut();
    let outcome = wait::within_patience("the try is over", failing).await.unwrap();
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
        bench.wire().lose_answer_to(NODE);
        if let Err(error) = guard.release().await {
            assert_eq!(error.kind(), ErrorKind::OutcomeUnknown, "{error}");
        }
        assert_eq!(contenders(&bench, "a").await, 0);
    }
    assert_clean(&bench).await;
}

/// Connections end at every moment of locking and unlocking, and nothing is left of it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn connections_that_end_at_any_moment_leave_no_node() {
    let bench = ZooKeeperBench::plain();
    let client = bench.client().await;
    let workers: Vec<_> = (0..8)
        .map(|number| {
            let lock = client.lock(format!("lock/{}", number % 3)).ttl(SHORT * 5);
            tokio::spawn(async move {
                for _ in 0..12 {
                    if let Ok(guard) = lock.acquire().await {
                        let _ = guard.release().await;
                    }
                }
            })
        })
        .collect();
    while !workers.iter().all(tokio::task::JoinHandle::is_finished) {
        bench.wire().reset();
        wait::passes(Duration::from_millis(30)).await;
    }
    assert_clean(&bench).await;
}

/// Scenario 7: the server ends a session. Its grants are lost before others hold, they write no cell, and the
/// client goes on with a new session.
#[tokio::test]
async fn a_session_that_the_server_ends_loses_its_grants_first() {
    let bench = ZooKeeperBench::plain();
    let (client, other) = (bench.client().await, bystander(&bench).await);
    let guard = hold(&client.lock("a").ttl(SHORT)).await;
    let waiter = joined(&other, other.lock("a").ttl(LONG), "a", 1).await;
    bench.wire().half_open();
    let next = granted(waiter).await;
    assert!(!guard.is_valid(), "it believes in its lock when the next has it");
    assert!(guard.write_cell(*b"late", Keep::Always).await.is_err());
    assert_eq!(wait::within_patience("it is lost", guard.lost()).await, LostReason::Expired);
    bench.wire().heal();
    let again = waiting(client.lock("a").ttl(SHORT));
    wait::until("it asks anew", async || other.inspect("a").await.unwrap().waiters == 1).await;
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
    let server = ZooKeeperServer::start(&Setup::plain());
    let bench = ZooKeeperBench::with(&server, "");
    let client = bench.client().await;
    let guard = hold(&client.lock("a").ttl(SHORT)).await;
    tokio::task::block_in_place(|| server.kill());
    assert_eq!(wait::within_patience("it is lost", guard.lost()).await, LostReason::Expired);
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
    let (seats, other) = (Arc::default(), bystander(&bench).await);
    let mut candidates = JoinSet::new();
    for own in 0..2 {
        candidates.spawn(lead(bench.client().await, own, Arc::clone(&seats)));
    }
    for _ in 0..3 {
        wait::until("one leads and one waits", async || {
            let state = other.inspect("a").await.unwrap();
            (state.holders.len(), state.waiters) == (1, 1)
        })
        .await;
        bench.wire().half_open();
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
    for mode in [Mode::Exclusive, Mode::Shared, Mode::Slots { of: 1 }] {
        let bench = ZooKeeperBench::plain();
        let (client, other) = (bench.client().await, bystander(&bench).await);
        let holds = if mode == Mode::Shared { Mode::Exclusive } else { mode };
        let guard = hold(&other.lock("a").ttl(LONG).mode(holds)).await;
        let waiter = joined(&other, client.lock("a").ttl(LONG).mode(mode), "a", 1).await;
        for _ in 0..3 {
            bench.wire().reset();
            // Whoever has come back answers again.
            hold(&client.lock("b").ttl(LONG)).await.release().await.unwrap();
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
    let guard = hold(&client.lock("a").ttl(LONG)).await;
    bench.wire().reset();
    hold(&client.lock("b").ttl(LONG)).await.release().await.unwrap();
    bench.steal(&fencepost_core::LockName::new("a").unwrap()).await;
    assert_eq!(wait::within_patience("it is lost", guard.lost()).await, LostReason::NotHeld);
}
