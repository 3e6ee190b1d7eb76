//! Shared and exclusive locks, and semaphores.

use std::time::Duration;

use fencepost_core::{ErrorKind, Guard, Lock, Mode};

use super::{LONG_TTL, enqueue_all, granted, hold, refused, spawn_waiter, until_free, until_queued};
use crate::actions::until_renewed_since;
use crate::test_bench::TestBench;
use crate::wait;

const THREE: Mode = Mode::Semaphore { permits: 3 };

async fn is_refused_now(lock: &Lock) -> bool {
    lock.try_acquire().await.expect("there is a reply").is_none()
}

/// Many readers hold the lock together; a writer does not get it meanwhile.
pub async fn readers_share_and_block_the_writer<B: TestBench>(bench: &B) {
    let (ours, theirs) = (bench.client().await, bench.client().await);
    let one = hold(&ours.lock("a").mode(Mode::Shared)).await;
    let two = hold(&theirs.lock("a").mode(Mode::Shared)).await;
    assert!(one.is_valid() && two.is_valid());
    assert!(is_refused_now(&ours.lock("a")).await);
    one.release().await.unwrap();
    assert!(is_refused_now(&ours.lock("a")).await);
    two.release().await.unwrap();
    assert!(!is_refused_now(&ours.lock("a")).await);
}

/// A writer blocks readers.
pub async fn a_writer_blocks_readers<B: TestBench>(bench: &B) {
    let client = bench.client().await;
    let writer = hold(&client.lock("a")).await;
    assert!(is_refused_now(&client.lock("a").mode(Mode::Shared)).await);
    writer.release().await.unwrap();
}

/// A waiting writer is not starved by later readers.
pub async fn readers_do_not_overtake_a_waiting_writer<B: TestBench>(bench: &B) {
    let client = bench.client().await;
    let reading = client.lock("a").ttl(LONG_TTL).mode(Mode::Shared);
    let reader = hold(&reading).await;
    let writer = spawn_waiter(client.lock("a").ttl(LONG_TTL));
    until_queued(&client, "a", 1).await;
    assert!(is_refused_now(&reading).await);
    let later = spawn_waiter(reading.clone());
    until_queued(&client, "a", 2).await;
    reader.release().await.unwrap();
    let writer = granted(writer).await;
    assert!(!later.is_finished());
    let token = writer.token();
    writer.release().await.unwrap();
    assert!(granted(later).await.token() > token);
}

/// Readers at the head of the queue are granted together.
pub async fn queued_readers_are_granted_together<B: TestBench>(bench: &B) {
    let client = bench.client().await;
    let writer = hold(&client.lock("a").ttl(LONG_TTL)).await;
    let reading = || client.lock("a").ttl(LONG_TTL).mode(Mode::Shared);
    let locks = [reading(), reading(), client.lock("a").ttl(LONG_TTL), reading()];
    let mut waiters = enqueue_all(&client, "a", locks).await;
    writer.release().await.unwrap();
    let (last, second_writer) = (waiters.pop().unwrap(), waiters.pop().unwrap());
    let mut readers = Vec::new();
    for waiter in waiters {
        readers.push(granted(waiter).await);
    }
    assert!(readers.iter().all(fencepost_core::Guard::is_valid));
    assert_eq!(client.inspect("a").await.unwrap().waiter_count, 2);
    drop(readers);
    drop(granted(second_writer).await);
    drop(granted(last).await);
}

/// A semaphore admits as many holders as it has permits, and a released permit goes to the first waiter.
pub async fn a_semaphore_admits_as_many_as_it_has_permits<B: TestBench>(bench: &B) {
    let (ours, theirs) = (bench.client().await, bench.client().await);
    let slot = ours.lock("a").ttl(LONG_TTL).mode(THREE);
    let mut inside = vec![hold(&slot).await, hold(&theirs.lock("a").mode(THREE)).await, hold(&slot).await];
    assert!(is_refused_now(&slot).await);
    let waiter = spawn_waiter(slot);
    until_queued(&ours, "a", 1).await;
    inside.remove(1).release().await.unwrap();
    let fourth = granted(waiter).await;
    assert_eq!(ours.inspect("a").await.unwrap().holders.len(), 3);
    assert!(inside.iter().all(|guard| guard.token() < fourth.token()));
}

