//! Connections that are closed and reopened: waiters keep their positions, and nothing is left behind.

use std::time::Duration;

use tokio::task::JoinHandle;

use super::{LONG_TTL, granted, hold};
use crate::actions::enqueue;
use crate::test_bench::WireBench;
use crate::wait;

/// A ttl for locks whose releases may be lost: tombstones are kept for at most twice as long.
const UNKNOWN_OUTCOME_TTL: Duration = Duration::from_secs(6);

/// Waits until the backend counts this many listeners, if it counts them.
async fn listening<B: WireBench>(bench: &B, count: usize) {
    wait::until(&format!("{count} clients listen"), async || {
        bench.listeners().await.is_none_or(|listeners| listeners == count)
    })
    .await;
}

/// Waiters keep their positions when a connection is replaced, also if others join meanwhile.
pub async fn waiters_keep_their_positions_over_a_reset<B: WireBench>(bench: &B) {
    let (client, other) = (bench.client().await, bench.direct_client().await);
    let guard = hold(&other.lock("a").ttl(UNKNOWN_OUTCOME_TTL)).await;
    let first = enqueue(&other, client.lock("a").ttl(UNKNOWN_OUTCOME_TTL), "a", 1).await;
    let second = enqueue(&other, client.lock("a").ttl(UNKNOWN_OUTCOME_TTL), "a", 2).await;
    bench.wire().reset();
    let third = enqueue(&other, other.lock("a").ttl(UNKNOWN_OUTCOME_TTL), "a", 3).await;
    bench.wire().reset();
    listening(bench, 2).await;
    let mut newest = guard.token();
    guard.release().await.expect("it is held");
    for waiter in [first, second, third] {
        let guard = granted(waiter).await;
        assert!(guard.token() > newest, "a waiter was overtaken");
        newest = guard.token();
        guard.release().await.expect("it is held");
    }
}

/// The lock is released while its first waiter is disconnected: it is granted right after the reconnect, long before the
/// heartbeat.
pub async fn a_lock_released_while_disconnected_is_granted_after_the_reconnect<B: WireBench>(bench: &B) {
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

/// Connections are closed at any moment of acquiring and releasing, and nothing is left.
pub async fn connections_closed_at_any_moment_leave_nothing<B: WireBench>(bench: &B) {
    let client = bench.client().await;
    let workers: Vec<_> = (0..8)
        .map(|number| {
            let lock = client.lock(format!("lock/{}", number % 3)).ttl(UNKNOWN_OUTCOME_TTL);
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
        wait::elapse(bench.reconnect_time()).await;
    }
}
