//! Thousands of tickets of a client that is gone.

use std::sync::Arc;
use std::time::Duration;

use fencepost_core::Backend;
use fencepost_core::backend::{OnBusy, Op, Reply};

use crate::actions::{LONG_TTL, granted, hold, spawn_waiter, until_queued};
use crate::behaviors::attempt;
use crate::{TestBench, wait};

const DEAD: usize = 25_000;
/// How many operations a flight has.
const FLIGHT: usize = 128;

/// Scenario 64: a client died with 25,000 tickets, which have not expired yet. They block no waiter behind them.
pub async fn a_waiter_is_granted_behind_tickets_of_a_dead_client<B: TestBench>(bench: &B) {
    is_granted_behind(bench, LONG_TTL, DEAD + 1).await;
}

/// Scenario 64: 25,000 tickets have expired, and are still stored.
pub async fn a_waiter_is_granted_behind_expired_tickets<B: TestBench>(bench: &B) {
    is_granted_behind(bench, Duration::from_secs(15), 1).await;
}

/// `queued` is how many tickets have not expired when the lock is released.
async fn is_granted_behind<B: TestBench>(bench: &B, ttl_of_dead: Duration, queued: usize) {
    let (client, dying) = (bench.client().await, bench.connect().await.expect("it is reachable"));
    let guard = hold(&client.lock("a").ttl(LONG_TTL)).await;
    join(&dying, ttl_of_dead).await;
    let next = spawn_waiter(client.lock("a").ttl(LONG_TTL));
    dying.close().await;
    drop(dying);
    wait::until("it is disconnected", async || bench.listeners().await == Some(1)).await;
    until_queued(&client, "a", queued).await;
    guard.release().await.expect("it is held");
    // The heartbeat of the waiter would come after the timeout of this test.
    granted(next).await.release().await.expect("it is held");
    let free = client.lock("a").ttl(LONG_TTL).try_acquire().await.expect("it is reachable");
    free.expect("all earlier waiters are dead").release().await.expect("it is held");
}

async fn join(backend: &Arc<dyn Backend>, ttl: Duration) {
    for at in (0..DEAD).step_by(FLIGHT) {
        let join = |_| Op::Acquire { attempt: attempt(&["a"], ttl), on_busy: OnBusy::Wait };
        let flight: Vec<Op> = (at..DEAD.min(at + FLIGHT)).map(join).collect();
        for reply in backend.execute(flight).await {
            assert!(matches!(reply, Ok(Reply::Waiting { .. })), "{reply:?}");
        }
    }
}
