//! One holder at a time.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use fencepost_core::backend::{OnBusy, Op, Reply};
use futures_util::future::join_all;

use super::{Bare, LONG_TTL, attempt, award, granted, hold, spawn_waiter, until_free};
use crate::test_bench::TestBench;

/// A free lock is granted, and its guard describes the grant.
pub async fn a_free_lock_is_granted<B: TestBench>(bench: &B) {
    let client = bench.client().await;
    let guard = hold(&client.lock("a").ttl(LONG_TTL)).await;
    assert!(guard.is_valid());
    assert_eq!((guard.name().as_str(), guard.names().count()), ("a", 1));
    assert!(guard.ttl() >= LONG_TTL && guard.remaining() <= guard.ttl());
    guard.check().expect("a valid guard passes the check");
    assert_eq!(guard.lost_reason(), None);
}

/// A held lock is not granted to another client; after the release it is.
pub async fn a_held_lock_is_not_granted_to_another_client<B: TestBench>(bench: &B) {
    let (ours, theirs) = (bench.client().await, bench.client().await);
    let guard = hold(&ours.lock("a")).await;
    assert!(theirs.lock("a").try_acquire().await.unwrap().is_none());
    guard.release().await.unwrap();
    assert!(theirs.lock("a").try_acquire().await.unwrap().is_some());
}

/// The lock is not reentrant: a second task of the same client does not get it either.
pub async fn a_held_lock_is_not_granted_to_the_same_client<B: TestBench>(bench: &B) {
    let client = bench.client().await;
    let lock = client.lock("a");
    let guard = hold(&lock).await;
    assert!(lock.try_acquire().await.unwrap().is_none());
    guard.release().await.unwrap();
}

/// Locks with different names are independent.
pub async fn locks_with_different_names_are_independent<B: TestBench>(bench: &B) {
    let client = bench.client().await;
    let a = hold(&client.lock("a")).await;
    let b = hold(&client.lock("b")).await;
    assert!(a.is_valid() && b.is_valid());
}

/// Scenario 48: two concurrent acquires of one name have one holder: in the same flight, or, if the backend declares that
/// they may not share one, in two.
pub async fn two_acquires_in_one_flight_have_one_holder<B: TestBench>(bench: &B) {
    let bare = Bare::new(bench).await;
    let (first, second) = (attempt(&["a"], LONG_TTL), attempt(&["a"], LONG_TTL));
    let ask = |attempt: &Arc<_>| Op::Acquire { attempt: Arc::clone(attempt), on_busy: OnBusy::Return };
    let ops = [ask(&first), ask(&second)];
    let shares = bare.backend.info().may_share.is_none_or(|may_share| may_share(&ops[0], &ops[1]));
    let flights = ops.chunks(if shares { 2 } else { 1 }).map(|flight| bare.backend.execute(flight.to_vec()));
    let replies = join_all(flights).await.into_iter().flatten();
    let replies: Vec<Reply> = replies.map(Result::unwrap).collect();
    let winners = replies.iter().filter(|reply| matches!(reply, Reply::Granted(_))).count();
    assert_eq!((winners, replies.contains(&Reply::Busy)), (1, true), "{replies:?}");
    let winner =
        if matches!(replies[0], Reply::Granted(_)) { (first, &replies[0]) } else { (second, &replies[1]) };
    let grant = fencepost_core::Grant { attempt: winner.0, award: award(winner.1) };
    assert_eq!(bare.execute(Op::Release(grant)).await, Reply::Released);
    bare.close().await;
}

/// Of many concurrent tries, one succeeds.
pub async fn one_of_many_racers_wins<B: TestBench>(bench: &B) {
    let mut clients = Vec::new();
    for _ in 0..8 {
        clients.push(bench.client().await);
    }
    for round in 0..10 {
        let name = format!("race/{round}");
        let tries = clients.iter().map(|client| {
            let lock = client.lock(&name);
            tokio::spawn(async move { lock.try_acquire().await.unwrap() })
        });
        let tries: Vec<_> = tries.collect();
        let mut winners = Vec::new();
        for attempt in tries {
            winners.extend(attempt.await.unwrap());
        }
        assert_eq!(winners.len(), 1, "round {round}");
    }
}

/// A counter that is read and written under the lock, without other protection, loses no increment.
pub async fn increments_under_the_lock_are_never_lost<B: TestBench>(bench: &B) {
    const ROUNDS: u64 = 25;
    let counter = Arc::new(AtomicU64::new(0));
    let mut tasks = Vec::new();
    for _ in 0..4 {
        let (client, counter) = (bench.client().await, counter.clone());
        tasks.push(tokio::spawn(async move {
            for _ in 0..ROUNDS {
                let guard = client.lock("counter").acquire().await.unwrap();
                let seen = counter.load(Ordering::Relaxed);
                tokio::task::yield_now().await;
                counter.store(seen + 1, Ordering::Relaxed);
                guard.release().await.unwrap();
            }
        }));
    }
    for task in tasks {
        task.await.unwrap();
    }
    assert_eq!(counter.load(Ordering::Relaxed), 4 * ROUNDS);
}

/// A grant may be shared by several tasks: it is released when the last share is dropped.
pub async fn a_shared_guard_holds_until_its_last_share_is_dropped<B: TestBench>(bench: &B) {
    let client = bench.client().await;
    let guard = hold(&client.lock("a")).await;
    let share = guard.share();
    assert_eq!(share.token(), guard.token());
    guard.release().await.unwrap();
    assert!(share.is_valid());
    assert!(client.lock("a").try_acquire().await.unwrap().is_none());
    drop(share);
    until_free(&client, "a").await;
}

/// `run` holds the lock while the work runs, releases it, and returns the result of the work.
pub async fn run_holds_the_lock_while_the_work_runs<B: TestBench>(bench: &B) {
    let client = bench.client().await;
    let lock = client.lock("a");
    let (other, waiter) = (bench.client().await, client.lock("a"));
    let out = lock
        .run(async |guard| {
            assert!(guard.is_valid());
            assert!(other.lock("a").try_acquire().await.unwrap().is_none());
            42
        })
        .await;
    assert_eq!(out.unwrap(), 42);
    drop(granted(spawn_waiter(waiter)).await);
}
