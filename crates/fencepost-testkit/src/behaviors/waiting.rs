//! The queue: first in, first out, and no waiter delays the others more than necessary.

use std::sync::Arc;
use std::time::Duration;

use fencepost_core::clock::Clock;
use fencepost_core::{ErrorKind, Mode};
use futures_util::FutureExt;
use tokio::sync::watch;

use super::{LONG_TTL, enqueue_all, granted, hold, name, refused, spawn_waiter, until_queued};
use crate::history::History;
use crate::proxy::OpKind;
use crate::test_bench::TestBench;
use crate::wait;

/// Waiters of several clients are granted in the order in which they joined.
pub async fn waiters_are_granted_in_queue_order<B: TestBench>(bench: &B) {
    let clients = [bench.client().await, bench.client().await, bench.client().await];
    let history = Arc::new(History::default());
    let guard = hold(&clients[0].lock("a")).await;
    let locks = clients.iter().cycle().take(12).enumerate();
    let locks = locks.map(|(number, client)| client.lock("a").label(format!("waiter {number}")));
    let waiters = enqueue_all(&clients[0], "a", locks).await;
    (0..12).for_each(|number| history.enqueued(&format!("waiter {number}"), &name("a")));
    guard.release().await.unwrap();
    // In reverse, so that the order of this loop does not determine the order of grants.
    let tasks = waiters.into_iter().rev().map(|waiter| {
        let history = history.clone();
        tokio::spawn(async move {
            let guard = granted(waiter).await;
            let record = history.granted(guard.label(), &guard, Mode::Exclusive);
            tokio::task::yield_now().await;
            assert!(history.still_held(record, &guard));
            guard.release().await.unwrap();
        })
    });
    for task in tasks.collect::<Vec<_>>() {
        task.await.unwrap();
    }
    history.check().unwrap_or_else(|violation| panic!("{violation}"));
    assert_eq!(history.len(), 12);
}

/// A try does not overtake the waiters.
pub async fn a_try_does_not_overtake_the_queue<B: TestBench>(bench: &B) {
    let (client, other) = (bench.client().await, bench.client().await);
    let guard = hold(&client.lock("a")).await;
    let waiters = enqueue_all(&client, "a", [client.lock("a"), other.lock("a")]).await;
    guard.release().await.unwrap();
    for waiter in waiters {
        assert!(other.lock("a").try_acquire().await.unwrap().is_none());
        granted(waiter).await.release().await.unwrap();
    }
    assert!(other.lock("a").try_acquire().await.unwrap().is_some());
}

/// Scenario 35: an acquire that times out leaves no waiter behind.
pub async fn a_waiter_that_times_out_leaves_the_queue<B: TestBench>(bench: &B) {
    let client = bench.client().await;
    let guard = hold(&client.lock("a").ttl(LONG_TTL)).await;
    let impatient = client.lock("a").ttl(LONG_TTL).wait(Duration::from_millis(50));
    let error = refused(impatient.acquire().await);
    assert_eq!(error.kind(), ErrorKind::WaitTimeout);
    assert!(error.to_string().contains("50ms"), "it says how long: {error}");
    until_queued(&client, "a", 0).await;
    guard.release().await.unwrap();
    assert!(client.inspect("a").await.unwrap().is_idle());
}

/// A wait of zero is a try that fails with `WaitTimeout`.
pub async fn a_wait_of_zero_does_not_join_the_queue<B: TestBench>(bench: &B) {
    let (client, proxy) = bench.proxied().await;
    let guard = hold(&client.lock("a")).await;
    let error = refused(client.lock("a").wait(Duration::ZERO).acquire().await);
    assert_eq!(error.kind(), ErrorKind::WaitTimeout);
    assert_eq!((proxy.count(OpKind::Check), proxy.count(OpKind::Leave)), (0, 0));
    guard.release().await.unwrap();
}

/// A waiter whose future is dropped leaves the queue, and the waiters behind it move up.
pub async fn cancelled_waiter_leaves_the_queue<B: TestBench>(bench: &B) {
    let client = bench.client().await;
    let guard = hold(&client.lock("a").ttl(LONG_TTL)).await;
    let locks = (0..3).map(|_| client.lock("a").ttl(LONG_TTL));
    let mut waiters = enqueue_all(&client, "a", locks).await;
    let cancelled = waiters.remove(1);
    cancelled.abort();
    until_queued(&client, "a", 2).await;
    guard.release().await.unwrap();
    for waiter in waiters {
        granted(waiter).await.release().await.unwrap();
    }
}

/// Scenario 38: a waiter that dies in the queue does not delay the next by its ttl, where the backend can detect it; by at
/// most that where it cannot.
pub async fn a_dead_waiter_does_not_delay_the_next_by_its_ttl<B: TestBench>(bench: &B) {
    let clock = Clock::system();
    let client = bench.client().await;
    let (dying, proxy) = bench.proxied().await;
    let guard = hold(&client.lock("a").ttl(LONG_TTL)).await;
    let ticket = bench.ttl() * 5;
    let waiters =
        enqueue_all(&client, "a", [dying.lock("a").ttl(ticket), client.lock("a").ttl(LONG_TTL)]).await;
    wait::until("the ticket was renewed", async || proxy.count(OpKind::Check) > 0).await;
    let ticket_ends = clock.now() + ticket;
    let listeners = bench.listeners().await;
    proxy.crash();
    wait::until("the backend has detected the death", async || {
        listeners.is_none() || bench.listeners().await < listeners
    })
    .await;
    guard.release().await.unwrap();
    let mut waiters = waiters.into_iter();
    let dead = waiters.next().unwrap();
    let next = granted(waiters.next().unwrap()).await;
    let ends = if bench.has_entry_per_waiter() { ticket_ends + ticket } else { ticket_ends };
    assert!(clock.now() < ends, "it had to wait until the ticket of the dead waiter expired");
    next.release().await.unwrap();
    dead.abort();
}

