//! Connections that break, and what is special about those to etcd; the rest is in the test kit.

use std::time::Duration;

use fencepost_core::Mode;
use fencepost_testkit::servers::etcd::shared;
use fencepost_testkit::suite::assert_clean;
use fencepost_testkit::wait;
use fencepost_testkit::wire::{Direction, Wire};
use fencepost_testkit::{TestBench, WireBench};

use crate::actions::{LONG_TTL, granted, hold, spawn_waiter, until_idle};
use crate::bench::{EtcdBench, Server};

/// A lease for those whose answers may get lost. What is left of a doubtful request is remembered for twice as long, and is to
/// be gone before a test is over.
const DOUBTFUL: Duration = Duration::from_secs(6);

/// The request itself is lost: it is sent again, and granted.
#[tokio::test]
async fn an_acquire_that_never_arrived_is_sent_again() {
    let bench = EtcdBench::plain();
    let client = bench.client().await;
    hold(&client.lock("first").ttl(LONG_TTL)).await.release().await.unwrap();
    for lock in [client.lock("a"), client.lock("a").mode(Mode::Shared), client.lock_any(["b", "c"])] {
        bench.wire().one_way(Direction::ToClient);
        let asking = spawn_waiter(lock.ttl(LONG_TTL).wait(Duration::from_secs(25)));
        // Longer than the patience of one call.
        wait::elapse(Duration::from_millis(5500)).await;
        assert!(!asking.is_finished(), "{:?}", asking.await);
        bench.wire().reset();
        bench.wire().heal();
        granted(asking).await.release().await.unwrap();
    }
}

/// A request that hangs on its way to one member arrives when its owner has held the lock through another, and has given it
/// back long ago: it does nothing, although its lease lives.
#[tokio::test]
async fn an_acquire_that_arrives_when_all_is_over_leaves_no_key() {
    let (slow, fast) = (Wire::to(shared().port()), Wire::to(shared().port()));
    let url = format!("etcd://127.0.0.1:{},127.0.0.1:{}", slow.port(), fast.port());
    let bench = EtcdBench::at(&url, "", Server::Shared(shared()));
    let client = bench.client().await;
    let kept = hold(&client.lock("kept").ttl(DOUBTFUL)).await;
    for lock in [client.lock("a"), client.lock_all(["a", "b"]), client.lock_any(["b", "a"])] {
        slow.blackhole();
        hold(&lock.ttl(DOUBTFUL)).await.release().await.unwrap();
        slow.heal();
        // It has arrived by now.
        wait::elapse(Duration::from_millis(500)).await;
        assert_eq!((bench.line("a"), bench.line("b")), (Vec::new(), Vec::new()));
        fast.reset();
        wait::until("it is connected to the first again", async || {
            let _ = client.lock("probe").ttl(DOUBTFUL).try_acquire().await;
            slow.connections() > 0 && fast.connections() == 0
        })
        .await;
    }
    kept.release().await.unwrap();
    assert_clean(&bench).await;
}

/// An acquire of one of several takes effect, its answer is lost, and nobody waits any more: no key stays.
#[tokio::test]
async fn one_of_several_that_nobody_waits_for_any_more_leaves_no_ghost() {
    let bench = EtcdBench::plain();
    let client = bench.client().await;
    hold(&client.lock("first").ttl(LONG_TTL)).await.release().await.unwrap();
    let other = bench.direct_client().await;
    let held = hold(&other.lock("b").ttl(LONG_TTL)).await;
    bench.wire().lose_reply_to(bench.acquire_bytes());
    // The first of them is taken, so it is the second.
    let lock = client.lock_any(["b", "c"]).ttl(LONG_TTL);
    let asking = tokio::spawn(async move { lock.acquire().await.map(drop) });
    wait::until("the answer is lost", async || bench.wire().replies_lost() == 1).await;
    asking.abort();
    // Long before the lease is over.
    until_idle(&other, "c").await;
    held.release().await.unwrap();
    until_idle(&other, "b").await;
    client.close().await;
}
