//! Failovers with sentinels: clients find the new primary, and what a failover can lose.

use fencepost_core::LostReason;
use fencepost_testkit::servers::redis::{RedisServerConfig, Sentinels};
use fencepost_testkit::{TestBench, wait};

use crate::actions::{LONG_TTL, enqueue, granted, hold, until_idle, until_renewed_since};
use crate::bench::RedisBench;
use crate::deployments::sentinel_url;

fn on(group: &Sentinels) -> RedisBench {
    RedisBench::at(&sentinel_url(group), "", [group.primary().url()])
}

/// Scenario 52: the primary is killed, and the promoted replica has all data. No client loses a lock or a ticket, although the
/// lock is released before all clients have subscribed again.
#[tokio::test]
async fn a_failover_keeps_locks_and_queues() {
    let group = Sentinels::start();
    let bench = on(&group);
    let (ours, theirs) = (bench.client().await, bench.client().await);
    let guard = hold(&ours.lock("a").ttl(LONG_TTL)).await;
    let first = enqueue(&ours, theirs.lock("a").ttl(LONG_TTL), "a", 1).await;
    let second = enqueue(&ours, ours.lock("a").ttl(LONG_TTL), "a", 2).await;
    group.primary().cli(&["WAIT", "1", "0"]);
    let old = group.kill_primary();
    group.wait_for_promotion(old);
    let token = guard.token();
    wait::within_timeout("it is released", guard.release()).await.unwrap();
    // The waiter that is subscribed first is granted first.
    let turn = async |waiter| {
        let guard = granted(waiter).await;
        let token = guard.token();
        guard.release().await.unwrap();
        token
    };
    let (one, two) = tokio::join!(turn(first), turn(second));
    assert!(one > token && two > token && one != two);
    until_idle(&ours, "a").await;
    let next = hold(&theirs.lock("a").ttl(LONG_TTL)).await;
    assert!(next.token() > one.max(two));
}

/// Scenario 8: the primary is killed before a grant was replicated, and the replica's clock is behind. The holder is notified,
/// and the next grant has a larger token, because the client sends the largest one that it has seen.
#[tokio::test]
async fn a_grant_that_was_lost_in_a_failover_is_followed_by_a_larger_token() {
    let group = Sentinels::start_with(&RedisServerConfig::plain().with_movable_clock());
    let bench = on(&group);
    let (ours, theirs) = (bench.client().await, bench.client().await);
    let first = hold(&ours.lock("a").ttl(LONG_TTL)).await;
    // It is handed over: the client knows the token only from a push.
    let waiter = enqueue(&ours, theirs.lock("a").ttl(LONG_TTL), "a", 1).await;
    first.release().await.unwrap();
    let guard = granted(waiter).await;
    let old = group.primary_port();
    let replica = group.other_than(old);
    replica.shift_clock(-3600);
    group.kill_primary();
    group.wait_for_promotion(old);
    // As on a replica without the grant. Clients that have connected already must connect again.
    replica.cli(&["FLUSHALL"]);
    replica.cli(&["CLIENT", "KILL", "TYPE", "pubsub"]);
    assert_eq!(wait::within_timeout("the lock is lost", guard.lost()).await, LostReason::NotHeld);
    let next = hold(&theirs.lock("a").ttl(LONG_TTL)).await;
    assert!(next.token() > guard.token(), "{:?} {:?}", next.token(), guard.token());
    assert_eq!(next.storage_id(), guard.storage_id());
}

/// The old primary was only paused. When it is resumed it is demoted, and no client writes to it.
#[tokio::test]
async fn an_old_primary_that_returns_is_not_used() {
    let group = Sentinels::start();
    let bench = on(&group);
    let client = bench.client().await;
    let guard = hold(&client.lock("a").ttl(LONG_TTL)).await;
    group.primary().cli(&["WAIT", "1", "0"]);
    let known = guard.valid_until();
    let old = group.pause_primary();
    let new = group.wait_for_promotion(old);
    // A call times out, and the client connects to the new primary.
    let other = hold(&client.lock("b").ttl(LONG_TTL)).await;
    until_renewed_since(&guard, known).await;
    group.server(old).resume();
    wait::until("the old primary follows the new one", async || {
        group.server(old).try_cli(&["ROLE"]).is_ok_and(|role| role.starts_with("slave"))
    })
    .await;
    let third = hold(&client.lock("c").ttl(LONG_TTL)).await;
    let key = format!("{}:l:c", bench.namespace());
    assert_eq!(group.server(new).cli(&["EXISTS", &key]), "1");
    assert!(guard.is_valid() && other.is_valid() && third.token() > other.token());
    assert!(bench.client().await.lock("a").try_acquire().await.unwrap().is_none());
}
