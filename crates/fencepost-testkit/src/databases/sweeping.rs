//! What clients leave behind is removed.

use std::time::Duration;

use fencepost_core::Keep;

use crate::actions::{LONG_TTL, enqueue, hold};
use crate::{WireBench, wait};

/// A client dies with holders, tickets, cells and a tombstone, which `add_tombstone` stores. The operations of others remove them
/// after a ttl: `only_a_cell_is_left` finds nothing but one cell that is kept.
pub async fn what_a_dead_client_leaves_is_removed<B: WireBench>(
    bench: &B,
    add_tombstone: impl AsyncFnOnce(),
    mut only_a_cell_is_left: impl AsyncFnMut() -> bool,
) {
    let (dead, client) = (bench.client().await, bench.direct_client().await);
    let ttl = Duration::from_secs(2);
    let exclusive = hold(&dead.lock("exclusive").ttl(ttl)).await;
    exclusive.write_cell(*b"while held", Keep::WhileHeld).await.expect("it is held");
    let shared_holder = hold(&dead.lock("shared").shared().ttl(ttl)).await;
    let for_a_second = Keep::For(Duration::from_secs(1));
    shared_holder.write_cell(*b"for a while", for_a_second).await.expect("it is held");
    let permit = hold(&dead.lock("permit").semaphore(3).ttl(ttl)).await;
    let several = hold(&dead.lock_all(["several/1", "several/2"]).ttl(ttl)).await;
    let always = hold(&client.lock("always").ttl(ttl)).await;
    always.write_cell(*b"always", Keep::Always).await.expect("it is held");
    let waiter = enqueue(&client, dead.lock("always").ttl(ttl), "always", 1).await;
    add_tombstone().await;
    bench.wire().cut();
    always.release().await.expect("it is held");
    wait::until("all but the kept cell is removed", async || {
        for _ in 0..20 {
            hold(&client.lock("busy").ttl(LONG_TTL)).await.release().await.expect("it is held");
        }
        only_a_cell_is_left().await
    })
    .await;
    let cell = client.read_cell("always").await.expect("it can be read").expect("it is kept");
    assert_eq!(cell.bytes.as_ref(), b"always");
    waiter.abort();
    drop((exclusive, shared_holder, permit, several));
}
