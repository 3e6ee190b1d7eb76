//! Connections that break: who notices, who does not, and what is left behind.

use std::time::Duration;

use fencepost_core::clock::Clock;
use fencepost_core::{Client, ErrorKind, LostReason, Mode};
use fencepost_testkit::TestBench;
use fencepost_testkit::servers::etcd::shared;
use fencepost_testkit::suite::assert_clean;
use fencepost_testkit::wait;
use fencepost_testkit::wire::{Direction, Wire};

use crate::actors::{LONG, SHORT, connect, granted, hold, joined, waiting};
use crate::bench::{EtcdBench, Server};

/// A lease for those whose answers may get lost. What is left of a doubtful request is remembered for twice as long, and is to
/// be gone before a test is over.
const DOUBTFUL: Duration = Duration::from_secs(6);
/// What stands only in a request that makes a contender's key.
const COMING: &[u8] = b"\"since\":";

/// A client of the same namespace whose connection is always fine.
async fn bystander(bench: &EtcdBench) -> Client {
    connect(&format!("{}?namespace={}", shared().url(), bench.namespace())).await
}

/// Holds a lock, lets the fault last until half of the lease is nearly gone, and sees that nobody noticed.
async fn goes_unnoticed(break_it: impl FnOnce(&Wire)) {
    let bench = EtcdBench::plain();
    let ttl = SHORT * 3;
    let client = bench.client().await;
    let guard = hold(&client.lock("a").ttl(ttl)).await;
    let token = guard.token();
    break_it(bench.wire());
    wait::until("a renewal is late", async || guard.remaining() < ttl * 6 / 10).await;
    bench.wire().heal();
    wait::until("it is renewed", async || guard.remaining() > ttl * 9 / 10).await;
    assert_eq!((guard.lost_reason(), guard.token()), (None, token));
    guard.release().await.unwrap();
    assert_clean(&bench).await;
}

#[tokio::test]
async fn a_cut_of_less_than_half_a_lease_goes_unnoticed() {
    goes_unnoticed(Wire::cut).await;
}

#[tokio::test]
async fn silence_of_less_than_half_a_lease_goes_unnoticed() {
    goes_unnoticed(Wire::half_open).await;
}

#[tokio::test]
async fn silence_of_the_server_goes_unnoticed() {
    goes_unnoticed(|wire| wire.one_way(Direction::ToServer)).await;
}

#[tokio::test]
async fn silence_towards_the_server_goes_unnoticed() {
    goes_unnoticed(|wire| wire.one_way(Direction::ToClient)).await;
}

/// Scenario 20: nothing is heard any more, and the lock is lost at its deadline, not when a call gives up.
#[tokio::test]
async fn a_silent_wire_loses_the_lock_at_its_deadline() {
    let bench = EtcdBench::plain();
    let clock = Clock::system();
    let client = bench.client().await;
    let guard = hold(&client.lock("a").ttl(SHORT)).await;
    bench.wire().half_open();
    assert_eq!(wait::within_patience("the lock is lost", guard.lost()).await, LostReason::Expired);
    assert!(clock.now() >= guard.valid_until(), "it was lost too early");
    assert!(clock.now() < guard.valid_until() + SHORT, "it was lost too late");
    bench.wire().heal();
    let again = hold(&client.lock("a").ttl(SHORT)).await;
    assert!(again.token() > guard.token());
    again.release().await.unwrap();
    drop(guard);
    assert_clean(&bench).await;
}

/// The answer to an acquire is lost with its connection: it is sent again, and there is one key.
#[tokio::test]
async fn an_acquire_without_an_answer_is_one_key() {
    let bench = EtcdBench::plain();
    let (client, other) = (bench.client().await, bystander(&bench).await);
    let locks = [
        client.lock("a"),
        client.lock("a").mode(Mode::Shared),
        client.lock("a").mode(Mode::Slots { of: 3 }),
        client.lock_any(["b", "a"]),
        client.lock_all(["a", "b"]),
    ];
    for (number, lock) in locks.into_iter().enumerate() {
        bench.wire().lose_answer_to(COMING);
        let guard = hold(&lock.ttl(DOUBTFUL)).await;
        let name = guard.names().next().unwrap().clone();
        let holders = other.inspect(&name).await.unwrap().holders;
        assert_eq!((holders.len(), holders[0].token), (1, guard.token()));
        assert_eq!(bench.keys().iter().filter(|key| key.starts_with("lock/")).count(), guard.names().count());
        assert_eq!(bench.wire().answers_lost(), number + 1);
        guard.release().await.unwrap();
    }
    assert_clean(&bench).await;
}

/// The same for whoever does not wait.
#[tokio::test]
async fn a_try_without_an_answer_is_one_key() {
    let bench = EtcdBench::plain();
    let client = bench.client().await;
    for lock in [
        client.lock("a"),
        client.lock("a").mode(Mode::Slots { of: 3 }),
        client.lock_any(["b", "a"]),
        client.lock_all(["a", "b"]),
    ] {
        bench.wire().lose_answer_to(COMING);
        let guard = lock.ttl(DOUBTFUL).try_acquire().await.unwrap().expect("it is free");
        assert_eq!(bench.keys().iter().filter(|key| key.starts_with("lock/")).count(), guard.names().count());
        guard.release().await.unwrap();
    }
    assert_clean(&bench).await;
}

