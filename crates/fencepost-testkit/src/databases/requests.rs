//! How many requests operations take.

use crate::WireBench;
use crate::actions::{LONG_TTL, hold};

/// An acquire of a free lock is one request, and so is its release.
pub async fn a_free_lock_is_acquired_and_released_by_one_request_each<B: WireBench>(bench: &B) {
    const PAIRS: usize = 40;
    let client = bench.client().await;
    let lock = client.lock("a").ttl(LONG_TTL);
    // Connects, and finds out what there is to know about the server.
    hold(&lock).await.release().await.expect("it is held");
    let before = bench.wire().sent();
    for _ in 0..PAIRS {
        hold(&lock).await.release().await.expect("it is held");
    }
    let sent = bench.wire().sent() - before;
    assert!(sent >= 2 * PAIRS, "the wire counts them");
    // On a busy machine, a pause may make the next operation a longer one; and what has expired is swept on the way.
    assert!(sent < 3 * PAIRS, "{sent} requests for {PAIRS} pairs");
}
