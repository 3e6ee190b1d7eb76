//! Servers that die, are paused, lose data, run full or revoke rights.

use std::time::Duration;

use fencepost_core::{ErrorKind, LostReason};
use fencepost_testkit::TestBench;
use fencepost_testkit::servers::redis::{RedisServer, RedisServerConfig, shared};
use fencepost_testkit::suite::assert_clean;
use fencepost_testkit::wait;

use crate::actions::{
    LONG_TTL, SHORT, connect, enqueue, granted, hold, spawn_waiter, until_idle, until_queued, until_renewed,
    until_renewed_since,
};
use crate::bench::RedisBench;

fn on(server: &RedisServer) -> RedisBench {
    RedisBench::at(&server.url(), "", [server.url()])
}

/// Scenario 56: the holder is notified at once, not after a third of its lease; the next token is larger, and the storage id is
/// the same.
#[tokio::test]
async fn a_server_that_restarts_empty_ends_every_hold_at_once() {
    let server = RedisServer::start(&RedisServerConfig::plain());
    let bench = on(&server);
    let (ours, theirs) = (bench.client().await, bench.client().await);
    let guard = hold(&ours.lock("a").ttl(LONG_TTL)).await;
    let waiter = enqueue(&ours, theirs.lock("a").ttl(LONG_TTL), "a", 1).await;
    server.restart();
    assert_eq!(wait::within_timeout("the lock is lost", guard.lost()).await, LostReason::NotHeld);
    let next = granted(waiter).await;
    assert!(next.token() > guard.token());
    assert_eq!(next.storage_id(), guard.storage_id());
    let new_client = bench.client().await;
    assert_eq!(new_client.info().storage_id, guard.storage_id());
    next.release().await.unwrap();
    drop(guard);
    assert_clean(&bench).await;
}

/// A server that persists every write has the lock and its queue after a restart.
#[tokio::test]
async fn a_server_that_persists_keeps_locks_and_queues() {
    let config = RedisServerConfig::plain().with_config("appendonly yes").with_config("appendfsync always");
    let server = RedisServer::start(&config);
    let bench = on(&server);
    let (ours, theirs) = (bench.client().await, bench.client().await);
    let guard = hold(&ours.lock("a").ttl(LONG_TTL)).await;
    let first = enqueue(&ours, theirs.lock("a").ttl(LONG_TTL), "a", 1).await;
    let second = enqueue(&ours, ours.lock("a").ttl(LONG_TTL), "a", 2).await;
    let known = guard.valid_until();
    server.restart();
    until_renewed_since(&guard, known).await;
    wait::until("both are subscribed again", async || bench.listeners().await == Some(2)).await;
    until_queued(&ours, "a", 2).await;
    let token = guard.token();
    guard.release().await.unwrap();
    let first = granted(first).await;
    assert!(first.token() > token && !second.is_finished());
    first.release().await.unwrap();
    granted(second).await.release().await.unwrap();
    assert_clean(&bench).await;
}

/// Scenario 65: a server restarts from a snapshot with a ticket of a live client whose attempt has ended. If the lock is handed
/// over to it, the client releases it.
#[tokio::test]
async fn an_orphan_ticket_of_a_snapshot_does_not_keep_the_lock() {
    let server = RedisServer::start(&RedisServerConfig::plain());
    let bench = on(&server);
    let (ours, theirs) = (bench.client().await, bench.client().await);
    let guard = hold(&ours.lock("a").ttl(LONG_TTL)).await;
    let ended = enqueue(&ours, theirs.lock("a").ttl(LONG_TTL), "a", 1).await;
    server.cli(&["SAVE"]);
    ended.abort();
    until_queued(&ours, "a", 0).await;
    let known = guard.valid_until();
    server.restart();
    until_renewed_since(&guard, known).await;
    wait::until("both are subscribed again", async || bench.listeners().await == Some(2)).await;
    let waiter = enqueue(&ours, ours.lock("a").ttl(LONG_TTL), "a", 2).await;
    guard.release().await.unwrap();
    granted(waiter).await.release().await.unwrap();
    assert_clean(&bench).await;
}

