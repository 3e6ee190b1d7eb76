//! Outages of the backend: what is lost by them, and what is kept.

use std::time::Duration;

use fencepost_core::backend::Reply;
use fencepost_core::clock::Clock;
use fencepost_core::{ErrorKind, LostReason};

use super::{
    LONG_TTL, enqueue_all, granted, hold, is_held, name, refused, spawn_waiter, supported, until_free,
    until_queued,
};
use crate::proxy::OpKind;
use crate::test_bench::TestBench;
use crate::wait;

/// The backend is unreachable for less than half a lease: the holder does not notice.
pub async fn a_short_outage_goes_unnoticed<B: TestBench>(bench: &B) {
    let client = bench.client().await;
    let ttl = bench.ttl() * 4;
    let guard = hold(&client.lock("a").ttl(ttl)).await;
    bench.cut().await;
    wait::until("a renewal has failed", async || guard.remaining() < ttl * 6 / 10).await;
    bench.heal().await;
    wait::until("it is renewed again", async || guard.remaining() > ttl * 9 / 10).await;
    assert_eq!(guard.lost_reason(), None);
    guard.release().await.unwrap();
}

/// The backend is unreachable for longer than the lease: the lock is lost at its deadline, permanently.
pub async fn a_long_outage_loses_the_lock_permanently<B: TestBench>(bench: &B) {
    let client = bench.client().await;
    let clock = Clock::system();
    let guard = hold(&client.lock("a").ttl(bench.ttl())).await;
    let share = guard.share();
    bench.cut().await;
    let latest = clock.now() + guard.ttl();
    let reason = wait::within_timeout("the lock is lost", guard.lost()).await;
    assert_eq!(reason, LostReason::Expired);
    assert!(!share.is_valid());
    bench.heal().await;
    wait::until("the lease has expired", async || clock.now() > latest).await;
    let again = hold(&client.lock("a").ttl(LONG_TTL)).await;
    assert!(!guard.is_valid() && guard.remaining().is_zero());
    assert_eq!(guard.lost().await, LostReason::Expired);
    assert!(again.is_valid());
    drop(share);
    let error = refused(guard.release().await);
    assert_eq!(error.lost_reason(), Some(LostReason::Expired));
    assert!(again.is_valid() && is_held(&client, "a").await);
}

/// Waiters keep their positions if the backend is unreachable for less than their lease.
pub async fn waiters_keep_their_positions_through_a_short_outage<B: TestBench>(bench: &B) {
    let (ours, theirs) = (bench.client().await, bench.client().await);
    let ttl = bench.ttl() * 4;
    let guard = hold(&ours.lock("a").ttl(ttl)).await;
    let locks = [&theirs, &ours, &theirs].map(|client| client.lock("a").ttl(ttl));
    let waiters = enqueue_all(&ours, "a", locks).await;
    bench.cut().await;
    wait::until("a renewal has failed", async || guard.remaining() < ttl * 6 / 10).await;
    bench.heal().await;
    wait::until("it is renewed again", async || guard.remaining() > ttl * 9 / 10).await;
    let mut newest = guard.token();
    guard.release().await.unwrap();
    for waiter in waiters {
        let guard = granted(waiter).await;
        assert!(guard.token() > newest, "a waiter was overtaken");
        newest = guard.token();
        guard.release().await.unwrap();
    }
}

/// Waiters survive an outage that expires their tickets: the client acquires again for them.
pub async fn waiters_survive_a_long_outage<B: TestBench>(bench: &B) {
    let client = bench.client().await;
    let guard = hold(&client.lock("a").ttl(bench.ttl())).await;
    let waiter = spawn_waiter(client.lock("a").ttl(bench.ttl()));
    until_queued(&client, "a", 1).await;
    bench.cut().await;
    assert_eq!(guard.lost().await, LostReason::Expired);
    wait::elapse(bench.ttl()).await;
    bench.heal().await;
    granted(waiter).await.release().await.unwrap();
}

/// A try during an outage fails with an error that names the lock, and leaves nothing behind.
pub async fn a_try_during_an_outage_fails_and_leaves_nothing<B: TestBench>(bench: &B) {
    let client = bench.client().await;
    bench.cut().await;
    let lock = client.lock("orders").ttl(bench.ttl());
    let error = refused(wait::within_timeout("the try is over", lock.try_acquire()).await);
    assert!(matches!(error.kind(), ErrorKind::Unreachable | ErrorKind::OutcomeUnknown), "{error}");
    assert!(error.to_string().contains("orders"), "it names the lock: {error}");
    bench.heal().await;
    until_free(&client, "orders").await;
    assert!(client.lock("orders").try_acquire().await.unwrap().is_some());
}

