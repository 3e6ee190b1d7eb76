//! Releasing: by the owner only, once, also if the reply is lost.

use fencepost_core::backend::{Op, Reply};
use fencepost_core::{ErrorKind, LostReason};
use futures_util::FutureExt;

use super::{Bare, LONG_TTL, attempt, hold, is_held, name, refused, until_free};
use crate::proxy::OpKind;
use crate::test_bench::TestBench;
use crate::wait;

/// A released lock is free.
pub async fn a_released_lock_is_free<B: TestBench>(bench: &B) {
    let client = bench.client().await;
    let guard = hold(&client.lock("a")).await;
    guard.release().await.unwrap();
    assert!(client.inspect("a").await.unwrap().is_idle());
}

/// A dropped guard releases its lock.
pub async fn a_dropped_guard_releases_its_lock<B: TestBench>(bench: &B) {
    let client = bench.client().await;
    drop(hold(&client.lock("a").ttl(LONG_TTL)).await);
    until_free(&client, "a").await;
}

/// Scenario 55: a program that exits right after dropping its guard leaves no lock.
pub async fn a_program_that_exits_after_dropping_its_guard_leaves_no_lock<B: TestBench>(bench: &B) {
    let client = bench.client().await;
    let guard = hold(&client.lock("a").ttl(LONG_TTL)).await;
    drop(client);
    drop(guard);
    let other = bench.client().await;
    assert!(!is_held(&other, "a").await, "the last handle waits for the release");
}

/// An owner that does not hold the lock cannot release it, whether another one holds it or not.
pub async fn stale_owner_cannot_release<B: TestBench>(bench: &B) {
    let bare = Bare::new(bench).await;
    let old = bare.hold(&attempt(&["a"], LONG_TTL)).await;
    assert_eq!(bare.execute(Op::Release(old.clone())).await, Reply::Released);
    assert_eq!(bare.execute(Op::Release(old.clone())).await, Reply::NotHeld);
    let next = bare.hold(&attempt(&["a"], LONG_TTL)).await;
    assert_eq!(bare.execute(Op::Release(old)).await, Reply::NotHeld);
    assert_eq!(bare.execute(Op::Renew(next.clone())).await, Reply::Renewed { ttl: next.award.ttl });
    assert_eq!(bare.execute(Op::Release(next)).await, Reply::Released);
    bare.close().await;
}

/// Scenario 24: a delayed release arrives when the lock is held again; the new grant is kept.
pub async fn a_late_release_does_not_touch_the_next_grant<B: TestBench>(bench: &B) {
    let (client, proxy) = bench.proxied().await;
    let first = hold(&client.lock("a").ttl(bench.ttl() * 4)).await;
    proxy.strand(OpKind::Release);
    drop(first);
    wait::until("the release is stuck", async || proxy.all_faults_injected()).await;
    let second = hold(&client.lock("a").ttl(LONG_TTL)).await;
    let late = proxy.deliver_stranded().await;
    assert!(matches!(late.as_slice(), [Ok(Reply::NotHeld)]), "{late:?}");
    assert!(second.is_valid());
    assert_eq!(client.inspect("a").await.unwrap().holders[0].token, Some(second.token()));
    second.release().await.unwrap();
}

/// Scenario 23: a task acquires the lock while the release of another fails; the new owner is not removed.
pub async fn a_failed_release_does_not_remove_the_next_owner<B: TestBench>(bench: &B) {
    let (client, proxy) = bench.proxied().await;
    let lock = client.lock("a").ttl(bench.ttl() * 4);
    let first = hold(&lock).await;
    proxy.lose_reply(OpKind::Release);
    let release = tokio::spawn(first.release());
    let second = hold(&lock).await;
    let outcome = wait::within_timeout("the release is over", release).await.unwrap();
    assert_eq!(refused(outcome).kind(), ErrorKind::OutcomeUnknown);
    assert!(second.is_valid());
    second.release().await.unwrap();
}

/// A lost release is sent again.
pub async fn a_lost_release_is_sent_again<B: TestBench>(bench: &B) {
    let (client, proxy) = bench.proxied().await;
    let guard = hold(&client.lock("a").ttl(bench.ttl() * 4)).await;
    proxy.lose_request(OpKind::Release);
    guard.release().await.expect("the second request arrives");
    assert_eq!(proxy.count(OpKind::Release), 2);
    assert!(client.inspect("a").await.unwrap().is_idle());
}

/// Scenario 25: a release whose future is dropped in flight completes.
pub async fn a_dropped_release_completes<B: TestBench>(bench: &B) {
    let (client, proxy) = bench.proxied().await;
    let guard = hold(&client.lock("a").ttl(LONG_TTL)).await;
    proxy.pause();
    assert!(guard.release().now_or_never().is_none());
    proxy.resume();
    until_free(&client, "a").await;
}

/// The release of a lock whose record was deleted fails with `Lost`.
pub async fn the_release_of_a_lost_lock_fails_with_the_reason<B: TestBench>(bench: &B) {
    let client = bench.client().await;
    let guard = hold(&client.lock("a").ttl(LONG_TTL)).await;
    bench.steal(&name("a")).await;
    let error = refused(guard.release().await);
    assert_eq!((error.kind(), error.lost_reason()), (ErrorKind::Lost, Some(LostReason::NotHeld)));
    assert!(error.to_string().contains('a'), "it names the lock: {error}");
}
