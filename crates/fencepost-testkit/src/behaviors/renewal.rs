//! Leases are renewed for as long as the guard exists, and no longer.

use fencepost_core::clock::Clock;
use fencepost_core::{ErrorKind, LostReason};

use super::{LONG_TTL, granted, hold, refused, spawn_waiter, until_queued};
use crate::proxy::OpKind;
use crate::test_bench::TestBench;
use crate::wait;

/// Scenario 30: the second and third renewal extend the lease too.
pub async fn a_lock_is_held_over_many_ttls<B: TestBench>(bench: &B) {
    let (client, proxy) = bench.proxied().await;
    let other = bench.client().await;
    let ttl = bench.ttl() * 2;
    let guard = hold(&client.lock("a").ttl(ttl)).await;
    wait::elapse(ttl * 3).await;
    assert!(guard.is_valid());
    assert!(proxy.count(OpKind::Renew) >= 3);
    let holder = other.inspect("a").await.unwrap().holders.remove(0);
    assert_eq!(holder.token, Some(guard.token()));
    assert!(other.lock("a").try_acquire().await.unwrap().is_none());
}

/// Scenario 26: a release stops the renewals; no lease is extended afterwards.
pub async fn a_release_stops_the_renewals<B: TestBench>(bench: &B) {
    let (client, proxy) = bench.proxied().await;
    let ttl = bench.ttl();
    let guard = hold(&client.lock("a").ttl(ttl)).await;
    wait::until("it was renewed", async || proxy.count(OpKind::Renew) > 0).await;
    guard.release().await.unwrap();
    let renewals = proxy.count(OpKind::Renew);
    wait::elapse(ttl).await;
    assert_eq!(proxy.count(OpKind::Renew), renewals);
    assert!(client.inspect("a").await.unwrap().is_idle());
}

/// Scenario 27: two tasks hold one name in turn; the clean-up of the first does not end the renewals of the second.
pub async fn the_second_holder_is_renewed_after_the_first_releases<B: TestBench>(bench: &B) {
    let client = bench.client().await;
    let ttl = bench.ttl() * 2;
    let first = hold(&client.lock("a").ttl(ttl)).await;
    let waiter = spawn_waiter(client.lock("a").ttl(ttl));
    until_queued(&client, "a", 1).await;
    first.release().await.unwrap();
    let second = granted(waiter).await;
    wait::elapse(ttl * 2).await;
    assert!(second.is_valid());
}

/// Scenarios 28 and 37: after a loss the same `Lock` can be acquired again, and the new grant is renewed.
pub async fn a_new_grant_after_a_loss_is_renewed<B: TestBench>(bench: &B) {
    let (client, proxy) = bench.proxied().await;
    let ttl = bench.ttl() * 2;
    let lock = client.lock("a").ttl(ttl);
    let lost = hold(&lock).await;
    proxy.cut();
    assert_eq!(wait::within_timeout("the lock is lost", lost.lost()).await, LostReason::Expired);
    proxy.resume();
    let again = hold(&lock).await;
    assert!(again.token() > lost.token());
    wait::elapse(ttl * 2).await;
    assert!(again.is_valid() && !lost.is_valid());
}

/// Scenarios 20 and 31: a hanging renewal does not delay the loss; the guard is invalid at its deadline.
pub async fn a_hung_renewal_does_not_delay_the_loss<B: TestBench>(bench: &B) {
    let (client, proxy) = bench.proxied().await;
    let clock = Clock::system();
    let guard = hold(&client.lock("a").ttl(bench.ttl())).await;
    proxy.pause();
    let latest = clock.now() + guard.ttl();
    wait::until("the guard is invalid", async || {
        let before = clock.now();
        let valid = guard.is_valid();
        assert!(!valid || before < latest, "valid although its time is over");
        !valid
    })
    .await;
    assert_eq!(guard.lost().await, LostReason::Expired);
    proxy.resume();
}

/// Scenario 31: all renewals fail; the deadline of the guard stays known.
pub async fn failing_renewals_do_not_extend_the_lease<B: TestBench>(bench: &B) {
    let (client, proxy) = bench.proxied().await;
    let guard = hold(&client.lock("a").ttl(bench.ttl())).await;
    proxy.cut();
    let mut before = guard.remaining();
    while guard.is_valid() {
        let now = guard.remaining();
        assert!(now <= before, "no renewal can have succeeded");
        before = now;
        tokio::task::yield_now().await;
    }
    assert_eq!(guard.lost_reason(), Some(LostReason::Expired));
    assert_eq!(refused(guard.check()).kind(), ErrorKind::Lost);
    assert!(guard.remaining().is_zero());
    proxy.resume();
}

/// Scenario 21: a task that blocks when it sees the loss does not keep others from seeing it.
pub async fn a_blocked_observer_does_not_hide_a_loss_from_others<B: TestBench>(bench: &B) {
    let client = bench.client().await;
    let guard = hold(&client.lock("a").ttl(LONG_TTL)).await;
    let (share, other) = (guard.share(), guard.share());
    let (told, heard) = std::sync::mpsc::channel();
    let (go_on, block) = std::sync::mpsc::channel::<()>();
    let first = tokio::task::spawn_blocking(move || {
        let reason = futures_executor::block_on(share.lost());
        told.send(()).unwrap();
        block.recv().unwrap();
        reason
    });
    bench.client().await.break_lock("a", guard.token()).await.unwrap();
    tokio::task::spawn_blocking(move || heard.recv().unwrap()).await.unwrap();
    assert!(!guard.is_valid() && !other.is_valid());
    assert_eq!(other.lost().await, LostReason::Broken);
    go_on.send(()).unwrap();
    assert_eq!(first.await.unwrap(), LostReason::Broken);
}

/// Scenario 32: work that hangs is not renewed for ever; at the end of `max_hold` the lock goes to the next waiter.
pub async fn max_hold_ends_a_lease_that_could_be_renewed<B: TestBench>(bench: &B) {
    let client = bench.client().await;
    let guard = hold(&client.lock("a").ttl(LONG_TTL).max_hold(bench.ttl())).await;
    assert!(guard.remaining() <= bench.ttl());
    let next = granted(spawn_waiter(bench.client().await.lock("a").ttl(LONG_TTL))).await;
    assert_eq!(guard.lost_reason(), Some(LostReason::MaxHold));
    assert!(!guard.is_valid());
    assert_eq!(refused(guard.release().await).lost_reason(), Some(LostReason::MaxHold));
    assert!(next.is_valid());
}

/// A loss cancels the work of `run` at its next await point.
pub async fn run_cancels_the_work_when_the_lock_is_lost<B: TestBench>(bench: &B) {
    let client = bench.client().await;
    let lock = client.lock("a").ttl(LONG_TTL).max_hold(bench.ttl());
    let outcome = lock.run(async |_| std::future::pending::<()>().await);
    let error = refused(wait::within_timeout("the work is cancelled", outcome).await);
    assert_eq!(error.lost_reason(), Some(LostReason::MaxHold));
}
