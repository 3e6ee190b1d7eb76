//! Leases that end by themselves, by an operator's hand, or because what hangs on them cannot be given back.

use std::sync::Arc;
use std::time::Duration;

use fencepost_core::{ErrorKind, LostReason, Mode};
use fencepost_testkit::TestBench;
use fencepost_testkit::servers::etcd::{EtcdServer, EtcdServerConfig};
use fencepost_testkit::suite::assert_clean;
use fencepost_testkit::wait;

use crate::actions::{LONG_TTL, SHORT, enqueue, granted, hold, spawn_waiter, until_queued, until_renewed};
use crate::bench::{EtcdBench, Server};
use crate::setups::give_rights;

/// An operator revokes the lease of a holder: it learns of it at once, as do the other holders on it.
#[tokio::test]
async fn a_lease_revoked_by_hand_is_lost() {
    let bench = EtcdBench::plain();
    let (ours, theirs) = (bench.client().await, bench.client().await);
    let guard = hold(&ours.lock("a").ttl(LONG_TTL)).await;
    let sibling = hold(&ours.lock("b").ttl(LONG_TTL)).await;
    let next = enqueue(&theirs, theirs.lock("a").ttl(LONG_TTL), "a", 1).await;
    bench.revoke_lease_of(&bench.line("a")[0]);
    for guard in [&guard, &sibling] {
        assert_eq!(wait::within_timeout("it is lost", guard.lost()).await, LostReason::NotHeld);
    }
    let next = granted(next).await;
    assert!(next.token() > guard.token());
    // The client goes on with another lease.
    hold(&ours.lock("b").ttl(LONG_TTL)).await.release().await.unwrap();
    next.release().await.unwrap();
    assert_clean(&bench).await;
}

/// Scenarios 1 and 2: a waiter whose lease is gone is never held by what it had; it stands in line again, behind all others.
async fn a_waiter_without_a_lease_asks_anew(mode: Mode, first: Mode) {
    let bench = EtcdBench::plain();
    let (ours, theirs) = (bench.client().await, bench.client().await);
    let guard = hold(&ours.lock("a").mode(first).ttl(LONG_TTL)).await;
    let waiter = enqueue(&ours, theirs.lock("a").mode(mode).ttl(LONG_TTL), "a", 1).await;
    let key = bench.line("a")[1].clone();
    let revision = bench.made(&key);
    bench.revoke_lease_of(&key);
    wait::until("it has another key", async || {
        bench.line("a").get(1).and_then(|key| bench.made(key)).is_some_and(|anew| Some(anew) > revision)
    })
    .await;
    assert!(!waiter.is_finished());
    bench.revoke_lease_of(&bench.line("a")[1]);
    let token = guard.token();
    guard.release().await.unwrap();
    let later = granted(waiter).await;
    assert!(later.token() > token);
    let held = ours.inspect("a").await.unwrap().holders;
    assert_eq!((held.len(), held[0].token), (1, Some(later.token())));
    later.release().await.unwrap();
    assert_clean(&bench).await;
}

#[tokio::test]
async fn a_waiter_whose_lease_is_revoked_is_never_held() {
    a_waiter_without_a_lease_asks_anew(Mode::Exclusive, Mode::Exclusive).await;
}

#[tokio::test]
async fn a_reader_whose_lease_is_revoked_is_never_held() {
    a_waiter_without_a_lease_asks_anew(Mode::Shared, Mode::Exclusive).await;
}

#[tokio::test]
async fn a_slot_is_not_given_to_a_lease_that_is_revoked() {
    a_waiter_without_a_lease_asks_anew(Mode::Semaphore { permits: 1 }, Mode::Semaphore { permits: 1 }).await;
}

/// Whatever is asked for, a lease that has gone meanwhile is replaced, and nobody is told.
#[tokio::test]
async fn a_try_on_a_lease_that_is_gone_succeeds() {
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
        bench.revoke_lease_of(&bench.line("first")[0]);
        let guard = lock.try_acquire().await.unwrap().expect("it is free");
        guard.release().await.unwrap();
        drop(first);
    }
    assert_clean(&bench).await;
}

/// Of a lease that was not used for a while the whole is given, not what is left.
#[tokio::test]
async fn a_grant_on_an_older_lease_lasts_its_whole_ttl() {
    let bench = EtcdBench::plain();
    let client = bench.client().await;
    let ttl = SHORT * 2;
    for lock in
        [client.lock("a"), client.lock("b").mode(Mode::Semaphore { permits: 2 }), client.lock_any(["c", "d"])]
    {
        hold(&client.lock("first").ttl(ttl)).await.release().await.unwrap();
        wait::elapse(ttl / 2).await;
        let guard = lock.ttl(ttl).try_acquire().await.unwrap().expect("it is free");
        assert!(guard.remaining() > ttl * 7 / 10, "{:?} are left", guard.remaining());
        guard.release().await.unwrap();
    }
    assert_clean(&bench).await;
}

/// A server whose elections take long gives no short leases: what is held on a longer one than was asked for is kept.
#[tokio::test]
async fn a_lease_longer_than_asked_for_is_kept() {
    let setup = EtcdServerConfig::plain().with_option("--election-timeout=5000");
    let (bench, _server) = EtcdBench::on(&setup);
    let client = bench.client().await;
    let guard = hold(&client.lock("a").ttl(Duration::from_secs(1))).await;
    assert!(guard.ttl() > Duration::from_secs(4), "{:?}", guard.ttl());
    for _ in 0..4 {
        wait::elapse(Duration::from_millis(500)).await;
        hold(&client.lock("b").ttl(Duration::from_secs(1))).await.release().await.unwrap();
    }
    assert_eq!((guard.lost_reason(), bench.line("a").len()), (None, 1));
    until_renewed(&guard).await;
    guard.release().await.unwrap();
}

