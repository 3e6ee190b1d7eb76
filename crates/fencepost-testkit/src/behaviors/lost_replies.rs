//! Requests that take effect and whose replies are lost with their connections: nothing happens twice, and nothing is left.

use std::time::Duration;

use fencepost_core::clock::Clock;
use fencepost_core::{Client, ErrorKind, Guard, Lock, Mode};

use super::{LONG_TTL, granted, hold, spawn_waiter, supported};
use crate::actions::{enqueue, until_idle};
use crate::test_bench::WireBench;
use crate::wait;
use crate::wire::Direction;

/// A ttl for requests whose replies may be lost. Tombstones of requests with an unknown outcome are kept for at most twice
/// as long, and must be gone before the test ends.
const UNKNOWN_OUTCOME_TTL: Duration = Duration::from_secs(6);
const ROUNDS: usize = 3;

/// A lock in every mode and rule that the backend supports.
async fn every_kind_of_lock(client: &Client) -> Vec<Lock> {
    let kinds = [
        client.lock("a"),
        client.lock("a").mode(Mode::Shared),
        client.lock("a").mode(Mode::Semaphore { permits: 3 }),
        client.lock_any(["b", "a"]),
        client.lock_all(["a", "b"]),
    ];
    let mut locks = Vec::new();
    for lock in kinds.map(|lock| lock.ttl(UNKNOWN_OUTCOME_TTL)) {
        if let Some(guard) = supported(lock.try_acquire().await) {
            guard.expect("it is free").release().await.expect("it is held");
            locks.push(lock);
        }
    }
    locks
}

/// For each name of the guard there is one entry in the backend and one visible holder.
async fn is_one_grant<B: WireBench>(bench: &B, observer: &Client, guard: &Guard) {
    for name in guard.names() {
        let holders = observer.inspect(name).await.expect("the lock can be inspected").holders;
        assert_eq!((holders.len(), holders[0].token), (1, Some(guard.token())));
    }
    let left = bench.peek().await;
    assert_eq!(left.holders + left.tickets, guard.names().count(), "{left:?}");
}

/// Waits until this many replies were lost: a request may be sent again on another connection before its first one is closed.
async fn until_lost(bench: &impl WireBench, lost: usize) {
    wait::until("the reply is lost", async || bench.wire().replies_lost() == lost).await;
}

/// An acquire is sent again, and there is one grant.
pub async fn an_acquire_without_a_reply_is_granted_once<B: WireBench>(bench: &B) {
    let (client, other) = (bench.client().await, bench.direct_client().await);
    let mut lost = 0;
    for lock in every_kind_of_lock(&client).await {
        for _ in 0..ROUNDS {
            bench.wire().lose_reply_to(bench.acquire_bytes());
            let guard = hold(&lock).await;
            lost += 1;
            until_lost(bench, lost).await;
            is_one_grant(bench, &other, &guard).await;
            guard.release().await.expect("it is held");
        }
    }
}

/// The same for a try.
pub async fn a_try_without_a_reply_is_granted_once<B: WireBench>(bench: &B) {
    let (client, other) = (bench.client().await, bench.direct_client().await);
    let mut lost = 0;
    for lock in every_kind_of_lock(&client).await {
        bench.wire().lose_reply_to(bench.acquire_bytes());
        let guard = lock.try_acquire().await.expect("it is sent again").expect("it is free");
        lost += 1;
        until_lost(bench, lost).await;
        is_one_grant(bench, &other, &guard).await;
        guard.release().await.expect("it is held");
    }
}

/// A waiter whose first request had no reply has one ticket.
pub async fn a_waiter_without_a_reply_has_one_ticket<B: WireBench>(bench: &B) {
    let (client, other) = (bench.client().await, bench.direct_client().await);
    let guard = hold(&other.lock("a").ttl(LONG_TTL)).await;
    bench.wire().lose_reply_to(bench.acquire_bytes());
    let waiter = enqueue(&other, client.lock("a").ttl(UNKNOWN_OUTCOME_TTL), "a", 1).await;
    until_lost(bench, 1).await;
    guard.release().await.expect("it is held");
    granted(waiter).await.release().await.expect("it is held");
}