/// A ticket is kept for as long as its owner lives, however short its lease.
pub async fn a_renewed_ticket_outlives_its_ttl<B: TestBench>(bench: &B) {
    let (client, proxy) = bench.proxied().await;
    let other = bench.client().await;
    let ttl = bench.ttl() * 2;
    let guard = hold(&other.lock("a").ttl(LONG_TTL)).await;
    let locks = [client.lock("a").ttl(ttl), other.lock("a").ttl(LONG_TTL)];
    let mut waiters = enqueue_all(&other, "a", locks).await.into_iter();
    wait::elapse(ttl * 2).await;
    assert!(proxy.count(OpKind::Check) >= 2);
    guard.release().await.unwrap();
    let first = granted(waiters.next().unwrap()).await;
    assert_eq!(other.inspect("a").await.unwrap().waiter_count, 1);
    first.release().await.unwrap();
    granted(waiters.next().unwrap()).await.release().await.unwrap();
}

/// A release wakes one waiter, not the whole queue.
pub async fn a_release_wakes_one_waiter<B: TestBench>(bench: &B) {
    let client = bench.client().await;
    let guard = hold(&client.lock("a").ttl(LONG_TTL)).await;
    let (first, _) = bench.proxied().await;
    let (second, second_proxy) = bench.proxied().await;
    let (third, third_proxy) = bench.proxied().await;
    let locks = [&first, &second, &third].map(|client| client.lock("a").ttl(LONG_TTL));
    let mut waiters = enqueue_all(&client, "a", locks).await.into_iter();
    let sent = (second_proxy.count_all(), third_proxy.count_all());
    guard.release().await.unwrap();
    let first = granted(waiters.next().unwrap()).await;
    assert!(first.is_valid());
    assert_eq!((second_proxy.count_all(), third_proxy.count_all()), sent);
    first.release().await.unwrap();
    for waiter in waiters {
        granted(waiter).await.release().await.unwrap();
    }
}

/// A lost push costs time, not the grant: the heartbeat of the ticket finds it.
pub async fn a_lost_push_is_recovered_by_the_heartbeat<B: TestBench>(bench: &B) {
    let (deaf, proxy) = bench.proxied().await;
    proxy.lose_pushes();
    let client = bench.client().await;
    let guard = hold(&client.lock("a").ttl(LONG_TTL)).await;
    let waiter = spawn_waiter(deaf.lock("a").ttl(bench.ttl()));
    until_queued(&client, "a", 1).await;
    guard.release().await.unwrap();
    granted(waiter).await.release().await.unwrap();
}

/// A repeated push grants once.
pub async fn a_repeated_push_grants_once<B: TestBench>(bench: &B) {
    let (client, proxy) = bench.proxied().await;
    proxy.repeat_pushes();
    let mut guard = hold(&client.lock("a").ttl(LONG_TTL)).await;
    for _ in 0..3 {
        let waiter = spawn_waiter(client.lock("a").ttl(LONG_TTL));
        until_queued(&client, "a", 1).await;
        let token = guard.token();
        guard.release().await.unwrap();
        guard = granted(waiter).await;
        assert!(guard.token() > token && guard.is_valid());
    }
}

/// Scenario 43: many clients wait for one lock and its holder dies. One waiter is woken, not all, and all of them are
/// granted one after the other.
pub async fn many_waiters_are_granted_one_by_one<B: TestBench>(bench: &B) {
    let (dying, holders_proxy) = bench.proxied().await;
    let (client, proxy) = bench.proxied().await;
    let dead = hold(&dying.lock("a").ttl(bench.ttl())).await;
    let (go, gate) = watch::channel(());
    let crowd = (0..bench.crowd_size()).map(|_| {
        let (lock, mut gate) = (client.lock("a").ttl(LONG_TTL), gate.clone());
        tokio::spawn(async move {
            let guard = lock.acquire().await.unwrap();
            gate.changed().await.unwrap();
            guard.token()
        })
    });
    let crowd: Vec<_> = crowd.collect();
    until_queued(&client, "a", bench.crowd_size()).await;
    holders_proxy.crash();
    until_queued(&client, "a", bench.crowd_size() - 1).await;
    assert!(!dead.is_valid());
    let checks = proxy.count(OpKind::Check);
    assert!(checks <= bench.crowd_size() / 10, "{checks} checks for one turn");
    go.send(()).unwrap();
    let mut tokens = Vec::new();
    for waiter in crowd {
        tokens.push(wait::within_timeout("the lock is granted", waiter).await.unwrap());
    }
    assert!(tokens.iter().all(|token| *token > dead.token()));
    tokens.sort();
    tokens.dedup();
    assert_eq!(tokens.len(), bench.crowd_size());
}

/// A waiter whose future is not polled any more does not block the queue for ever: its grant is released when it is dropped.
pub async fn a_waiter_dropped_before_it_reads_its_grant_releases_it<B: TestBench>(bench: &B) {
    let client = bench.client().await;
    let guard = hold(&client.lock("a").ttl(LONG_TTL)).await;
    let mut asleep = Box::pin(async { client.lock("a").ttl(LONG_TTL).acquire().await });
    assert!((&mut asleep).now_or_never().is_none());
    until_queued(&client, "a", 1).await;
    let next = spawn_waiter(client.lock("a").ttl(LONG_TTL));
    until_queued(&client, "a", 2).await;
    guard.release().await.unwrap();
    until_queued(&client, "a", 1).await;
    drop(asleep);
    granted(next).await.release().await.unwrap();
}
