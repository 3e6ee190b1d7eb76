//! Connections that end and come back: waiters keep their places, and nothing is left behind.

use std::time::Duration;

use tokio::task::JoinHandle;

use super::{LONG_TTL, granted, hold};
use crate::actions::enqueue;
use crate::test_bench::WireBench;
use crate::wait;

/// A lease for those whose releases may get lost, of which something is remembered for twice as long at most.
const DOUBTFUL: Duration = Duration::from_secs(6);

/// Waits until the storage knows so many to listen, if it knows that at all.
async fn listening<B: WireBench>(bench: &B, count: usize) {
    wait::until(&format!("{count} listen"), async || {
        bench.listeners().await.is_none_or(|listeners| listeners == count)
    })
    .await;
}

/// A connection that is replaced costs nobody his place, whoever comes while it is away.
pub async fn waiters_keep_their_places_over_a_reset<B: WireBench>(bench: &B) {
    let (client, other) = (bench.client().await, bench.direct_client().await);
    let guard = hold(&other.lock("a").ttl(DOUBTFUL)).await;
    let first = enqueue(&other, client.lock("a").ttl(DOUBTFUL), "a", 1).await;
    let second = enqueue(&other, client.lock("a").ttl(DOUBTFUL), "a", 2).await;
    bench.wire().reset();
    let third = enqueue(&other, other.lock("a").ttl(DOUBTFUL), "a", 3).await;
    bench.wire().reset();
    listening(bench, 2).await;
    let mut newest = guard.token();
    guard.release().await.expect("it is held");
    for waiter in [first, second, third] {
        let guard = granted(waiter).await;
        assert!(guard.token() > newest, "somebody was overtaken");
        newest = guard.token();
        guard.release().await.expect("it is held");
    }
}

/// Nobody listens when the lock becomes free: whoever comes back first in line gets it long before its heartbeat.
pub async fn a_lock_that_became_free_while_nobody_listened_is_found<B: WireBench>(bench: &B) {
    let (away, other) = (bench.client().await, bench.direct_client().await);
    let guard = hold(&other.lock("a").ttl(LONG_TTL)).await;
    let waiter = enqueue(&other, away.lock("a").ttl(LONG_TTL), "a", 1).await;
    bench.wire().cut();
    listening(bench, 1).await;
    guard.release().await.expect("it is held");
    if !bench.has_entry_per_waiter() {
        assert!(other.inspect("a").await.expect("the lock can be inspected").holders.is_empty());
    }
    bench.wire().heal();
    granted(waiter).await.release().await.expect("it is held");
}

/// Connections end at every moment of locking and unlocking, and nothing is left of it.
pub async fn connections_that_end_at_any_moment_leave_nothing<B: WireBench>(bench: &B) {
    let client = bench.client().await;
    let workers: Vec<_> = (0..8)
        .map(|number| {
            let lock = client.lock(format!("lock/{}", number % 3)).ttl(DOUBTFUL);
            tokio::spawn(async move {
                for _ in 0..12 {
                    if let Ok(guard) = lock.acquire().await {
                        let _ = guard.release().await;
                    }
                }
            })
        })
        .collect();
    while !workers.iter().all(JoinHandle::is_finished) {
        bench.wire().reset();
        wait::elapse(Duration::from_millis(30)).await;
    }
}