/// The caller has given up before the connection is back: a lock that was granted meanwhile is released, long before its
/// lease would expire.
pub async fn an_acquire_whose_caller_is_gone_leaves_no_orphan<B: WireBench>(bench: &B) {
    const TTL: Duration = Duration::from_secs(12);
    const NAMES: [&str; 5] = ["a", "b", "c", "d", "e"];
    let (client, other) = (bench.client().await, bench.direct_client().await);
    // State that a backend creates by a separate request before the first grant exists already.
    for name in NAMES {
        hold(&client.lock(name).ttl(TTL)).await.release().await.expect("it is held");
    }
    let clock = Clock::system();
    let asked = clock.now();
    bench.wire().one_way(Direction::ToServer);
    let dropped = spawn_waiter(client.lock("e").ttl(TTL));
    let mut asking = Vec::new();
    for lock in
        [client.lock("a"), client.lock_any(["b", "c"]), client.lock("d").mode(Mode::Semaphore { permits: 2 })]
    {
        asking.push(spawn_waiter(lock.ttl(TTL).wait(Duration::from_millis(200))));
    }
    if bench.grants_in_one_request() {
        wait::until("the server has granted it", async || {
            !other.inspect("e").await.expect("the lock can be inspected").holders.is_empty()
        })
        .await;
    }
    for asked in asking {
        let outcome =
            wait::within_timeout("its wait has timed out", asked).await.expect("it is not cancelled");
        assert_eq!(outcome.expect_err("there was no reply").kind(), ErrorKind::WaitTimeout);
    }
    dropped.abort();
    bench.wire().heal();
    for name in NAMES {
        until_idle(&other, name).await;
    }
    assert!(clock.now() < asked + TTL, "the leases may have expired");
}

/// The release has taken place, the next holder is unaffected, and no loss is reported.
pub async fn a_release_without_a_reply_is_not_a_loss<B: WireBench>(bench: &B) {
    let (client, other) = (bench.client().await, bench.direct_client().await);
    for round in 1..=5 {
        let guard = hold(&client.lock("a").ttl(UNKNOWN_OUTCOME_TTL)).await;
        let token = guard.token();
        let waiter = enqueue(&other, other.lock("a").ttl(UNKNOWN_OUTCOME_TTL), "a", 1).await;
        bench.wire().lose_reply_to(bench.release_bytes());
        let outcome = wait::within_timeout("the release is over", guard.release()).await;
        if let Err(error) = outcome {
            assert_eq!(error.kind(), ErrorKind::OutcomeUnknown, "{error}");
        }
        let next = granted(waiter).await;
        assert!(next.token() > token && next.is_valid());
        let holders = other.inspect("a").await.expect("the lock can be inspected").holders;
        assert_eq!((holders.len(), holders[0].token), (1, Some(next.token())));
        until_lost(bench, round).await;
        next.release().await.expect("it is held");
    }
}

/// Scenario 61: an acquire is delayed on the network while its client goes on with another connection, and arrives when the
/// tombstone of its caller has expired: the lock can be acquired again within a ttl.
pub async fn an_acquire_that_arrives_much_later_does_not_block_the_lock<B: WireBench>(bench: &B) {
    let ttl = bench.ttl_above_read_timeout();
    let (client, other) = (bench.client().await, bench.direct_client().await);
    // State that a backend creates by a separate request before the first grant exists already.
    hold(&client.lock("a").ttl(ttl)).await.release().await.expect("it is held");
    // Another lock with the same ttl keeps a lease alive that both may share.
    let kept = hold(&client.lock("kept").ttl(ttl)).await;
    bench.wire().strand(bench.acquire_bytes());
    let late = spawn_waiter(client.lock("a").ttl(ttl).wait(Duration::from_millis(200)));
    let outcome = wait::within_timeout("its wait has timed out", late).await.expect("it is not cancelled");
    assert_eq!(outcome.expect_err("nothing has arrived").kind(), ErrorKind::WaitTimeout);
    wait::elapse(ttl * 3).await;
    bench.wire().heal();
    if bench.grants_in_one_request() {
        wait::until("the acquire arrives", async || bench.wire().delivered() > 0).await;
    }
    wait::elapse(ttl).await;
    hold(&other.lock("a").ttl(ttl)).await.release().await.expect("it is held");
    assert_eq!(kept.lost_reason(), None);
    kept.release().await.expect("it is still held");
}
