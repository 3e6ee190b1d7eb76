//! Pushes that arrive before the reply to the acquire they are about.

use std::time::Duration;

use fencepost_testkit::proxy::OpKind;
use fencepost_testkit::{TestBench, wait};

use crate::bench::MemoryBench;

const LONG: Duration = Duration::from_secs(120);

#[tokio::test]
async fn a_grant_that_was_broken_before_its_reply_is_never_returned() {
    let bench = MemoryBench::new();
    let ((client, proxy), other) = (bench.proxied().await, bench.client().await);
    proxy.hold_reply(OpKind::Acquire);
    let lock = client.lock("a").ttl(LONG);
    let acquiring = tokio::spawn(async move { lock.acquire().await });
    let holder = async || other.inspect("a").await.unwrap().holders.first().and_then(|holder| holder.token);
    wait::until("it is granted", async || holder().await.is_some()).await;
    let first = holder().await.unwrap();
    other.break_lock("a", first).await.unwrap();
    wait::until("the push to overtake the reply", async || proxy.pushed() == 1).await;
    proxy.release_replies();
    let guard = wait::within_timeout("it is granted again", acquiring).await.unwrap().unwrap();
    assert!(guard.token() > first, "the grant was broken before it was returned");
    guard.release().await.unwrap();
}

#[tokio::test]
async fn a_grant_that_is_pushed_before_the_reply_that_says_waiting_is_accepted() {
    let bench = MemoryBench::new();
    let ((client, proxy), other) = (bench.proxied().await, bench.client().await);
    let guard = other.lock("a").ttl(LONG).acquire().await.unwrap();
    proxy.hold_reply(OpKind::Acquire);
    let lock = client.lock("a").ttl(LONG);
    let acquiring = tokio::spawn(async move { lock.acquire().await });
    wait::until("it is in the queue", async || other.inspect("a").await.unwrap().waiter_count == 1).await;
    guard.release().await.unwrap();
    let guard = wait::within_timeout("it is granted", acquiring).await.unwrap().unwrap();
    proxy.release_replies();
    guard.release().await.unwrap();
    assert!(other.inspect("a").await.unwrap().is_idle());
}
