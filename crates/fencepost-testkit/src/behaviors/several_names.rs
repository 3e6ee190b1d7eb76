//! All of several locks, or any of them.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use fencepost_core::clock::Clock;
use fencepost_core::{ErrorKind, LostReason};

use super::{LONG_TTL, granted, hold, is_held, refused, spawn_waiter, until_free, until_queued};
use crate::actions::enqueue;
use crate::test_bench::TestBench;
use crate::wait;

/// All names are held by one guard and released together.
pub async fn all_names_are_held_and_released_together<B: TestBench>(bench: &B) {
    let client = bench.client().await;
    let guard = hold(&client.lock_all(["c", "a", "b", "a"]).ttl(LONG_TTL)).await;
    let names: Vec<&str> = guard.names().map(fencepost_core::LockName::as_str).collect();
    assert_eq!(names, ["a", "b", "c"]);
    for name in ["a", "b", "c"] {
        assert!(client.lock(name).try_acquire().await.unwrap().is_none());
        assert_eq!(client.inspect(name).await.unwrap().holders[0].token, Some(guard.token()));
    }
    guard.release().await.unwrap();
    for name in ["a", "b", "c"] {
        assert!(client.inspect(name).await.unwrap().is_idle());
    }
}

/// All or nothing: if one name is held, none is acquired.
pub async fn one_held_name_blocks_the_grant_of_all<B: TestBench>(bench: &B) {
    let client = bench.client().await;
    let b = hold(&client.lock("b").ttl(LONG_TTL)).await;
    let both = client.lock_all(["a", "b"]).ttl(LONG_TTL);
    assert!(both.try_acquire().await.unwrap().is_none());
    assert!(client.inspect("a").await.unwrap().is_idle());
    let waiter = spawn_waiter(both);
    until_queued(&client, "a", 1).await;
    assert!(!is_held(&client, "a").await);
    b.release().await.unwrap();
    granted(waiter).await.release().await.unwrap();
}

/// Scenario 44: two clients that acquire the same names in opposite order do not deadlock.
pub async fn opposite_order_does_not_deadlock<B: TestBench>(bench: &B) {
    let mut tasks = Vec::new();
    for names in [["a", "b"], ["b", "a"], ["b", "c"], ["c", "a"]] {
        let client = bench.client().await;
        tasks.push(tokio::spawn(async move {
            for _ in 0..20 {
                let guard = client.lock_all(names).ttl(LONG_TTL).acquire().await.unwrap();
                tokio::task::yield_now().await;
                guard.release().await.unwrap();
            }
        }));
    }
    for task in tasks {
        task.await.unwrap();
    }
}

/// Scenario 38 with many names: a dead waiter for all of them does not delay the next waiter by its ttl.
pub async fn a_dead_waiter_for_many_names_does_not_delay_the_next_by_its_ttl<B: TestBench>(bench: &B) {
    if bench.has_entry_per_waiter() {
        // Its entries block the names until its lease expires.
        return;
    }
    let clock = Clock::system();
    let names: Vec<String> = (0..12).map(|number| format!("a/{number}")).collect();
    let client = bench.client().await;
    let (dying, proxy) = bench.proxied().await;
    let guard = hold(&client.lock_all(&names).ttl(LONG_TTL)).await;
    let ticket = bench.ttl() * 20;
    let dead = enqueue(&client, dying.lock_all(&names).ttl(ticket), &names[0], 1).await;
    let next = enqueue(&client, client.lock_all(&names).ttl(LONG_TTL), &names[0], 2).await;
    let (listeners, ticket_ends) = (bench.listeners().await, clock.now() + ticket * 2 / 3);
    proxy.crash();
    wait::until("the backend has detected the death", async || {
        listeners.is_none() || bench.listeners().await < listeners
    })
    .await;
    guard.release().await.unwrap();
    let next = granted(next).await;
    assert!(clock.now() < ticket_ends, "it had to wait until the ticket of the dead waiter expired");
    next.release().await.unwrap();
    dead.abort();
}

/// A waiter for several names is not starved by waiters for one of them.
pub async fn a_waiter_for_all_is_not_starved<B: TestBench>(bench: &B) {
    let client = bench.client().await;
    let a = hold(&client.lock("a").ttl(LONG_TTL)).await;
    let both = spawn_waiter(client.lock_all(["a", "b"]).ttl(LONG_TTL));
    until_queued(&client, "b", 1).await;
    assert!(client.lock("b").try_acquire().await.unwrap().is_none(), "b is free, but has a waiter");
    let later = spawn_waiter(client.lock("b").ttl(LONG_TTL));
    until_queued(&client, "b", 2).await;
    a.release().await.unwrap();
    let both = granted(both).await;
    let token = both.token();
    both.release().await.unwrap();
    assert!(granted(later).await.token() > token);
}

