//! Requests that take effect and whose answers get lost with their connections: nothing happens twice, and nothing stays.

use std::time::Duration;

use fencepost_core::clock::Clock;
use fencepost_core::{Client, ErrorKind, Guard, Lock, Mode};

use super::{LONG_TTL, granted, hold, spawn_waiter};
use crate::actions::{enqueue, until_idle};
use crate::test_bench::WireBench;
use crate::wait;
use crate::wire::Direction;

/// A lease for those whose answers may get lost. What is left of a doubtful request is remembered for twice as long at
/// most, and is to be gone before a test is over.
const DOUBTFUL: Duration = Duration::from_secs(6);
const ROUNDS: usize = 3;

/// A lock in every way in which it can be wanted.
fn every_way(client: &Client) -> [Lock; 5] {
    let locks = [
        client.lock("a"),
        client.lock("a").mode(Mode::Shared),
        client.lock("a").mode(Mode::Semaphore { permits: 3 }),
        client.lock_any(["b", "a"]),
        client.lock_all(["a", "b"]),
    ];
    locks.map(|lock| lock.ttl(DOUBTFUL))
}

/// For each of its names there is one entry in the storage, and one holder as others see it.
async fn is_one_grant<B: WireBench>(bench: &B, observer: &Client, guard: &Guard) {
    for name in guard.names() {
        let holders = observer.inspect(name).await.expect("the lock can be inspected").holders;
        assert_eq!((holders.len(), holders[0].token), (1, Some(guard.token())));
    }
    let left = bench.peek().await;
    assert_eq!(left.holders + left.tickets, guard.names().count(), "{left:?}");
}

/// An acquire is sent again, and there is one grant.
pub async fn an_acquire_without_an_answer_is_one_grant<B: WireBench>(bench: &B) {
    let (client, other) = (bench.client().await, bench.direct_client().await);
    let mut lost = 0;
    for lock in every_way(&client) {
        for _ in 0..ROUNDS {
            bench.wire().lose_reply_to(bench.acquire_bytes());
            let guard = hold(&lock).await;
            lost += 1;
            assert_eq!(bench.wire().replies_lost(), lost);
            is_one_grant(bench, &other, &guard).await;
            guard.release().await.expect("it is held");
        }
    }
}

/// The same for whoever does not wait.
pub async fn a_try_without_an_answer_is_one_grant<B: WireBench>(bench: &B) {
    let (client, other) = (bench.client().await, bench.direct_client().await);
    let mut lost = 0;
    for lock in every_way(&client) {
        bench.wire().lose_reply_to(bench.acquire_bytes());
        let guard = lock.try_acquire().await.expect("it is sent again").expect("it is free");
        lost += 1;
        assert_eq!(bench.wire().replies_lost(), lost);
        is_one_grant(bench, &other, &guard).await;
        guard.release().await.expect("it is held");
    }
}

/// A waiter whose coming was not answered has one place.
pub async fn a_waiter_without_an_answer_is_one_place<B: WireBench>(bench: &B) {
    let (client, other) = (bench.client().await, bench.direct_client().await);
    let guard = hold(&other.lock("a").ttl(LONG_TTL)).await;
    bench.wire().lose_reply_to(bench.acquire_bytes());
    let waiter = enqueue(&other, client.lock("a").ttl(DOUBTFUL), "a", 1).await;
    wait::until("the answer is lost", async || bench.wire().replies_lost() == 1).await;
    guard.release().await.expect("it is held");
    granted(waiter).await.release().await.expect("it is held");
}