#[tokio::test]
async fn flushed_scripts_are_loaded_again() {
    let group = crate::deployments::watched();
    let url = crate::deployments::sentinel_url(group);
    let replicated = format!("{url}?namespace=test-flushed&replicas=1");
    let server = RedisServer::start(&RedisServerConfig::plain());
    for (url, server) in [(server.url(), &server), (replicated, group.primary())] {
        let client = connect(&url).await;
        let guard = hold(&client.lock("a").ttl(LONG_TTL)).await;
        server.cli(&["SCRIPT", "FLUSH"]);
        assert!(client.lock("a").try_acquire().await.unwrap().is_none());
        server.cli(&["SCRIPT", "FLUSH"]);
        assert_eq!(client.inspect("a").await.unwrap().holders.len(), 1);
        server.cli(&["SCRIPT", "FLUSH"]);
        guard.release().await.unwrap();
        assert!(client.inspect("a").await.unwrap().is_idle());
    }
}

/// A server is paused for longer than a lease: the holder loses the lock in time, and requests that the server executes late
/// are undone.
#[tokio::test]
async fn a_paused_server_loses_the_lock_and_keeps_no_orphan() {
    let server = RedisServer::start(&RedisServerConfig::plain());
    let bench = on(&server);
    let client = bench.client().await;
    let guard = hold(&client.lock("a").ttl(SHORT)).await;
    server.pause();
    let late = spawn_waiter(client.lock("b").ttl(SHORT * 10).wait(Duration::from_millis(300)));
    let other = spawn_waiter(client.lock("c").ttl(SHORT));
    assert_eq!(wait::within_timeout("the lock is lost", guard.lost()).await, LostReason::Expired);
    assert_eq!(late.await.unwrap().unwrap_err().kind(), ErrorKind::WaitTimeout);
    wait::elapse(SHORT).await;
    server.resume();
    let again = hold(&client.lock("a").ttl(SHORT)).await;
    assert!(again.token() > guard.token());
    granted(other).await.release().await.unwrap();
    again.release().await.unwrap();
    drop(guard);
    until_idle(&client, "b").await;
    assert_clean(&bench).await;
}

/// Scenario 42: the server's clock is set back by an hour. Renewals work, the lock of a dead holder expires, tokens grow.
#[tokio::test]
async fn a_clock_that_is_set_back_blocks_no_client() {
    let server = RedisServer::start(&RedisServerConfig::plain().with_movable_clock());
    let bench = on(&server);
    let (dying, proxy) = bench.proxied().await;
    let client = bench.client().await;
    let kept = hold(&client.lock("kept").ttl(SHORT)).await;
    let dead = hold(&dying.lock("dead").ttl(SHORT)).await;
    let waits = enqueue(&client, client.lock("kept").ttl(SHORT), "kept", 1).await;
    let successor = enqueue(&client, client.lock("dead").ttl(SHORT), "dead", 1).await;
    server.shift_clock(-3600);
    proxy.crash();
    let successor = granted(successor).await;
    assert!(successor.token() > dead.token());
    for _ in 0..4 {
        until_renewed(&kept).await;
    }
    let token = kept.token();
    kept.release().await.unwrap();
    let waits = granted(waits).await;
    assert!(waits.token() > token);
    waits.release().await.unwrap();
    successor.release().await.unwrap();
    drop(dead);
    assert_clean(&bench).await;
}

/// The server's clock is set forward: leases expire early, holders notice at their next renewal, waiters are granted the lock,
/// and tokens grow; also when the clock is corrected.
#[tokio::test]
async fn a_clock_that_is_set_forward_expires_leases_early() {
    let server = RedisServer::start(&RedisServerConfig::plain().with_movable_clock());
    let bench = on(&server);
    let (ours, theirs) = (bench.client().await, bench.client().await);
    let guard = hold(&ours.lock("a").ttl(SHORT)).await;
    let waiter = enqueue(&ours, theirs.lock("a").ttl(SHORT), "a", 1).await;
    server.shift_clock(7200);
    assert_eq!(wait::within_timeout("the lock is lost", guard.lost()).await, LostReason::NotHeld);
    let next = granted(waiter).await;
    assert!(next.token() > guard.token());
    server.shift_clock(0);
    until_renewed(&next).await;
    let waiter = enqueue(&ours, ours.lock("a").ttl(SHORT), "a", 1).await;
    let token = next.token();
    next.release().await.unwrap();
    let last = granted(waiter).await;
    assert!(last.token() > token);
    last.release().await.unwrap();
    drop(guard);
    assert_clean(&bench).await;
}