/// The record of a holder is deleted by other means: the lock is lost at its next renewal.
pub async fn a_stolen_lock_is_lost<B: TestBench>(bench: &B) {
    let client = bench.client().await;
    let guard = hold(&client.lock("a").ttl(bench.ttl())).await;
    bench.steal(&name("a")).await;
    let reason = wait::within_timeout("the holder is notified", guard.lost()).await;
    assert_eq!(reason, LostReason::NotHeld);
    assert!(!guard.is_valid());
}

/// Closing releases everything and ends every wait: afterwards the backend has no entry of this client.
pub async fn closing_releases_everything<B: TestBench>(bench: &B) {
    let (closing, other) = (bench.client().await, bench.client().await);
    let mut guards = vec![hold(&closing.lock("a").ttl(LONG_TTL)).await];
    guards.extend(supported(closing.lock_all(["b", "c"]).ttl(LONG_TTL).acquire().await));
    let theirs = hold(&other.lock("d").ttl(LONG_TTL)).await;
    let waiter = spawn_waiter(closing.lock("d").ttl(LONG_TTL));
    until_queued(&other, "d", 1).await;
    closing.close().await;
    for name in ["a", "b", "c"] {
        assert!(other.inspect(name).await.unwrap().is_idle(), "{name}");
    }
    assert_eq!(other.inspect("d").await.unwrap().waiter_count, 0);
    let outcome = wait::within_timeout("the wait ends", waiter).await.unwrap();
    assert_eq!(refused(outcome).kind(), ErrorKind::Closed);
    for guard in guards {
        assert_eq!((guard.is_valid(), guard.lost().await), (false, LostReason::Closed));
        assert_eq!(refused(guard.release().await).lost_reason(), Some(LostReason::Closed));
    }
    theirs.release().await.unwrap();
}

/// An unreachable backend does not keep a client from closing; its leases expire.
pub async fn closing_ends_although_the_backend_is_unreachable<B: TestBench>(bench: &B) {
    let client = bench.client().await;
    let guard = hold(&client.lock("a").ttl(bench.ttl())).await;
    bench.cut().await;
    wait::within_timeout("the client is closed", client.close()).await;
    assert!(!guard.is_valid());
    bench.heal().await;
    let other = bench.client().await;
    until_free(&other, "a").await;
}

/// A query without a reply does not keep a client from closing.
pub async fn closing_does_not_wait_for_a_query<B: TestBench>(bench: &B) {
    let (client, proxy) = bench.proxied().await;
    proxy.pause();
    let asking = client.clone();
    let question = tokio::spawn(async move { asking.inspect("a").await });
    tokio::task::yield_now().await;
    wait::within_timeout("the client is closed", client.close()).await;
    let answer = wait::within_timeout("the query ends", question).await.unwrap();
    assert_eq!(refused(answer).kind(), ErrorKind::Closed);
    proxy.resume();
}

/// Scenario 36: every call on a closed client fails at once.
pub async fn a_closed_client_refuses_everything<B: TestBench>(bench: &B) {
    let client = bench.client().await;
    let (clone, lock) = (client.clone(), client.lock("a"));
    client.close().await;
    clone.close().await;
    assert_eq!(refused(lock.try_acquire().await).kind(), ErrorKind::Closed);
    assert_eq!(refused(lock.acquire().await).kind(), ErrorKind::Closed);
    assert_eq!(refused(clone.inspect("a").await).kind(), ErrorKind::Closed);
    assert_eq!(refused(clone.read_cell("a").await).kind(), ErrorKind::Closed);
    let page = fencepost_core::Page::new(1);
    assert_eq!(refused(clone.list("", page).await).kind(), ErrorKind::Closed);
}

