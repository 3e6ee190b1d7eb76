//! Leases that expire, are revoked by an operator, or are abandoned because a release fails.

use std::sync::Arc;
use std::time::Duration;

use fencepost_core::{ErrorKind, LostReason, Mode};
use fencepost_testkit::TestBench;
use fencepost_testkit::servers::etcd::{EtcdServer, EtcdServerConfig};
use fencepost_testkit::suite::assert_clean;
use fencepost_testkit::wait;

use crate::actions::{LONG_TTL, SHORT, enqueue, granted, hold, spawn_waiter, until_queued, until_renewed};
use crate::bench::{EtcdBench, Server};
use crate::configurations::give_rights;

/// An operator revokes the lease of a holder: all grants on that lease are lost at once.
#[tokio::test]
async fn a_lease_revoked_by_an_operator_is_lost() {
    let bench = EtcdBench::plain();
    let (client_a, client_b) = (bench.client().await, bench.client().await);
    let guard = hold(&client_a.lock("a").ttl(LONG_TTL)).await;
    let sibling = hold(&client_a.lock("b").ttl(LONG_TTL)).await;
    let next = enqueue(&client_b, client_b.lock("a").ttl(LONG_TTL), "a", 1).await;
    bench.revoke_lease_of(&bench.queue("a")[0]);
    for guard in [&guard, &sibling] {
        assert_eq!(wait::within_timeout("it is lost", guard.lost()).await, LostReason::NotHeld);
    }
    let next = granted(next).await;
    assert!(next.token() > guard.token());
    // The client continues with another lease.
    hold(&client_a.lock("b").ttl(LONG_TTL)).await.release().await.unwrap();
    next.release().await.unwrap();
    assert_clean(&bench).await;
}

/// Scenarios 1 and 2: a waiter whose lease is revoked is not granted with its old key; it joins the queue again, behind all
/// others.
async fn a_waiter_without_a_lease_joins_again(mode: Mode, first: Mode) {
    let bench = EtcdBench::plain();
    let (client_a, client_b) = (bench.client().await, bench.client().await);
    let guard = hold(&client_a.lock("a").mode(first).ttl(LONG_TTL)).await;
    let waiter = enqueue(&client_a, client_b.lock("a").mode(mode).ttl(LONG_TTL), "a", 1).await;
    let key = bench.queue("a")[1].clone();
    let revision = bench.create_revision(&key);
    bench.revoke_lease_of(&key);
    wait::until("it has another key", async || {
        bench
            .queue("a")
            .get(1)
            .and_then(|key| bench.create_revision(key))
            .is_some_and(|new| Some(new) > revision)
    })
    .await;
    assert!(!waiter.is_finished());
    bench.revoke_lease_of(&bench.queue("a")[1]);
    let token = guard.token();
    guard.release().await.unwrap();
    let later = granted(waiter).await;
    assert!(later.token() > token);
    let held = client_a.inspect("a").await.unwrap().holders;
    assert_eq!((held.len(), held[0].token), (1, Some(later.token())));
    later.release().await.unwrap();
    assert_clean(&bench).await;
}

#[tokio::test]
async fn a_waiter_whose_lease_is_revoked_is_not_granted_with_it() {
    a_waiter_without_a_lease_joins_again(Mode::Exclusive, Mode::Exclusive).await;
}

#[tokio::test]
async fn a_shared_waiter_whose_lease_is_revoked_is_not_granted_with_it() {
    a_waiter_without_a_lease_joins_again(Mode::Shared, Mode::Exclusive).await;
}

#[tokio::test]
async fn a_semaphore_waiter_whose_lease_is_revoked_is_not_granted_with_it() {
    a_waiter_without_a_lease_joins_again(Mode::Semaphore { permits: 1 }, Mode::Semaphore { permits: 1 })
        .await;
}