/// Scenario 53: a full server grants no new locks and stores nothing of them; locks that are held are renewed and handed over.
#[tokio::test]
async fn a_full_server_hands_over_and_grants_nothing_new() {
    let server = RedisServer::start(&RedisServerConfig::plain());
    let bench = on(&server);
    let (ours, theirs) = (bench.client().await, bench.client().await);
    let guard = hold(&ours.lock("a").ttl(SHORT)).await;
    let waiter = enqueue(&ours, theirs.lock("a").ttl(LONG_TTL), "a", 1).await;
    server.cli(&["CONFIG", "SET", "maxmemory", "1"]);
    until_renewed(&guard).await;
    for lock in [ours.lock("b"), ours.lock_all(["b", "c"])] {
        let error = lock.try_acquire().await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Backend, "{error}");
        assert!(error.to_string().contains("out of memory"), "{error}");
    }
    let error = wait::within_timeout("the wait is over", theirs.lock("a").acquire()).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Backend, "{error}");
    assert!(ours.inspect("b").await.unwrap().is_idle() && ours.inspect("c").await.unwrap().is_idle());
    let token = guard.token();
    guard.release().await.unwrap();
    let next = granted(waiter).await;
    assert!(next.token() > token);
    next.release().await.unwrap();
    server.cli(&["CONFIG", "SET", "maxmemory", "0"]);
    assert!(ours.lock("b").try_acquire().await.unwrap().is_some());
    assert_clean(&bench).await;
}

/// Scenario 53: the right to publish is revoked. The successor is not notified of its grant, and its heartbeat finds it.
#[tokio::test]
async fn a_lock_is_handed_over_without_the_right_to_publish() {
    let server = RedisServer::start(&RedisServerConfig::plain().with_user("app", "word", "+@all ~* &*"));
    let bench = RedisBench::at(&server.url_as("app"), "", [server.url()]);
    let (ours, theirs) = (bench.client().await, bench.client().await);
    let guard = hold(&ours.lock("a").ttl(LONG_TTL)).await;
    let waiter = enqueue(&ours, theirs.lock("a").ttl(SHORT), "a", 1).await;
    server.cli(&["ACL", "SETUSER", "app", "-publish", "-pubsub"]);
    let token = guard.token();
    guard.release().await.unwrap();
    let next = granted(waiter).await;
    assert!(next.token() > token);
    next.release().await.unwrap();
    assert_clean(&bench).await;
}

/// A right that a release needs is revoked: the release fails, and the lease expires by itself.
#[tokio::test]
async fn a_release_that_is_not_permitted_changes_nothing() {
    let server = RedisServer::start(&RedisServerConfig::plain().with_user("app", "word", "+@all ~* &*"));
    let bench = RedisBench::at(&server.url_as("app"), "", [server.url()]);
    let (ours, theirs) = (bench.client().await, bench.client().await);
    for right in ["mget", "del", "exists", "time"] {
        let guard = hold(&ours.lock(right).ttl(SHORT)).await;
        // A long ttl: it must not check while the right is revoked.
        let waiter = enqueue(&ours, theirs.lock(right).ttl(LONG_TTL), right, 1).await;
        server.cli(&["ACL", "SETUSER", "app", &format!("-{right}")]);
        let error = wait::within_timeout("the release is over", guard.release()).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Denied, "{error}");
        server.cli(&["ACL", "SETUSER", "app", &format!("+{right}")]);
        // The lease of the holder expires by itself.
        granted(waiter).await.release().await.unwrap();
    }
    assert_clean(&bench).await;
}

/// Another program deletes the queue: the waiters are in it again after their next check.
#[tokio::test]
async fn a_deleted_queue_is_restored() {
    let bench = RedisBench::plain();
    let client = bench.client().await;
    let guard = hold(&client.lock("a").ttl(LONG_TTL)).await;
    let first = enqueue(&client, client.lock("a").ttl(SHORT), "a", 1).await;
    let second = enqueue(&client, client.lock("a").ttl(SHORT), "a", 2).await;
    let queue = format!("{}:q:a", bench.namespace());
    assert_eq!(shared().cli(&["DEL", &queue]), "1");
    wait::until("both are in the queue again", async || shared().cli(&["ZCARD", &queue]) == "2").await;
    guard.release().await.unwrap();
    let first = granted(first).await;
    assert!(!second.is_finished());
    first.release().await.unwrap();
    granted(second).await.release().await.unwrap();
    assert_clean(&bench).await;
}