/// The reply to an acquire is lost: it is sent again, and there is one grant.
pub async fn an_acquire_with_a_lost_reply_is_granted_once<B: TestBench>(bench: &B) {
    let (client, proxy) = bench.proxied().await;
    for inject in [crate::proxy::Proxy::lose_reply, crate::proxy::Proxy::lose_request] {
        inject(&proxy, OpKind::Acquire);
        let guard = hold(&client.lock("a").ttl(bench.ttl() * 4)).await;
        assert!(proxy.all_faults_injected());
        let holders = client.inspect("a").await.unwrap().holders;
        assert_eq!((holders.len(), holders[0].token), (1, Some(guard.token())));
        guard.release().await.unwrap();
        assert!(client.inspect("a").await.unwrap().is_idle());
    }
}

/// The reply "waiting" is lost: the ticket is kept, and there is one.
pub async fn a_waiter_with_a_lost_reply_has_one_ticket<B: TestBench>(bench: &B) {
    let (client, proxy) = bench.proxied().await;
    let other = bench.client().await;
    let guard = hold(&other.lock("a").ttl(LONG_TTL)).await;
    proxy.lose_reply(OpKind::Acquire);
    let waiter = spawn_waiter(client.lock("a").ttl(bench.ttl() * 4));
    wait::until("the acquire was sent again", async || proxy.count(OpKind::Acquire) == 2).await;
    until_queued(&other, "a", 1).await;
    guard.release().await.unwrap();
    granted(waiter).await.release().await.unwrap();
}

/// Scenario 12: an acquire that succeeds after a failed send counts from the send that succeeded, and is valid.
pub async fn validity_counts_from_the_send_that_succeeded<B: TestBench>(bench: &B) {
    let (client, proxy) = bench.proxied().await;
    let clock = Clock::system();
    let ttl = bench.ttl() * 4;
    proxy.lose_request(OpKind::Acquire);
    let before = clock.now();
    let guard = hold(&client.lock("a").ttl(ttl)).await;
    let asked_again = before + ttl / 12;
    assert!(guard.remaining() + ttl / 100 <= ttl, "the drift is taken off");
    assert!(clock.now() + guard.remaining() >= asked_again + ttl * 9 / 10, "it counts from the second send");
}

/// Scenario 50: an acquire is delayed and its undo arrives first: no orphan holds the lock afterwards.
pub async fn an_acquire_that_arrives_after_its_undo_does_nothing<B: TestBench>(bench: &B) {
    let (client, proxy) = bench.proxied().await;
    (0..3).for_each(|_| proxy.strand(OpKind::Acquire));
    let error = refused(client.lock("a").ttl(bench.ttl() * 4).try_acquire().await);
    assert_eq!(error.kind(), ErrorKind::OutcomeUnknown);
    wait::until("it was undone", async || proxy.count(OpKind::Leave) == 1).await;
    // A flight behind the undo: its reply proves that the undo has arrived.
    assert!(client.inspect("a").await.unwrap().is_idle());
    assert!(client.read_cell("a").await.unwrap().is_none());
    let late = proxy.deliver_stranded().await;
    assert!(late.iter().all(|reply| matches!(reply, Ok(Reply::Busy))), "{late:?}");
    assert!(client.inspect("a").await.unwrap().is_idle());
}

/// Scenario 50: of two sends of one try, the second is answered "busy" and the first arrives later.
pub async fn a_delayed_try_that_was_answered_busy_does_nothing<B: TestBench>(bench: &B) {
    let (client, proxy) = bench.proxied().await;
    let other = bench.client().await;
    let guard = hold(&other.lock("a").ttl(LONG_TTL)).await;
    proxy.strand(OpKind::Acquire);
    assert!(client.lock("a").ttl(bench.ttl() * 4).try_acquire().await.unwrap().is_none());
    guard.release().await.unwrap();
    assert!(client.read_cell("a").await.unwrap().is_none());
    proxy.deliver_stranded().await;
    assert!(client.inspect("a").await.unwrap().is_idle());
}

/// An acquire times out although the backend does not reply.
pub async fn a_wait_ends_in_time_without_a_reply<B: TestBench>(bench: &B) {
    let (client, proxy) = bench.proxied().await;
    proxy.pause();
    let lock = client.lock("a").ttl(LONG_TTL).wait(Duration::from_millis(50));
    let error = refused(wait::within_timeout("the wait ends", lock.acquire()).await);
    assert_eq!(error.kind(), ErrorKind::WaitTimeout);
    proxy.resume();
    wait::until("it was undone", async || proxy.count(OpKind::Release) + proxy.count(OpKind::Leave) > 0)
        .await;
    until_free(&client, "a").await;
}