/// An acquire of any kind replaces a lease that was revoked meanwhile, and succeeds.
#[tokio::test]
async fn an_acquire_on_a_revoked_lease_succeeds() {
    let bench = EtcdBench::plain();
    let client = bench.client().await;
    let locks = [
        client.lock("a").ttl(LONG_TTL),
        client.lock("b").mode(Mode::Shared).ttl(LONG_TTL),
        client.lock("c").mode(Mode::Semaphore { permits: 2 }).ttl(LONG_TTL),
        client.lock_any(["d", "e"]).ttl(LONG_TTL),
        client.lock_all(["d", "e"]).ttl(LONG_TTL),
    ];
    for lock in locks {
        let first = hold(&client.lock("first").ttl(LONG_TTL)).await;
        bench.revoke_lease_of(&bench.queue("first")[0]);
        let guard = lock.try_acquire().await.unwrap().expect("it is free");
        guard.release().await.unwrap();
        drop(first);
    }
    assert_clean(&bench).await;
}

/// A lease that was not used for a while is kept alive first, so that a grant gets the whole ttl.
#[tokio::test]
async fn a_grant_on_an_older_lease_has_the_whole_ttl() {
    let bench = EtcdBench::plain();
    let client = bench.client().await;
    let ttl = SHORT * 2;
    for lock in
        [client.lock("a"), client.lock("b").mode(Mode::Semaphore { permits: 2 }), client.lock_any(["c", "d"])]
    {
        hold(&client.lock("first").ttl(ttl)).await.release().await.unwrap();
        wait::elapse(ttl / 2).await;
        let guard = lock.ttl(ttl).try_acquire().await.unwrap().expect("it is free");
        assert!(guard.remaining() > ttl * 7 / 10, "{:?} remaining", guard.remaining());
        guard.release().await.unwrap();
    }
    assert_clean(&bench).await;
}

/// A server with a long election timeout grants longer leases than requested: a grant on one is kept.
#[tokio::test]
async fn a_lease_longer_than_requested_is_kept() {
    let config = EtcdServerConfig::plain().with_option("--election-timeout=5000");
    let (bench, _server) = EtcdBench::on(&config);
    let client = bench.client().await;
    let guard = hold(&client.lock("a").ttl(Duration::from_secs(1))).await;
    assert!(guard.ttl() > Duration::from_secs(4), "{:?}", guard.ttl());
    for _ in 0..4 {
        wait::elapse(Duration::from_millis(500)).await;
        hold(&client.lock("b").ttl(Duration::from_secs(1))).await.release().await.unwrap();
    }
    assert_eq!((guard.lost_reason(), bench.queue("a").len()), (None, 1));
    until_renewed(&guard).await;
    guard.release().await.unwrap();
}

/// Returns a bench as a user with all permissions on a namespace of its own server.
fn with_a_user() -> (EtcdBench, Arc<EtcdServer>) {
    let server = Arc::new(EtcdServer::start(&EtcdServerConfig::plain().with_user("guest", "word")));
    let url = format!("etcd://app:secret@127.0.0.1:{}", server.port());
    let bench = EtcdBench::at(&url, "", Server::Own(server.clone()));
    give_rights(&server, bench.url(), "app", "secret", "");
    (bench, server)
}

fn permit(bench: &EtcdBench, permission: &str) {
    let (role, prefix) = (format!("fencepost-{}", bench.namespace()), format!("{}/", bench.namespace()));
    bench.ctl(&["role", "grant-permission", &role, "--prefix=true", permission, &prefix]);
}

