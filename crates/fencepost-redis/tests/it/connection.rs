//! Connections that break: who notices, who does not, and what is left behind.

use std::time::Duration;

use fencepost_core::clock::Clock;
use fencepost_core::{Client, ErrorKind, LostReason};
use fencepost_testkit::servers::redis::{RedisServer, Setup};
use fencepost_testkit::suite::assert_clean;
use fencepost_testkit::wait;
use fencepost_testkit::wire::{Direction, Wire};
use fencepost_testkit::{TestBench, servers};

use crate::actors::{LONG, SHORT, connect, granted, hold, in_line, joined, renewed, until_idle, waiting};
use crate::bench::RedisBench;

/// A client of the same namespace whose connection is always fine.
async fn bystander(bench: &RedisBench) -> Client {
    let server = servers::redis::shared();
    connect(&format!("{}?namespace={}", server.url(), bench.namespace())).await
}

/// Holds a lock, lets the fault last until half of the lease is nearly gone, and sees that nobody noticed.
async fn goes_unnoticed(break_it: impl FnOnce(&Wire)) {
    let bench = RedisBench::plain();
    let ttl = SHORT * 2;
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

/// What is slow but steady costs nothing, for as long as it lasts.
#[tokio::test]
async fn a_slow_wire_keeps_its_locks() {
    for slow in [|wire: &Wire| wire.delay(Duration::from_millis(60)), |wire: &Wire| wire.drip(4000)] {
        let bench = RedisBench::plain();
        let client = bench.client().await;
        let guard = hold(&client.lock("a").ttl(SHORT)).await;
        slow(bench.wire());
        for _ in 0..4 {
            renewed(&guard).await;
        }
        guard.release().await.unwrap();
        bench.wire().heal();
        assert_clean(&bench).await;
    }
}

/// Scenario 20: nothing is heard any more, and the lock is lost at its deadline, not when a call gives up.
#[tokio::test]
async fn a_silent_wire_loses_the_lock_at_its_deadline() {
    let bench = RedisBench::plain();
    let clock = Clock::system();
    let client = bench.client().await;
    let guard = hold(&client.lock("a").ttl(SHORT)).await;
    bench.wire().half_open();
    assert_eq!(wait::within_patience("the lock is lost", guard.lost()).await, LostReason::Expired);
    assert!(clock.now() >= guard.valid_until(), "it was lost too early");
    assert!(clock.now() < guard.valid_until() + SHORT, "it was lost too late");
    assert!(!guard.is_valid());
    bench.wire().heal();
    let again = hold(&client.lock("a").ttl(SHORT)).await;
    assert!(again.token() > guard.token());
    again.release().await.unwrap();
    drop(guard);
    assert_clean(&bench).await;
}

/// The answer to an acquire is lost with its connection: it is sent again, and there is one grant.
#[tokio::test]
async fn an_acquire_without_an_answer_is_one_grant() {
    let bench = RedisBench::plain();
    let (client, other) = (bench.client().await, bystander(&bench).await);
    for _ in 0..5 {
        bench.wire().lose_answer_to(b"EVALSHA");
        let guard = hold(&client.lock("a").ttl(SHORT * 10)).await;
        let holders = other.inspect("a").await.unwrap().holders;
        assert_eq!((holders.len(), holders[0].token), (1, guard.token()));
        guard.release().await.unwrap();
    }
    assert_eq!(bench.wire().answers_lost(), 5);
    assert_clean(&bench).await;
}

/// Whoever asked has gone when the connection is back: what was granted meanwhile is given back.
#[tokio::test]
async fn an_acquire_that_nobody_waits_for_any_more_leaves_no_ghost() {
    let bench = RedisBench::plain();
    let (client, other) = (bench.client().await, bystander(&bench).await);
    bench.wire().one_way(Direction::ToServer);
    let given_up = client.lock("a").ttl(LONG).wait(Duration::from_millis(200)).acquire().await;
    assert_eq!(given_up.unwrap_err().kind(), ErrorKind::WaitedOut);
    let dropped = waiting(client.lock("b").ttl(LONG));
    wait::until("the server has heard of it", async || !other.inspect("b").await.unwrap().holders.is_empty())
        .await;
    dropped.abort();
    bench.wire().heal();
    until_idle(&other, "a").await;
    until_idle(&other, "b").await;
    assert_clean(&bench).await;
}

/// The answer to a release is lost: it has taken place, the next holder is left alone, and nobody is told of a loss.
#[tokio::test]
async fn a_release_without_an_answer_is_no_loss() {
    let bench = RedisBench::plain();
    let (client, other) = (bench.client().await, bystander(&bench).await);
    for _ in 0..5 {
        let guard = hold(&client.lock("a").ttl(SHORT * 10)).await;
        let token = guard.token();
        let waiter = joined(&other, other.lock("a").ttl(LONG), "a", 1).await;
        bench.wire().lose_answer_to(b"EVALSHA");
        let outcome = wait::within_patience("the release is over", guard.release()).await;
        if let Err(error) = outcome {
            assert_eq!(error.kind(), ErrorKind::OutcomeUnknown, "{error}");
        }
        let next = granted(waiter).await;
        assert!(next.token() > token && next.is_valid());
        assert_eq!(other.inspect("a").await.unwrap().holders[0].token, next.token());
        next.release().await.unwrap();
    }
    assert_eq!(bench.wire().answers_lost(), 5);
    assert_clean(&bench).await;
}

/// A connection that is replaced costs nobody his place, whoever comes while it is away.
#[tokio::test]
async fn waiters_keep_their_places_over_a_reset() {
    let bench = RedisBench::plain();
    let (client, other) = (bench.client().await, bystander(&bench).await);
    let guard = hold(&other.lock("a").ttl(LONG)).await;
    let first = joined(&other, client.lock("a").ttl(LONG), "a", 1).await;
    let second = joined(&other, client.lock("a").ttl(LONG), "a", 2).await;
    bench.wire().reset();
    let third = joined(&other, other.lock("a").ttl(LONG), "a", 3).await;
    bench.wire().reset();
    wait::until("it listens again", async || bench.listeners().await == Some(2)).await;
    let mut newest = guard.token();
    guard.release().await.unwrap();
    for waiter in [first, second, third] {
        let guard = granted(waiter).await;
        assert!(guard.token() > newest, "somebody was overtaken");
        newest = guard.token();
        guard.release().await.unwrap();
    }
    assert_clean(&bench).await;
}

/// Scenario 52: a release passes over a waiter that does not listen, but does not cost it its place.
#[tokio::test]
async fn a_waiter_that_does_not_listen_keeps_its_place() {
    let bench = RedisBench::plain();
    let (away, other) = (bench.client().await, bystander(&bench).await);
    let guard = hold(&other.lock("a").ttl(LONG)).await;
    let first = joined(&other, away.lock("a").ttl(LONG), "a", 1).await;
    let second = joined(&other, other.lock("a").ttl(LONG), "a", 2).await;
    let third = joined(&other, other.lock("a").ttl(LONG), "a", 3).await;
    bench.wire().cut();
    wait::until("it does not listen", async || bench.listeners().await == Some(1)).await;
    guard.release().await.unwrap();
    let second = granted(second).await;
    in_line(&other, "a", 2).await;
    bench.wire().heal();
    wait::until("it listens again", async || bench.listeners().await == Some(2)).await;
    second.release().await.unwrap();
    let first = granted(first).await;
    in_line(&other, "a", 1).await;
    first.release().await.unwrap();
    granted(third).await.release().await.unwrap();
    assert_clean(&bench).await;
}

/// Nobody listens at all when the lock becomes free: whoever comes back first in line gets it at once.
#[tokio::test]
async fn a_lock_that_became_free_while_nobody_listened_is_found() {
    let bench = RedisBench::plain();
    let (away, other) = (bench.client().await, bystander(&bench).await);
    let guard = hold(&other.lock("a").ttl(LONG)).await;
    let waiter = joined(&other, away.lock("a").ttl(LONG), "a", 1).await;
    bench.wire().cut();
    wait::until("it does not listen", async || bench.listeners().await == Some(1)).await;
    guard.release().await.unwrap();
    assert!(other.inspect("a").await.unwrap().holders.is_empty());
    bench.wire().heal();
    granted(waiter).await.release().await.unwrap();
    assert_clean(&bench).await;
}

/// When a connection is back, all that is held is renewed at once, in a handful of calls.
#[tokio::test]
async fn a_reconnect_renews_everything_in_a_handful_of_calls() {
    const LOCKS: usize = 500;
    let server = RedisServer::start(&Setup::plain());
    let bench = RedisBench::behind_a_wire(&server, "");
    let client = bench.client().await;
    let locks = (0..LOCKS).map(|number| waiting(client.lock(format!("lock/{number}")).ttl(LONG)));
    let mut guards = Vec::new();
    for lock in locks.collect::<Vec<_>>() {
        guards.push(granted(lock).await);
    }
    let before: Vec<_> = guards.iter().map(fencepost_core::Guard::valid_until).collect();
    server.cli(&["CONFIG", "RESETSTAT"]);
    bench.wire().reset();
    wait::until("all are renewed", async || {
        guards.iter().zip(&before).all(|(guard, before)| guard.valid_until() > *before)
    })
    .await;
    let calls = calls_of(&server, "evalsha");
    assert!(calls <= LOCKS / 50, "{calls} calls for {LOCKS} renewals");
    client.close().await;
    assert_clean(&bench).await;
}

/// How often the server has executed a command.
pub(crate) fn calls_of(server: &RedisServer, command: &str) -> usize {
    let stats = server.cli(&["INFO", "commandstats"]);
    let line = stats.lines().find_map(|line| line.strip_prefix(&format!("cmdstat_{command}:calls=")));
    let calls = line.and_then(|line| line.split(',').next()).map_or("0", str::trim);
    calls.parse().expect("it is a number")
}

/// An operator kills what listens. It listens again, and hears of its turn.
#[tokio::test]
async fn killed_connections_come_back() {
    let server = RedisServer::start(&Setup::plain());
    let bench = RedisBench::at(&server.url(), "", [server.url()]);
    let (ours, theirs) = (bench.client().await, bench.client().await);
    let guard = hold(&ours.lock("a").ttl(LONG)).await;
    let waiter = joined(&ours, theirs.lock("a").ttl(LONG), "a", 1).await;
    for _ in 0..3 {
        let killed: usize = server.cli(&["CLIENT", "KILL", "TYPE", "pubsub"]).parse().unwrap();
        assert_eq!(killed, 2);
        wait::until("both listen again", async || bench.listeners().await == Some(2)).await;
    }
    let token = guard.token();
    guard.release().await.unwrap();
    let next = granted(waiter).await;
    assert!(next.token() > token);
    next.release().await.unwrap();
    assert_clean(&bench).await;
}
