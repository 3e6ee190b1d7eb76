//! Leases that expire: by the clock of the backend, never early, and for good.

use std::time::Duration;

use fencepost_core::ErrorKind;
use fencepost_core::backend::{OnBusy, Op, Reply};
use fencepost_core::clock::Clock;

use super::{
    Bare, LONG_TTL, attempt, award, enqueue_all, granted, hold, is_held, refused, spawn_waiter, until_free,
    until_queued,
};
use crate::proxy::OpKind;
use crate::test_bench::TestBench;
use crate::wait;

/// The lock of a process that died becomes free when its lease has expired, and a waiter gets it.
pub async fn the_lock_of_a_dead_holder_is_granted_after_its_ttl<B: TestBench>(bench: &B) {
    let (dying, proxy) = bench.proxied().await;
    let dead = hold(&dying.lock("a").ttl(bench.ttl())).await;
    let successor = bench.client().await;
    let waiter = spawn_waiter(successor.lock("a").ttl(LONG_TTL));
    until_queued(&successor, "a", 1).await;
    proxy.crash();
    let next = granted(waiter).await;
    assert!(!dead.is_valid(), "the dead holder is still valid when the next one is granted");
    assert!(next.token() > dead.token());
}

/// A lease expires without a waiter too: a later try finds the lock free.
pub async fn an_expired_lock_is_free_for_a_try<B: TestBench>(bench: &B) {
    let (dying, proxy) = bench.proxied().await;
    let dead = hold(&dying.lock("a").ttl(bench.ttl())).await;
    proxy.crash();
    let client = bench.client().await;
    until_free(&client, "a").await;
    assert!(!dead.is_valid());
    assert!(client.lock("a").try_acquire().await.unwrap().is_some());
}

/// Scenario 29: a renewal never revives an expired lease, and so a token is never kept over a gap.
pub async fn expired_lease_is_not_revived<B: TestBench>(bench: &B) {
    let bare = Bare::new(bench).await;
    let grant = bare.hold(&attempt(&["a"], bench.ttl())).await;
    let client = bench.client().await;
    until_free(&client, "a").await;
    assert_eq!(bare.execute(Op::Renew(grant.clone())).await, Reply::NotHeld);
    assert!(!is_held(&client, "a").await);
    let next = bare.hold(&attempt(&["a"], LONG_TTL)).await;
    assert!(next.award.token > grant.award.token);
    assert_eq!(bare.execute(Op::Renew(grant)).await, Reply::NotHeld);
    assert_eq!(bare.execute(Op::Release(next)).await, Reply::Released);
    bare.close().await;
}

/// Scenario 22: a release after the lease has expired does not remove the next holder.
pub async fn an_expired_holder_cannot_release_the_next_grant<B: TestBench>(bench: &B) {
    let bare = Bare::new(bench).await;
    let old = bare.hold(&attempt(&["a"], bench.ttl())).await;
    let client = bench.client().await;
    let next = hold(&client.lock("a").ttl(LONG_TTL)).await;
    assert_eq!(bare.execute(Op::Release(old)).await, Reply::NotHeld);
    assert_eq!(client.inspect("a").await.unwrap().holders[0].token, Some(next.token()));
    bare.close().await;
}

/// A renewal restores the full ttl, counted from the renewal.
pub async fn a_renewal_restores_the_full_ttl<B: TestBench>(bench: &B) {
    let bare = Bare::new(bench).await;
    let client = bench.client().await;
    let grant = bare.hold(&attempt(&["a"], LONG_TTL)).await;
    let left = async || client.inspect("a").await.unwrap().holders[0].expires_in;
    let given = left().await;
    // Some backends count in whole seconds.
    wait::until("some time has passed", async || left().await < given).await;
    wait::elapse(Duration::from_millis(500)).await;
    let before = left().await;
    assert_eq!(bare.execute(Op::Renew(grant.clone())).await, Reply::Renewed { ttl: grant.award.ttl });
    assert!(left().await > before);
    assert_eq!(bare.execute(Op::Release(grant)).await, Reply::Released);
    bare.close().await;
}