/// A release keeps failing while the lease is kept for other grants: finally the lease is abandoned, and the other grants
/// are lost.
#[tokio::test]
async fn a_release_that_keeps_failing_abandons_the_lease() {
    let (bench, _server) = with_a_user();
    let (client_a, client_b) = (bench.client().await, bench.client().await);
    let (stuck, other) =
        (hold(&client_a.lock("a").ttl(SHORT)).await, hold(&client_a.lock("b").ttl(SHORT)).await);
    let next = enqueue(&client_a, client_b.lock("a").ttl(LONG_TTL), "a", 1).await;
    permit(&bench, "read");
    let error = wait::within_timeout("the release has failed", stuck.release()).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Denied, "{error}");
    assert!(error.hint().is_some_and(|hint| hint.contains("fencepost rights")), "{error}");
    assert_eq!(wait::within_timeout("the other is lost", other.lost()).await, LostReason::Abandoned);
    // The lease expires, and with it the keys that could not be deleted.
    let next = granted(next).await;
    permit(&bench, "readwrite");
    next.release().await.unwrap();
    hold(&client_a.lock("a").ttl(SHORT)).await.release().await.unwrap();
    drop(other);
    assert_clean(&bench).await;
}

/// The same, but the permission is restored in time: the key that was not released is cleaned up, and the other grants are
/// kept.
#[tokio::test]
async fn a_key_that_was_not_released_is_cleaned_up() {
    let (bench, _server) = with_a_user();
    let (client_a, client_b) = (bench.client().await, bench.client().await);
    let (stuck, other) =
        (hold(&client_a.lock("a").ttl(SHORT)).await, hold(&client_a.lock("b").ttl(SHORT)).await);
    let next = enqueue(&client_a, client_b.lock("a").ttl(LONG_TTL), "a", 1).await;
    permit(&bench, "read");
    wait::within_timeout("the release has failed", stuck.release()).await.unwrap_err();
    permit(&bench, "readwrite");
    let next = granted(next).await;
    until_renewed(&other).await;
    assert_eq!(other.lost_reason(), None);
    next.release().await.unwrap();
    other.release().await.unwrap();
    assert_clean(&bench).await;
}

/// Auth tokens expire while a client holds, waits and watches: neither holder nor waiter is affected.
#[tokio::test]
async fn expired_auth_tokens_are_replaced_while_locks_are_held_and_waited_for() {
    let config = EtcdServerConfig::plain().with_user("app", "secret").with_token_ttl(1);
    let server = Arc::new(EtcdServer::start(&config));
    let bench = EtcdBench::at(&server.url_as("app"), "", Server::Own(server.clone()));
    server.ctl(&["user", "grant-role", "app", "root"]);
    let (client_a, client_b) = (bench.client().await, bench.client().await);
    let guard = hold(&client_a.lock("a").ttl(LONG_TTL)).await;
    let waiter = enqueue(&client_a, client_b.lock("a").ttl(LONG_TTL), "a", 1).await;
    let short = hold(&client_b.lock("b").ttl(Duration::from_secs(8))).await;
    // No request is sent for so long.
    wait::elapse(Duration::from_millis(2500)).await;
    until_renewed(&short).await;
    wait::elapse(Duration::from_millis(2300)).await;
    guard.release().await.unwrap();
    granted(waiter).await.release().await.unwrap();
    let late = spawn_waiter(client_b.lock("b").ttl(LONG_TTL));
    until_queued(&client_a, "b", 1).await;
    short.release().await.unwrap();
    granted(late).await.release().await.unwrap();
    assert_clean(&bench).await;
}

/// Every change of a role invalidates all auth tokens: locks are not affected, however often it happens.
#[tokio::test]
async fn frequent_role_changes_do_not_affect_locks() {
    let (bench, server) = with_a_user();
    let client = bench.client().await;
    let guard = hold(&client.lock("kept").ttl(SHORT)).await;
    let changing = std::thread::spawn(move || {
        for number in 0..40 {
            server.ctl(&["role", "add", &format!("role-{number}")]);
        }
    });
    let mut rounds = 0;
    while !changing.is_finished() {
        hold(&client.lock("a").ttl(SHORT)).await.release().await.unwrap();
        rounds += 1;
    }
    changing.join().unwrap();
    assert_eq!(guard.lost_reason(), None, "after {rounds} rounds");
    guard.release().await.unwrap();
    assert_clean(&bench).await;
}
