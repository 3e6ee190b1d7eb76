//! From one holder to its successor: without a gap, and never to a waiter that is gone.

use std::sync::Arc;
use std::time::Duration;

use fencepost_core::backend::{OnBusy, Op, Reply};
use fencepost_core::{Attempt, Client, Guard, Mode, Rule};

use super::{LONG_TTL, attempt, attempt_as, enqueue_all, granted, hold, spawn_waiter, until_queued};
use crate::actions::{Waiter, enqueue};
use crate::proxy::OpKind;
use crate::test_bench::TestBench;
use crate::wait;

/// The lock goes from holder to waiter in one step: it is never free in between.
pub async fn a_release_hands_over_in_one_step<B: TestBench>(bench: &B) {
    let (ours, theirs) = (bench.client().await, bench.client().await);
    let guard = hold(&ours.lock("a").ttl(LONG_TTL)).await;
    let waiter = spawn_waiter(theirs.lock("a").ttl(LONG_TTL).label("successor"));
    until_queued(&ours, "a", 1).await;
    guard.release().await.unwrap();
    let now = ours.inspect("a").await.unwrap();
    assert_eq!((now.holders.len(), now.waiter_count), (1, 0));
    assert_eq!(&*now.holders[0].label, "successor");
    assert_eq!(Some(granted(waiter).await.token()), now.holders[0].token);
}

/// A lock that is handed over repeatedly reaches every waiter, with growing tokens.
pub async fn a_lock_is_handed_over_between_clients<B: TestBench>(bench: &B) {
    let clients = [bench.client().await, bench.client().await];
    let mut guard = hold(&clients[0].lock("a").ttl(LONG_TTL)).await;
    for round in 0..20 {
        let waiter = spawn_waiter(clients[round % 2].lock("a").ttl(LONG_TTL));
        until_queued(&clients[0], "a", 1).await;
        let token = guard.token();
        guard.release().await.unwrap();
        guard = granted(waiter).await;
        assert!(guard.token() > token);
    }
}

/// The lease of a lock that was handed over counts from the newest heartbeat of its ticket, and is renewed in time although
/// its owner has waited for long.
pub async fn a_handed_over_lock_is_renewed_in_time<B: TestBench>(bench: &B) {
    let (client, proxy) = bench.proxied().await;
    let guard = hold(&client.lock("a").ttl(LONG_TTL)).await;
    let ttl = bench.ttl() * 2;
    let waiter = spawn_waiter(client.lock("a").ttl(ttl));
    until_queued(&client, "a", 1).await;
    wait::until("the ticket was renewed", async || proxy.count(OpKind::Check) >= 3).await;
    guard.release().await.unwrap();
    let next = granted(waiter).await;
    assert!(next.remaining() <= ttl);
    let renewed = proxy.count(OpKind::Renew);
    wait::until("it was renewed", async || proxy.count(OpKind::Renew) >= renewed + 3).await;
    assert!(next.is_valid());
}

/// Scenario 45: a waiter is paused, the lock is handed to it, its lease expires, another waiter is granted; then the paused
/// waiter reads its grant. It is released and never returned to the caller.
pub async fn a_paused_waiter_does_not_return_an_old_grant<B: TestBench>(bench: &B) {
    let client = bench.client().await;
    let (stopped, proxy) = bench.proxied().await;
    let guard = hold(&client.lock("a").ttl(LONG_TTL)).await;
    let locks = [stopped.lock("a").ttl(bench.ttl()), client.lock("a").ttl(bench.ttl() * 2)];
    let mut waiters = enqueue_all(&client, "a", locks).await.into_iter();
    let (late, next) = (waiters.next().unwrap(), waiters.next().unwrap());
    proxy.pause();
    guard.release().await.unwrap();
    let next = granted(next).await;
    proxy.resume();
    until_queued(&client, "a", 1).await;
    assert!(!late.is_finished(), "it waits again");
    assert!(next.is_valid());
    let token = next.token();
    next.release().await.unwrap();
    let late = granted(late).await;
    assert!(late.token() > token && late.is_valid());
}

/// A waiter that is cancelled while it is granted does not keep the lock from its successor.
pub async fn a_grant_to_a_cancelled_waiter_goes_to_its_successor<B: TestBench>(bench: &B) {
    let (client, other) = (bench.client().await, bench.client().await);
    for _ in 0..20 {
        let guard = hold(&client.lock("a").ttl(LONG_TTL)).await;
        let locks = [other.lock("a").ttl(LONG_TTL), client.lock("a").ttl(LONG_TTL)];
        let mut waiters = enqueue_all(&client, "a", locks).await.into_iter();
        let (leaving, next) = (waiters.next().unwrap(), waiters.next().unwrap());
        let release = tokio::spawn(guard.release());
        leaving.abort();
        // Granted or not, it must not keep the lock.
        drop(leaving.await);
        release.await.unwrap().unwrap();
        granted(next).await.release().await.unwrap();
    }
}