/// Scenario 11: a process that is paused between sending and reading for longer than its lease does not return the grant.
pub async fn a_grant_read_too_late_is_not_returned<B: TestBench>(bench: &B) {
    let (slow, proxy) = bench.proxied().await;
    proxy.pause_before_reply(OpKind::Acquire);
    let lock = slow.lock("a").ttl(bench.ttl());
    let slow_try = tokio::spawn(async move { lock.try_acquire().await });
    wait::until("the client is paused", async || proxy.is_paused()).await;
    let client = bench.client().await;
    let next = hold(&client.lock("a").ttl(LONG_TTL)).await;
    proxy.resume();
    let outcome = wait::within_timeout("the paused client returns", slow_try).await.unwrap();
    assert!(!matches!(outcome, Ok(Some(_))), "{outcome:?}");
    assert!(next.is_valid());
    assert_eq!(client.inspect("a").await.unwrap().holders[0].token, Some(next.token()));
}

/// Scenario 51: holder and first waiter die together; the second waiter is granted after one lease, not after two.
pub async fn holder_and_first_waiter_die_together<B: TestBench>(bench: &B) {
    let clock = Clock::system();
    let ttl = bench.ttl() * 4;
    let (holder, holders_proxy) = bench.proxied().await;
    let (first, firsts_proxy) = bench.proxied().await;
    let second = bench.client().await;
    let dead = hold(&holder.lock("a").ttl(ttl)).await;
    let locks = [first.lock("a").ttl(ttl), second.lock("a").ttl(ttl)];
    let mut waiters = enqueue_all(&second, "a", locks).await.into_iter();
    let (first_waiter, second_waiter) = (waiters.next().unwrap(), waiters.next().unwrap());
    holders_proxy.crash();
    firsts_proxy.crash();
    let two_leases = clock.now() + ttl * 2;
    let next = granted(second_waiter).await;
    assert!(clock.now() < two_leases, "it waited for a second lease");
    assert!(!dead.is_valid());
    next.release().await.unwrap();
    first_waiter.abort();
}

/// A ticket whose owner is gone expires, and the waiters behind it move up.
pub async fn a_ticket_that_is_not_renewed_expires<B: TestBench>(bench: &B) {
    let bare = Bare::new(bench).await;
    let client = bench.client().await;
    let guard = hold(&client.lock("a").ttl(LONG_TTL)).await;
    let forgotten = attempt(&["a"], bench.ttl());
    assert!(matches!(bare.acquire(&forgotten, OnBusy::Wait).await, Reply::Waiting { .. }));
    let patient = bench.client().await;
    let waiter = spawn_waiter(patient.lock("a").ttl(LONG_TTL));
    wait::until("both have joined", async || patient.inspect("a").await.unwrap().waiter_count == 2).await;
    until_queued(&client, "a", 1).await;
    guard.release().await.unwrap();
    drop(granted(waiter).await);
    bare.close().await;
}

/// An acquire that is repeated after the lease has expired is a new grant with a new token.
pub async fn a_grant_after_an_expired_lease_has_a_new_token<B: TestBench>(bench: &B) {
    let bare = Bare::new(bench).await;
    let client = bench.client().await;
    let attempt = attempt(&["a"], bench.ttl());
    let old = bare.hold(&attempt).await;
    until_free(&client, "a").await;
    let again = award(&bare.acquire(&attempt, OnBusy::Return).await);
    assert!(again.token > old.award.token);
    bare.close().await;
}

/// A ttl that the backend cannot keep is rejected before anything is sent.
pub async fn a_ttl_out_of_range_is_refused<B: TestBench>(bench: &B) {
    let client = bench.client().await;
    let info = client.info();
    let tiny = info.min_ttl.checked_sub(Duration::from_nanos(1)).unwrap();
    for ttl in [tiny, info.max_ttl + Duration::from_secs(1)] {
        let error = refused(client.lock("a").ttl(ttl).try_acquire().await);
        assert_eq!(error.kind(), ErrorKind::BadConfig, "{error}");
    }
}
