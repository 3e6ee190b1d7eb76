//! Every public future may be dropped at any point: after each poll, with more or less time for what is in flight.
//! Afterwards nothing may be left in the backend.

use std::future::{Future, poll_fn};
use std::task::Poll;

use fencepost_core::{Client, Guard, Keep, LostReason, Page};
use futures_util::FutureExt;

use super::{LONG_TTL, hold, supported, until_free, until_queued};
use crate::test_bench::TestBench;
use crate::wait;

/// The number of times to yield to the runtime before the drop: the reply may arrive meanwhile, unread.
const LINGER: [usize; 4] = [0, 1, 20, 400];

/// Polls the future this many times, each time that it is woken, yields, and drops it; returns its output if it was ready.
async fn abandon<F: Future>(future: F, polls: usize, linger: usize) -> Option<F::Output> {
    let mut future = Box::pin(future);
    let mut left = polls;
    let out = poll_fn(|cx| {
        if left == 0 {
            return Poll::Ready(None);
        }
        left -= 1;
        match future.as_mut().poll(cx) {
            Poll::Ready(out) => Poll::Ready(Some(out)),
            Poll::Pending if left == 0 => Poll::Ready(None),
            Poll::Pending => Poll::Pending,
        }
    });
    let out = out.await;
    for _ in 0..linger {
        tokio::task::yield_now().await;
    }
    out
}

/// Creates the future repeatedly and drops it one poll later each time, until it is ready before the drop.
async fn at_every_point<F: Future>(mut make: impl AsyncFnMut() -> F, mut afterwards: impl AsyncFnMut()) {
    for linger in LINGER {
        for polls in 0.. {
            let future = make().await;
            let out = abandon(future, polls, linger).await;
            let ready = out.is_some();
            drop(out);
            afterwards().await;
            if ready {
                break;
            }
        }
    }
}

/// A dropped try acquires nothing.
pub async fn a_dropped_try_acquires_nothing<B: TestBench>(bench: &B) {
    let client = bench.client().await;
    let lock = client.lock("a").ttl(LONG_TTL);
    at_every_point(async || lock.try_acquire(), async || until_free(&client, "a").await).await;
}

/// A dropped acquire acquires nothing.
pub async fn a_dropped_acquire_acquires_nothing<B: TestBench>(bench: &B) {
    let client = bench.client().await;
    let lock = client.lock_all(["a", "b"]).ttl(LONG_TTL);
    at_every_point(
        async || lock.acquire(),
        async || {
            until_free(&client, "a").await;
            until_free(&client, "b").await;
        },
    )
    .await;
}

/// An acquire that is dropped while it joins the queue leaves no ticket.
pub async fn a_dropped_waiter_leaves_no_ticket<B: TestBench>(bench: &B) {
    let client = bench.client().await;
    let guard = hold(&client.lock("a").ttl(LONG_TTL)).await;
    let lock = client.lock("a").ttl(LONG_TTL);
    for _ in 0..5 {
        for linger in LINGER {
            assert!(abandon(lock.acquire(), 1, linger).await.is_none());
        }
    }
    until_queued(&client, "a", 0).await;
    assert!(guard.is_valid());
    guard.release().await.unwrap();
}

/// A waiter that is dropped while the lock is handed to it releases it.
pub async fn a_waiter_dropped_when_granted_releases_its_grant<B: TestBench>(bench: &B) {
    let client = bench.client().await;
    let lock = client.lock("a").ttl(LONG_TTL);
    for _ in 0..3 {
        for linger in LINGER {
            let guard = hold(&lock).await;
            let mut waiter = Box::pin(lock.acquire());
            assert!((&mut waiter).now_or_never().is_none());
            until_queued(&client, "a", 1).await;
            guard.release().await.unwrap();
            abandon(std::future::pending::<()>(), 0, linger).await;
            drop(waiter);
            until_free(&client, "a").await;
        }
    }
}

/// Scenario 25: a dropped release completes.
pub async fn a_dropped_release_completes<B: TestBench>(bench: &B) {
    let client = bench.client().await;
    let lock = client.lock("a").ttl(LONG_TTL);
    // Polled at least once: before that, the guard is only dropped.
    let release = async || hold(&lock).await.release();
    at_every_point(release, async || until_free(&client, "a").await).await;
}