/// The request itself is lost: it is sent again, and granted.
#[tokio::test]
async fn an_acquire_that_never_arrived_is_sent_again() {
    let bench = EtcdBench::plain();
    let client = bench.client().await;
    hold(&client.lock("first").ttl(LONG)).await.release().await.unwrap();
    for lock in [client.lock("a"), client.lock("a").mode(Mode::Shared), client.lock_any(["b", "c"])] {
        bench.wire().one_way(Direction::ToClient);
        let asking = waiting(lock.ttl(LONG).wait(Duration::from_secs(25)));
        // Longer than the patience of one call.
        wait::passes(Duration::from_millis(5500)).await;
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
        slow.half_open();
        hold(&lock.ttl(DOUBTFUL)).await.release().await.unwrap();
        slow.heal();
        // It has arrived by now.
        wait::passes(Duration::from_millis(500)).await;
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

/// Whoever asked has gone when the connection is back: what was granted meanwhile is given back.
#[tokio::test]
async fn an_acquire_that_nobody_waits_for_any_more_leaves_no_ghost() {
    let bench = EtcdBench::plain();
    let (client, other) = (bench.client().await, bystander(&bench).await);
    bench.wire().one_way(Direction::ToServer);
    let mut asking = Vec::new();
    for lock in [client.lock("a"), client.lock_any(["b", "c"]), client.lock("d").mode(Mode::Slots { of: 2 })]
    {
        let lock = lock.ttl(DOUBTFUL).wait(Duration::from_millis(200));
        asking.push(tokio::spawn(async move { lock.acquire().await.map(drop) }));
    }
    for asked in asking {
        assert_eq!(asked.await.unwrap().unwrap_err().kind(), ErrorKind::WaitedOut);
    }
    let dropped = waiting(client.lock("e").ttl(DOUBTFUL));
    wait::passes(Duration::from_millis(200)).await;
    dropped.abort();
    bench.wire().heal();
    for name in ["a", "b", "c", "d", "e"] {
        crate::actors::until_idle(&other, name).await;
    }
    assert_clean(&bench).await;
}

/// An acquire of one of several takes effect, its answer is lost, and nobody waits any more: no key stays.
#[tokio::test]
async fn one_of_several_that_nobody_waits_for_any_more_leaves_no_ghost() {
    let bench = EtcdBench::plain();
    let client = bench.client().await;
    hold(&client.lock("first").ttl(LONG)).await.release().await.unwrap();
    let other = bystander(&bench).await;
    let held = hold(&other.lock("b").ttl(LONG)).await;
    bench.wire().lose_answer_to(COMING);
    // The first of them is taken, so it is the second.
    let lock = client.lock_any(["b", "c"]).ttl(LONG);
    let asking = tokio::spawn(async move { lock.acquire().await.map(drop) });
    wait::until("the answer is lost", async || bench.wire().answers_lost() == 1).await;
    asking.abort();
    // Long before the lease is over.
    crate::actors::until_idle(&other, "c").await;
    held.release().await.unwrap();
    crate::actors::until_idle(&other, "b").await;
    client.close().await;
}

/// The answer to a release is lost: it has taken place, the next holder is left alone, and nobody is told of a loss.
#[tokio::test]
async fn a_release_without_an_answer_is_no_loss() {
    let bench = EtcdBench::plain();
    let (client, other) = (bench.client().await, bystander(&bench).await);
    for _ in 0..3 {
        let guard = hold(&client.lock("a").ttl(DOUBTFUL)).await;
        let token = guard.token();
        let waiter = joined(&other, other.lock("a").ttl(DOUBTFUL), "a", 1).await;
        bench.wire().lose_answer_to(b"/lock/a/x/");
        let outcome = wait::within_patience("the release is over", guard.release()).await;
        if let Err(error) = outcome {
            assert_eq!(error.kind(), ErrorKind::OutcomeUnknown, "{error}");
        }
        let next = granted(waiter).await;
        assert!(next.token() > token && next.is_valid());
        assert_eq!(other.inspect("a").await.unwrap().holders[0].token, next.token());
        next.release().await.unwrap();
        bench.wire().heal();
    }
    assert!(bench.wire().answers_lost() > 0);
    assert_clean(&bench).await;
}

/// A connection that is replaced costs nobody his place, whoever comes while it is away.
#[tokio::test]
async fn waiters_keep_their_places_over_a_reset() {
    let bench = EtcdBench::plain();
    let (client, other) = (bench.client().await, bystander(&bench).await);
    let guard = hold(&other.lock("a").ttl(DOUBTFUL)).await;
    let first = joined(&other, client.lock("a").ttl(DOUBTFUL), "a", 1).await;
    let second = joined(&other, client.lock("a").ttl(DOUBTFUL), "a", 2).await;
    bench.wire().reset();
    let third = joined(&other, other.lock("a").ttl(DOUBTFUL), "a", 3).await;
    bench.wire().reset();
    let mut newest = guard.token();
    guard.release().await.unwrap();
    for waiter in [first, second, third] {
        let guard = granted(waiter).await;
        assert!(guard.token() > newest, "somebody was overtaken");
        newest = guard.token();
        guard.release().await.unwrap();
    }
    assert_clean(&bench).await;
}

/// Nobody listens when the lock becomes free: whoever comes back first in line gets it long before its heartbeat.
#[tokio::test]
async fn a_lock_that_became_free_while_nobody_listened_is_found() {
    let bench = EtcdBench::plain();
    let (away, other) = (bench.client().await, bystander(&bench).await);
    let guard = hold(&other.lock("a").ttl(LONG)).await;
    let waiter = joined(&other, away.lock("a").ttl(LONG), "a", 1).await;
    bench.wire().cut();
    guard.release().await.unwrap();
    bench.wire().heal();
    granted(waiter).await.release().await.unwrap();
    assert_clean(&bench).await;
}