/// Permits of holders that died become free when their leases expire.
pub async fn the_permit_of_a_dead_holder_becomes_free<B: TestBench>(bench: &B) {
    let mode = Mode::Semaphore { permits: 2 };
    let client = bench.client().await;
    let (dying, proxy) = bench.proxied().await;
    let alive = hold(&client.lock("a").ttl(LONG_TTL).mode(mode)).await;
    let dead = hold(&dying.lock("a").ttl(bench.ttl()).mode(mode)).await;
    let waiter = spawn_waiter(client.lock("a").ttl(LONG_TTL).mode(mode));
    until_queued(&client, "a", 1).await;
    proxy.crash();
    let next = granted(waiter).await;
    assert!(alive.is_valid() && next.is_valid() && !dead.is_valid());
}

/// Scenario 63: many clients hold the lock together, and every lease is renewed in time. If one renewal read all holders,
/// many would be too late.
pub async fn many_shared_holders_are_all_renewed_in_time<B: TestBench>(bench: &B) {
    const TTL: Duration = Duration::from_secs(15);
    // Not all at once: other tests use the server too.
    let together = bench.crowd_size().min(bench.entries_per_client()).min(100);
    let (mut clients, mut guards) = (vec![bench.client().await], Vec::new());
    while guards.len() < bench.crowd_size() {
        if guards.len() + together > clients.len().saturating_mul(bench.entries_per_client()) {
            clients.push(bench.client().await);
        }
        let client = &clients[clients.len() - 1];
        let reading = || spawn_waiter(client.lock("a").ttl(TTL).mode(Mode::Shared));
        let some: Vec<_> = (0..together).map(|_| reading()).collect();
        for reader in some {
            guards.push(granted(reader).await);
        }
    }
    for _ in 0..2 {
        let known: Vec<_> = guards.iter().map(Guard::valid_until).collect();
        for (guard, known) in guards.iter().zip(known) {
            until_renewed_since(guard, known).await;
        }
    }
    let lost = guards.iter().filter(|guard| !guard.is_valid()).count();
    assert_eq!(lost, 0, "of {} holders", guards.len());
    assert!(is_refused_now(&clients[0].lock("a")).await);
    for client in clients {
        wait::within_timeout("all locks are released", client.close()).await;
    }
}

/// Clients with contradicting modes get a conflict, and nothing is changed.
pub async fn contradicting_modes_are_a_conflict<B: TestBench>(bench: &B) {
    let client = bench.client().await;
    let guard = hold(&client.lock("a").ttl(LONG_TTL).mode(THREE)).await;
    for mode in [Mode::Semaphore { permits: 4 }, Mode::Exclusive, Mode::Shared] {
        for lock in [client.lock("a").mode(mode), client.lock("a").mode(mode).ttl(LONG_TTL)] {
            let error = refused(lock.acquire().await);
            assert_eq!(error.kind(), ErrorKind::Conflict, "{error}");
            assert!(error.to_string().contains("semaphore of 3"), "it says what the lock is: {error}");
        }
    }
    assert!(guard.is_valid());
    assert_eq!(client.inspect("a").await.unwrap().waiter_count, 0);
    guard.release().await.unwrap();
}

/// The mode of an idle lock may change.
pub async fn an_idle_lock_may_change_its_mode<B: TestBench>(bench: &B) {
    let client = bench.client().await;
    for mode in [THREE, Mode::Exclusive, Mode::Semaphore { permits: 1 }, Mode::Shared, THREE] {
        hold(&client.lock("a").mode(mode)).await.release().await.unwrap();
        until_free(&client, "a").await;
    }
}

/// A semaphore without permits is rejected before anything is sent.
pub async fn a_semaphore_without_permits_is_refused<B: TestBench>(bench: &B) {
    let client = bench.client().await;
    let error = refused(client.lock("a").mode(Mode::Semaphore { permits: 0 }).try_acquire().await);
    assert_eq!(error.kind(), ErrorKind::BadConfig);
}