/// Queries and the writing of a cell may be dropped at any point: the lock stays held.
pub async fn queries_may_be_dropped<B: TestBench>(bench: &B) {
    let client = bench.client().await;
    let guard = hold(&client.lock("a").ttl(LONG_TTL)).await;
    let still_held = async || assert!(guard.is_valid());
    at_every_point(async || guard.write_cell(*b"value", Keep::WhileHeld), still_held).await;
    at_every_point(async || guard.read_cell(), still_held).await;
    at_every_point(async || client.read_cell("a"), still_held).await;
    at_every_point(async || client.inspect("a"), still_held).await;
    at_every_point(async || client.list("", Page::new(9)), still_held).await;
    if let Some(cell) = supported(guard.read_cell().await) {
        assert_eq!(&*cell.unwrap().bytes, b"value");
    }
    guard.release().await.unwrap();
}

/// A dropped break has broken the lock completely or not at all.
pub async fn a_dropped_break_is_atomic<B: TestBench>(bench: &B) {
    let client = bench.client().await;
    for linger in LINGER {
        for polls in 0..3 {
            let guard = hold(&client.lock("a").ttl(LONG_TTL)).await;
            abandon(client.break_lock("a", guard.token()), polls, linger).await;
            if let Err(error) = guard.release().await {
                let reason = error.lost_reason();
                assert!(matches!(reason, Some(LostReason::Broken | LostReason::NotHeld)), "{error}");
            }
            until_free(&client, "a").await;
        }
    }
}

/// Dropping the wait for a loss loses nothing.
pub async fn the_wait_for_a_loss_may_be_dropped<B: TestBench>(bench: &B) {
    let client = bench.client().await;
    let guard = hold(&client.lock("a").ttl(LONG_TTL)).await;
    for linger in LINGER {
        assert!(abandon(guard.lost(), 1, linger).await.is_none());
    }
    assert!(guard.is_valid());
    client.break_lock("a", guard.token()).await.unwrap();
    assert_eq!(guard.lost().await, LostReason::Broken);
}

/// A dropped `run` drops the work and releases the lock.
pub async fn a_dropped_run_releases_the_lock<B: TestBench>(bench: &B) {
    let client = bench.client().await;
    let lock = client.lock("a").ttl(LONG_TTL);
    let work = async |_: &Guard| {
        for _ in 0..5 {
            tokio::task::yield_now().await;
        }
    };
    at_every_point(async || lock.run(work), async || until_free(&client, "a").await).await;
}

/// A dropped `close` completes.
pub async fn a_dropped_close_completes<B: TestBench>(bench: &B) {
    let observer = bench.client().await;
    for linger in LINGER {
        let client = bench.client().await;
        let guard = hold(&client.lock("a").ttl(LONG_TTL)).await;
        abandon(client.close(), 1, linger).await;
        assert_eq!(wait::within_timeout("the close completes", guard.lost()).await, LostReason::Closed);
        until_free(&observer, "a").await;
    }
}

/// A dropped connect leaves nothing behind.
pub async fn a_dropped_connect_leaves_nothing<B: TestBench>(bench: &B) {
    at_every_point(async || Client::connect_with(bench.connect()), async || {}).await;
    drop(hold(&bench.client().await.lock("a")).await);
}

/// Many waiters are cancelled while the lock is released; the remaining ones are granted.
pub async fn the_remaining_waiters_are_granted<B: TestBench>(bench: &B) {
    let client = bench.client().await;
    let guard = hold(&client.lock("a").ttl(LONG_TTL)).await;
    let spawn = |_| {
        let lock = client.lock("a").ttl(LONG_TTL);
        tokio::spawn(async move { lock.acquire().await.unwrap().release().await })
    };
    let (leaving, staying): (Vec<_>, Vec<_>) = ((0..20).map(spawn).collect(), (0..20).map(spawn).collect());
    until_queued(&client, "a", 40).await;
    let release = tokio::spawn(guard.release());
    for waiter in leaving {
        waiter.abort();
    }
    for waiter in staying {
        wait::within_timeout("the lock is granted", waiter).await.unwrap().unwrap();
    }
    release.await.unwrap().unwrap();
}
