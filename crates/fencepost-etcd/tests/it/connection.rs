//! Broken connections, as far as they are specific to etcd; the rest is in the test kit.

use std::time::Duration;

use fencepost_core::Mode;
use fencepost_testkit::servers::etcd::shared;
use fencepost_testkit::suite::assert_clean;
use fencepost_testkit::wait;
use fencepost_testkit::wire::{Direction, Wire};
use fencepost_testkit::{TestBench, WireBench};

use crate::actions::{LONG_TTL, granted, hold, spawn_waiter, until_idle};
use crate::bench::{EtcdBench, Server};

/// The ttl of attempts whose responses may be lost. A tombstone is remembered for twice as long, and must be gone before a
/// test ends.
const UNKNOWN_TTL: Duration = Duration::from_secs(6);

/// The request itself is lost: it is sent again, and granted.
#[tokio::test]
async fn a_lost_acquire_is_sent_again() {
    let bench = EtcdBench::plain();
    let client = bench.client().await;
    hold(&client.lock("first").ttl(LONG_TTL)).await.release().await.unwrap();
    for lock in [client.lock("a"), client.lock("a").mode(Mode::Shared), client.lock_any(["b", "c"])] {
        bench.wire().one_way(Direction::ToClient);
        let waiter = spawn_waiter(lock.ttl(LONG_TTL).wait(Duration::from_secs(25)));
        // Longer than the timeout of one call.
        wait::elapse(Duration::from_millis(5500)).await;
        assert!(!waiter.is_finished(), "{:?}", waiter.await);
        bench.wire().reset();
        bench.wire().heal();
        granted(waiter).await.release().await.unwrap();
    }
}

/// A request that is delayed on the way to one member arrives after its owner has held the lock through another member and
/// released it: it does nothing, although its lease lives.
#[tokio::test]
async fn an_acquire_that_arrives_after_the_release_creates_no_key() {
    let (slow, fast) = (Wire::to(shared().port()), Wire::to(shared().port()));
    let url = format!("etcd://127.0.0.1:{},127.0.0.1:{}", slow.port(), fast.port());
    let bench = EtcdBench::at(&url, "", Server::Shared(shared()));
    let client = bench.client().await;
    let kept = hold(&client.lock("kept").ttl(UNKNOWN_TTL)).await;
    for lock in [client.lock("a"), client.lock_all(["a", "b"]), client.lock_any(["b", "a"])] {
        slow.blackhole();
        hold(&lock.ttl(UNKNOWN_TTL)).await.release().await.unwrap();
        slow.heal();
        // The request has arrived by now.
        wait::elapse(Duration::from_millis(500)).await;
        assert_eq!((bench.queue("a"), bench.queue("b")), (Vec::new(), Vec::new()));
        fast.reset();
        wait::until("it is connected to the first again", async || {
            let _ = client.lock("probe").ttl(UNKNOWN_TTL).try_acquire().await;
            slow.connections() > 0 && fast.connections() == 0
        })
        .await;
    }
    kept.release().await.unwrap();
    assert_clean(&bench).await;
}

/// An acquire of one of several is applied, its response is lost, and the caller is cancelled: no key is left.
#[tokio::test]
async fn a_cancelled_acquire_of_one_of_several_leaves_no_orphan() {
    let bench = EtcdBench::plain();
    let client = bench.client().await;
    hold(&client.lock("first").ttl(LONG_TTL)).await.release().await.unwrap();
    let other = bench.direct_client().await;
    let held = hold(&other.lock("b").ttl(LONG_TTL)).await;
    bench.wire().lose_reply_to(bench.acquire_bytes());
    // The first is held, so the second is acquired.
    let lock = client.lock_any(["b", "c"]).ttl(LONG_TTL);
    let acquire = tokio::spawn(async move { lock.acquire().await.map(drop) });
    wait::until("the response is lost", async || bench.wire().replies_lost() == 1).await;
    acquire.abort();
    // Long before the lease expires.
    until_idle(&other, "c").await;
    held.release().await.unwrap();
    until_idle(&other, "b").await;
    client.close().await;
}