/// A user with all rights on a namespace of its own server.
fn with_a_user() -> (EtcdBench, Arc<EtcdServer>) {
    let server = Arc::new(EtcdServer::start(&EtcdServerConfig::plain().with_user("nobody", "word")));
    let url = format!("etcd://app:secret@127.0.0.1:{}", server.port());
    let bench = EtcdBench::at(&url, "", Server::Own(server.clone()));
    give_rights(&server, bench.url(), "app", "secret", "");
    (bench, server)
}

fn permit(bench: &EtcdBench, what: &str) {
    let (role, prefix) = (format!("fencepost-{}", bench.namespace()), format!("{}/", bench.namespace()));
    bench.ctl(&["role", "grant-permission", &role, "--prefix=true", what, &prefix]);
}

/// A release that cannot be delivered while the lease is kept for others: in the end the lease is abandoned, and they learn it.
#[tokio::test]
async fn a_release_that_is_never_delivered_abandons_the_lease() {
    let (bench, _server) = with_a_user();
    let (ours, theirs) = (bench.client().await, bench.client().await);
    let (stuck, other) = (hold(&ours.lock("a").ttl(SHORT)).await, hold(&ours.lock("b").ttl(SHORT)).await);
    let next = enqueue(&ours, theirs.lock("a").ttl(LONG_TTL), "a", 1).await;
    permit(&bench, "read");
    let error = wait::within_timeout("the release is over", stuck.release()).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Denied, "{error}");
    assert!(error.hint().is_some_and(|hint| hint.contains("fencepost rights")), "{error}");
    assert_eq!(wait::within_timeout("the other is lost", other.lost()).await, LostReason::Abandoned);
    // The lease ends by itself, and with it what could not be removed.
    let next = granted(next).await;
    permit(&bench, "readwrite");
    next.release().await.unwrap();
    hold(&ours.lock("a").ttl(SHORT)).await.release().await.unwrap();
    drop(other);
    assert_clean(&bench).await;
}

/// The same, but the right is back in time: what was not given back is cleared away, and the others go on.
#[tokio::test]
async fn a_place_that_was_not_given_back_is_cleared_away() {
    let (bench, _server) = with_a_user();
    let (ours, theirs) = (bench.client().await, bench.client().await);
    let (stuck, other) = (hold(&ours.lock("a").ttl(SHORT)).await, hold(&ours.lock("b").ttl(SHORT)).await);
    let next = enqueue(&ours, theirs.lock("a").ttl(LONG_TTL), "a", 1).await;
    permit(&bench, "read");
    wait::within_timeout("the release is over", stuck.release()).await.unwrap_err();
    permit(&bench, "readwrite");
    let next = granted(next).await;
    until_renewed(&other).await;
    assert_eq!(other.lost_reason(), None);
    next.release().await.unwrap();
    other.release().await.unwrap();
    assert_clean(&bench).await;
}

/// What a user is given for its password ends while it holds, waits and listens: nobody notices.
#[tokio::test]
async fn tokens_that_end_are_replaced_while_locks_are_held_and_waited_for() {
    let setup = EtcdServerConfig::plain().with_user("app", "secret").with_token_ttl(1);
    let server = Arc::new(EtcdServer::start(&setup));
    let bench = EtcdBench::at(&server.url_as("app"), "", Server::Own(server.clone()));
    server.ctl(&["user", "grant-role", "app", "root"]);
    let (ours, theirs) = (bench.client().await, bench.client().await);
    let guard = hold(&ours.lock("a").ttl(LONG_TTL)).await;
    let waiter = enqueue(&ours, theirs.lock("a").ttl(LONG_TTL), "a", 1).await;
    let short = hold(&theirs.lock("b").ttl(Duration::from_secs(8))).await;
    // Nobody asks anything for so long.
    wait::elapse(Duration::from_millis(2500)).await;
    until_renewed(&short).await;
    wait::elapse(Duration::from_millis(2300)).await;
    guard.release().await.unwrap();
    granted(waiter).await.release().await.unwrap();
    let late = spawn_waiter(theirs.lock("b").ttl(LONG_TTL));
    until_queued(&ours, "b", 1).await;
    short.release().await.unwrap();
    granted(late).await.release().await.unwrap();
    assert_clean(&bench).await;
}

/// Whenever an operator changes somebody's rights, all tokens are refused once: nobody notices, however often it happens.
#[tokio::test]
async fn rights_that_are_changed_all_the_time_disturb_nobody() {
    let (bench, server) = with_a_user();
    let client = bench.client().await;
    let guard = hold(&client.lock("kept").ttl(SHORT)).await;
    let changing = std::thread::spawn(move || {
        for number in 0..40 {
            server.ctl(&["role", "add", &format!("role-{number}")]);
        }
    });
    let mut turns = 0;
    while !changing.is_finished() {
        hold(&client.lock("a").ttl(SHORT)).await.release().await.unwrap();
        turns += 1;
    }
    changing.join().unwrap();
    assert_eq!(guard.lost_reason(), None, "after {turns} turns");
    guard.release().await.unwrap();
    assert_clean(&bench).await;
}