/// A cancelled waiter for several names leaves all of their queues.
pub async fn a_cancelled_waiter_for_all_leaves_every_queue<B: TestBench>(bench: &B) {
    let client = bench.client().await;
    let a = hold(&client.lock("a").ttl(LONG_TTL)).await;
    let both = spawn_waiter(client.lock_all(["a", "b"]).ttl(LONG_TTL));
    until_queued(&client, "b", 1).await;
    let later = spawn_waiter(client.lock("b").ttl(LONG_TTL));
    until_queued(&client, "b", 2).await;
    both.abort();
    granted(later).await.release().await.unwrap();
    a.release().await.unwrap();
}

/// A free name is acquired at once, and the others stay free.
pub async fn any_acquires_a_free_name<B: TestBench>(bench: &B) {
    let client = bench.client().await;
    let seats = client.lock_any(["seat/1", "seat/2", "seat/3"]).ttl(LONG_TTL);
    let taken = [hold(&seats).await, hold(&seats).await, hold(&seats).await];
    let mut names: Vec<&str> = taken.iter().map(|guard| guard.name().as_str()).collect();
    names.sort_unstable();
    assert_eq!(names, ["seat/1", "seat/2", "seat/3"]);
    assert!(taken.iter().all(|guard| guard.names().count() == 1));
    assert!(seats.try_acquire().await.unwrap().is_none());
}

/// A waiter for any of the names gets the first that is released, and leaves the other queues.
pub async fn any_waits_for_the_first_that_becomes_free<B: TestBench>(bench: &B) {
    let client = bench.client().await;
    let (a, b) = (hold(&client.lock("a").ttl(LONG_TTL)).await, hold(&client.lock("b").ttl(LONG_TTL)).await);
    let waiter = spawn_waiter(client.lock_any(["a", "b"]).ttl(LONG_TTL));
    until_queued(&client, "a", 1).await;
    until_queued(&client, "b", 1).await;
    b.release().await.unwrap();
    let either = granted(waiter).await;
    assert_eq!(either.name().as_str(), "b");
    assert_eq!(client.inspect("a").await.unwrap().waiter_count, 0);
    a.release().await.unwrap();
    assert!(client.inspect("a").await.unwrap().is_idle());
    assert!(either.is_valid());
}

/// Many waiters for any of a few names, more than one client has entries for in a queue: no name has two holders, no waiter
/// gets two names, and every wait ends although several names are released at once.
pub async fn many_waiters_for_any_are_granted_one_by_one<B: TestBench>(bench: &B) {
    const NAMES: [&str; 3] = ["seat/1", "seat/2", "seat/3"];
    let clients = [bench.client().await, bench.client().await];
    let taken: Arc<[AtomicBool; 3]> = Arc::default();
    let mut tasks = Vec::new();
    for at in 0..120 {
        let (client, taken) = (clients[usize::from(at % 4 == 0)].clone(), taken.clone());
        tasks.push(tokio::spawn(async move {
            for _ in 0..2 {
                let guard = client.lock_any(NAMES).ttl(LONG_TTL).acquire().await.unwrap();
                let seat = NAMES.iter().position(|name| *name == guard.name().as_str()).unwrap();
                assert!(!taken[seat].swap(true, Ordering::SeqCst), "{} has another holder", NAMES[seat]);
                tokio::task::yield_now().await;
                assert!(guard.is_valid());
                taken[seat].store(false, Ordering::SeqCst);
                guard.release().await.unwrap();
            }
        }));
    }
    for task in tasks {
        wait::within_timeout("the lock is granted", task).await.unwrap();
    }
}

/// A grant of several names is broken as a whole.
pub async fn several_names_are_broken_together<B: TestBench>(bench: &B) {
    let client = bench.client().await;
    let guard = hold(&client.lock_all(["a", "b"]).ttl(LONG_TTL)).await;
    let waiter = spawn_waiter(client.lock("b").ttl(LONG_TTL));
    until_queued(&client, "b", 1).await;
    client.break_lock("a", guard.token()).await.unwrap();
    granted(waiter).await.release().await.unwrap();
    until_free(&client, "a").await;
    assert_eq!(guard.lost().await, LostReason::Broken);
}

/// The leases of several names expire together.
pub async fn several_names_expire_together<B: TestBench>(bench: &B) {
    let (dying, proxy) = bench.proxied().await;
    let client = bench.client().await;
    let dead = hold(&dying.lock_all(["a", "b"]).ttl(bench.ttl())).await;
    let (a, b) = (spawn_waiter(client.lock("a").ttl(LONG_TTL)), spawn_waiter(client.lock("b").ttl(LONG_TTL)));
    until_queued(&client, "a", 1).await;
    until_queued(&client, "b", 1).await;
    proxy.crash();
    let (a, b) = (granted(a).await, granted(b).await);
    assert!(!dead.is_valid() && a.token() > dead.token() && b.token() > dead.token());
}

/// An empty list of names, or one with an invalid name, is rejected.
pub async fn an_empty_list_of_names_is_refused<B: TestBench>(bench: &B) {
    let client = bench.client().await;
    for lock in [client.lock_all::<&str>([]), client.lock_any(["a", ""])] {
        assert_eq!(refused(lock.try_acquire().await).kind(), ErrorKind::BadName);
    }
}