/// Scenario 65: the backend has a ticket that its client does not know, as after a restart from a snapshot. A lock that is
/// handed to it is released at once, not when the lease expires.
pub async fn a_grant_unknown_to_its_client_is_released<B: TestBench>(bench: &B) {
    gives_back(bench, attempt(&["a"], LONG_TTL)).await;
}

/// Scenario 65, with a ticket for any of several names.
pub async fn a_choice_unknown_to_its_client_is_released<B: TestBench>(bench: &B) {
    gives_back(bench, attempt_as(&["a", "b"], Mode::Exclusive, Rule::Any, LONG_TTL)).await;
}

async fn gives_back<B: TestBench>(bench: &B, unknown: Arc<Attempt>) {
    if bench.has_entry_per_waiter() {
        // Such a client checks only the tickets of its own registry, which has no unknown ones.
        return;
    }
    let client = bench.client().await;
    let (forgetful, proxy) = bench.proxied().await;
    let mut held = Vec::new();
    for want in &unknown.wants {
        held.push(hold(&client.lock(want.name.as_str()).ttl(LONG_TTL)).await);
    }
    let queued = proxy.execute_directly(Op::Acquire { attempt: unknown, on_busy: OnBusy::Wait }).await;
    assert!(matches!(queued, Ok(Reply::Waiting { .. })), "{queued:?}");
    let waiter = enqueue(&client, client.lock("a").ttl(LONG_TTL), "a", 2).await;
    held.remove(0).release().await.unwrap();
    granted(waiter).await.release().await.unwrap();
    for guard in held {
        guard.release().await.unwrap();
    }
    forgetful.close().await;
}

/// When a client closes, its locks are granted to their waiters.
pub async fn closing_hands_over_to_the_successor<B: TestBench>(bench: &B) {
    let (closing, client) = (bench.client().await, bench.client().await);
    let guard = hold(&closing.lock("a").ttl(LONG_TTL)).await;
    let waiter = spawn_waiter(client.lock("a").ttl(LONG_TTL));
    until_queued(&client, "a", 1).await;
    closing.close().await;
    assert!(!guard.is_valid());
    drop(granted(waiter).await);
}

/// The number of waiters that are granted at once: more than any channel of wake-ups holds.
fn burst<B: TestBench>(bench: &B) -> usize {
    bench.crowd_size().min(1_000)
}

/// A ttl whose heartbeats (a third of it) are too late for a test: only wake-ups can grant the lock in time.
fn beyond_heartbeats(client: &Client) -> Duration {
    client.info().max_ttl.min(LONG_TTL * 5)
}

/// Awaits the grants of all waiters.
async fn all_granted(waiters: Vec<Waiter>) -> Vec<Guard> {
    let all = futures_util::future::join_all(waiters);
    let outcomes = wait::within_timeout("all waiters are granted the lock", all).await;
    outcomes
        .into_iter()
        .map(|outcome| outcome.expect("no task is cancelled").expect("it is granted"))
        .collect()
}

/// Scenario 62: many readers of one process wait behind a writer of another. Its release grants all of them at once, and
/// every one of them is woken.
pub async fn readers_granted_at_once_are_all_woken<B: TestBench>(bench: &B) {
    let (writing, reading) = (bench.client().await, bench.client().await);
    let ttl = beyond_heartbeats(&reading);
    let writer = hold(&writing.lock("a").ttl(ttl)).await;
    let reader = || spawn_waiter(reading.lock("a").ttl(ttl).mode(Mode::Shared));
    let count = burst(bench).min(bench.entries_per_client());
    let readers: Vec<Waiter> = (0..count).map(|_| reader()).collect();
    until_queued(&writing, "a", readers.len()).await;
    writer.release().await.unwrap();
    assert!(all_granted(readers).await.iter().all(Guard::is_valid));
}

/// Scenario 62: many locks of one process are released at once, each with a waiter in another. Every waiter is woken.
pub async fn names_released_at_once_are_all_handed_over<B: TestBench>(bench: &B) {
    let (releasing, client) = (bench.client().await, bench.client().await);
    let ttl = beyond_heartbeats(&client);
    let names: Vec<String> = (0..burst(bench)).map(|number| format!("a/{number}")).collect();
    let held =
        all_granted(names.iter().map(|name| spawn_waiter(releasing.lock(name).ttl(ttl))).collect()).await;
    let waiters: Vec<Waiter> = names.iter().map(|name| spawn_waiter(client.lock(name).ttl(ttl))).collect();
    for name in &names {
        until_queued(&releasing, name, 1).await;
    }
    drop(held);
    assert!(all_granted(waiters).await.iter().all(Guard::is_valid));
}
