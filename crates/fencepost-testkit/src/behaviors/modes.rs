//! Readers and writers, and semaphores.

use std::time::Duration;

use fencepost_core::{ErrorKind, Guard, Lock, Mode};

use super::{LONG_TTL, enqueue_all, granted, hold, refused, spawn_waiter, until_free, until_queued};
use crate::actions::until_renewed_since;
use crate::test_bench::TestBench;
use crate::wait;

const THREE: Mode = Mode::Semaphore { permits: 3 };

async fn is_refused_now(lock: &Lock) -> bool {
    lock.try_acquire().await.expect("it is answered").is_none()
}

/// Many readers hold the lock together; a writer does not get it meanwhile.
pub async fn readers_share_and_keep_the_writer_out<B: TestBench>(bench: &B) {
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

/// A writer keeps readers out.
pub async fn a_writer_keeps_readers_out<B: TestBench>(bench: &B) {
    let client = bench.client().await;
    let writer = hold(&client.lock("a")).await;
    assert!(is_refused_now(&client.lock("a").mode(Mode::Shared)).await);
    writer.release().await.unwrap();
}

/// A writer that waits is not starved by readers that come after it.
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

/// Readers that stand together at the head of the line enter together.
pub async fn readers_in_line_enter_together<B: TestBench>(bench: &B) {
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

/// A semaphore admits as many as it has slots, and a slot that becomes free goes to the next in line.
pub async fn a_semaphore_admits_as_many_as_it_has_slots<B: TestBench>(bench: &B) {
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

/// Slots of holders that died become free like any other lock.
pub async fn the_slot_of_a_dead_holder_becomes_free<B: TestBench>(bench: &B) {
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

/// Scenario 63: a crowd holds the lock together, and every lease is renewed again and again. If one renewal looked at all
/// holders, many would come too late.
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
        wait::within_timeout("all are given back", client.close()).await;
    }
}

/// Clients that disagree about what a lock is are told so, and nothing is changed by it.
pub async fn modes_that_contradict_each_other_are_a_conflict<B: TestBench>(bench: &B) {
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

/// What a lock is, is agreed anew when nobody uses it.
pub async fn an_idle_lock_may_become_something_else<B: TestBench>(bench: &B) {
    let client = bench.client().await;
    for mode in [THREE, Mode::Exclusive, Mode::Semaphore { permits: 1 }, Mode::Shared, THREE] {
        hold(&client.lock("a").mode(mode)).await.release().await.unwrap();
        until_free(&client, "a").await;
    }
}

/// A semaphore without slots is refused before anything is sent.
pub async fn a_semaphore_of_nothing_is_refused<B: TestBench>(bench: &B) {
    let client = bench.client().await;
    let error = refused(client.lock("a").mode(Mode::Semaphore { permits: 0 }).try_acquire().await);
    assert_eq!(error.kind(), ErrorKind::BadConfig);
}
