//! Lost connections, as far as it is specific to Redis; the rest is in the test kit.

use std::time::Duration;

use fencepost_testkit::servers::redis::{RedisServer, RedisServerConfig};
use fencepost_testkit::suite::assert_clean;
use fencepost_testkit::wait;
use fencepost_testkit::{TestBench, WireBench};

use crate::actions::{LONG_TTL, enqueue, granted, hold, spawn_waiter, until_queued};
use crate::bench::RedisBench;

/// The ttl of attempts whose replies may be lost. A tombstone lives for as long, and must expire before the test ends.
const TOMBSTONE_TTL: Duration = Duration::from_secs(12);

/// Scenario 52: a release skips a waiter that is not subscribed, but the waiter keeps its position.
#[tokio::test]
async fn a_waiter_that_is_not_subscribed_keeps_its_position() {
    let bench = RedisBench::plain();
    let (away, other) = (bench.client().await, bench.direct_client().await);
    let guard = hold(&other.lock("a").ttl(TOMBSTONE_TTL)).await;
    let first = enqueue(&other, away.lock("a").ttl(TOMBSTONE_TTL), "a", 1).await;
    let second = enqueue(&other, other.lock("a").ttl(TOMBSTONE_TTL), "a", 2).await;
    let third = enqueue(&other, other.lock("a").ttl(TOMBSTONE_TTL), "a", 3).await;
    bench.wire().cut();
    wait::until("it is not subscribed", async || bench.listeners().await == Some(1)).await;
    guard.release().await.unwrap();
    let second = granted(second).await;
    until_queued(&other, "a", 2).await;
    bench.wire().heal();
    wait::until("it is subscribed again", async || bench.listeners().await == Some(2)).await;
    second.release().await.unwrap();
    let first = granted(first).await;
    until_queued(&other, "a", 1).await;
    first.release().await.unwrap();
    granted(third).await.release().await.unwrap();
    assert_clean(&bench).await;
}

/// After a reconnect all held locks are renewed at once, in a few calls.
#[tokio::test]
async fn a_reconnect_renews_everything_in_a_few_calls() {
    const LOCKS: usize = 500;
    let server = RedisServer::start(&RedisServerConfig::plain());
    let bench = RedisBench::behind_a_wire(&server, "");
    let client = bench.client().await;
    let locks = (0..LOCKS).map(|number| spawn_waiter(client.lock(format!("lock/{number}")).ttl(LONG_TTL)));
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

/// Returns how often the server has executed a command.
pub(crate) fn calls_of(server: &RedisServer, command: &str) -> usize {
    let stats = server.cli(&["INFO", "commandstats"]);
    let line = stats.lines().find_map(|line| line.strip_prefix(&format!("cmdstat_{command}:calls=")));
    let calls = line.and_then(|line| line.split(',').next()).map_or("0", str::trim);
    calls.parse().expect("it is a number")
}

/// An administrator kills the connections of subscribers. They subscribe again, and receive their grants.
#[tokio::test]
async fn killed_connections_are_restored() {
    let server = RedisServer::start(&RedisServerConfig::plain());
    let bench = RedisBench::at(&server.url(), "", [server.url()]);
    let (ours, theirs) = (bench.client().await, bench.client().await);
    let guard = hold(&ours.lock("a").ttl(LONG_TTL)).await;
    let waiter = enqueue(&ours, theirs.lock("a").ttl(LONG_TTL), "a", 1).await;
    for _ in 0..3 {
        let killed: usize = server.cli(&["CLIENT", "KILL", "TYPE", "pubsub"]).parse().unwrap();
        assert_eq!(killed, 2);
        wait::until("both are subscribed again", async || bench.listeners().await == Some(2)).await;
    }
    let token = guard.token();
    guard.release().await.unwrap();
    let next = granted(waiter).await;
    assert!(next.token() > token);
    next.release().await.unwrap();
    assert_clean(&bench).await;
}
