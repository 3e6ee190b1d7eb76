//! More waiters of one client than it may have keys in one queue.

use std::time::Duration;

use fencepost_core::{Guard, Mode};
use fencepost_testkit::TestBench;
use fencepost_testkit::suite::assert_clean;
use fencepost_testkit::wait;
use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;

use crate::actions::{LONG_TTL, Waiter, granted, hold, spawn_waiter, until_queued};
use crate::bench::EtcdBench;

/// The maximum number of keys of a client in one queue.
const MAX_KEYS: usize = 64;

/// The client reports all of its waiters, but has at most the maximum number of keys. Cancelled waiters leave, the others are
/// granted, and no key is left.
#[tokio::test]
async fn local_waiters_are_cancelled_and_granted() {
    const WAITERS: usize = 200;
    let bench = EtcdBench::plain();
    let (client, other) = (bench.client().await, bench.client().await);
    let guard = hold(&other.lock("a").ttl(LONG_TTL)).await;
    let mut waiters: Vec<Waiter> =
        (0..WAITERS).map(|_| spawn_waiter(client.lock("a").ttl(LONG_TTL))).collect();
    until_queued(&client, "a", WAITERS).await;
    assert_eq!(bench.queue("a").len(), 1 + MAX_KEYS);
    let other_waiter = spawn_waiter(other.lock("a").ttl(LONG_TTL));
    until_queued(&other, "a", MAX_KEYS + 1).await;
    // Cancels some with keys, and some without.
    let mut cancelled = 0;
    let mut remaining = Vec::new();
    for (number, waiter) in waiters.drain(..).enumerate() {
        if number % 3 == 0 {
            waiter.abort();
            cancelled += 1;
        } else {
            remaining.push(waiter);
        }
    }
    until_queued(&client, "a", WAITERS - cancelled + 1).await;
    assert!(bench.queue("a").len() <= 2 + MAX_KEYS, "{} keys", bench.queue("a").len());
    let mut newest = guard.token();
    guard.release().await.unwrap();
    let mut granted = FuturesUnordered::from_iter(remaining);
    granted.push(other_waiter);
    while let Some(guard) = wait::within_timeout("the next is granted", granted.next()).await {
        let guard: Guard = guard.unwrap().unwrap();
        assert!(guard.token() > newest);
        newest = guard.token();
        guard.release().await.unwrap();
    }
    assert_clean(&bench).await;
}

/// Shared holders that release all at once make room for as many local waiters at once, not for one after the other.
#[tokio::test]
async fn shared_local_waiters_are_granted_together() {
    let bench = EtcdBench::plain();
    let client = bench.client().await;
    let reader = || spawn_waiter(client.lock("a").mode(Mode::Shared).ttl(LONG_TTL));
    let mut first = Vec::new();
    for waiter in (0..MAX_KEYS).map(|_| reader()).collect::<Vec<_>>() {
        first.push(granted(waiter).await);
    }
    let later: Vec<Waiter> = (0..MAX_KEYS).map(|_| reader()).collect();
    until_queued(&client, "a", MAX_KEYS).await;
    let releases: Vec<_> = first.into_iter().map(|guard| tokio::spawn(guard.release())).collect();
    for release in releases {
        release.await.unwrap().unwrap();
    }
    let mut all = Vec::new();
    for waiter in later {
        all.push(granted(waiter).await);
    }
    assert_eq!(client.inspect("a").await.unwrap().holders.len(), MAX_KEYS);
    drop(all);
    assert_clean(&bench).await;
}

/// Waiters whose wait times out at the moment of their grant leave no keys.
#[tokio::test]
async fn local_waiters_that_time_out_leave_no_keys() {
    let bench = EtcdBench::plain();
    let client = bench.client().await;
    let guard = hold(&client.lock("a").ttl(LONG_TTL)).await;
    let with_wait =
        |number: u64| client.lock("a").ttl(LONG_TTL).wait(Duration::from_millis(100 + number * 7));
    let waiters: Vec<Waiter> = (0..150).map(|number| spawn_waiter(with_wait(number))).collect();
    wait::until("some have timed out", async || waiters.iter().any(Waiter::is_finished)).await;
    guard.release().await.unwrap();
    for waiter in waiters {
        if let Ok(guard) = wait::within_timeout("the waiter is done", waiter).await.unwrap() {
            guard.release().await.unwrap();
        }
    }
    assert_clean(&bench).await;
}