/// Whoever asked has gone when the connection is back: what was granted meanwhile is given back, long before its lease
/// would end.
pub async fn an_acquire_that_nobody_waits_for_any_more_leaves_no_ghost<B: WireBench>(bench: &B) {
    const TTL: Duration = Duration::from_secs(12);
    const NAMES: [&str; 5] = ["a", "b", "c", "d", "e"];
    let (client, other) = (bench.client().await, bench.direct_client().await);
    // Whatever a storage makes by a request of its own before the first grant is there already.
    for name in NAMES {
        hold(&client.lock(name).ttl(TTL)).await.release().await.expect("it is held");
    }
    let clock = Clock::system();
    let asked = clock.now();
    bench.wire().one_way(Direction::ToServer);
    let mut asking = Vec::new();
    for lock in
        [client.lock("a"), client.lock_any(["b", "c"]), client.lock("d").mode(Mode::Semaphore { permits: 2 })]
    {
        asking.push(spawn_waiter(lock.ttl(TTL).wait(Duration::from_millis(200))));
    }
    for asked in asking {
        let outcome = wait::within_timeout("its wait is over", asked).await.expect("it is not cancelled");
        assert_eq!(outcome.expect_err("nobody has answered").kind(), ErrorKind::WaitTimeout);
    }
    let dropped = spawn_waiter(client.lock("e").ttl(TTL));
    wait::until("the server has heard of it", async || {
        !other.inspect("e").await.expect("the lock can be inspected").holders.is_empty()
    })
    .await;
    dropped.abort();
    bench.wire().heal();
    for name in NAMES {
        until_idle(&other, name).await;
    }
    assert!(clock.now() < asked + TTL, "they may have ended by themselves");
}

/// A release has taken place, the next holder is left alone, and nobody is told of a loss.
pub async fn a_release_without_an_answer_is_no_loss<B: WireBench>(bench: &B) {
    let (client, other) = (bench.client().await, bench.direct_client().await);
    for round in 1..=5 {
        let guard = hold(&client.lock("a").ttl(DOUBTFUL)).await;
        let token = guard.token();
        let waiter = enqueue(&other, other.lock("a").ttl(DOUBTFUL), "a", 1).await;
        bench.wire().lose_reply_to(bench.release_bytes());
        let outcome = wait::within_timeout("the release is over", guard.release()).await;
        if let Err(error) = outcome {
            assert_eq!(error.kind(), ErrorKind::OutcomeUnknown, "{error}");
        }
        let next = granted(waiter).await;
        assert!(next.token() > token && next.is_valid());
        let holders = other.inspect("a").await.expect("the lock can be inspected").holders;
        assert_eq!((holders.len(), holders[0].token), (1, Some(next.token())));
        assert_eq!(bench.wire().replies_lost(), round);
        next.release().await.expect("it is held");
    }
}

/// Scenario 61: an acquire is held up on the wire while its client goes on along another connection, and arrives when
/// nothing remembers that its caller has left: the lock can be acquired again within a ttl.
pub async fn an_acquire_that_arrives_much_later_does_not_block_the_lock<B: WireBench>(bench: &B) {
    let ttl = bench.ttl_above_read_timeout();
    let (client, other) = (bench.client().await, bench.direct_client().await);
    // Whatever a storage makes by a request of its own before the first grant is there already.
    hold(&client.lock("a").ttl(ttl)).await.release().await.expect("it is held");
    // What the client has with the same ttl keeps a lease alive that both may share.
    let kept = hold(&client.lock("kept").ttl(ttl)).await;
    bench.wire().strand(bench.acquire_bytes());
    let late = spawn_waiter(client.lock("a").ttl(ttl).wait(Duration::from_millis(200)));
    let outcome = wait::within_timeout("its wait is over", late).await.expect("it is not cancelled");
    assert_eq!(outcome.expect_err("nothing has arrived").kind(), ErrorKind::WaitTimeout);
    wait::elapse(ttl * 3).await;
    bench.wire().heal();
    wait::until("the acquire arrives", async || bench.wire().delivered() > 0).await;
    wait::elapse(ttl).await;
    hold(&other.lock("a").ttl(ttl)).await.release().await.expect("it is held");
    assert_eq!(kept.lost_reason(), None);
    kept.release().await.expect("it is still held");
}
