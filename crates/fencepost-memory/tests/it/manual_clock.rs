//! Hours of leases in virtual time, exact to the millisecond.

use std::time::Duration;

use fencepost_core::clock::{ManualClock, drift};
use fencepost_core::{Client, ErrorKind, Guard, LostReason, Options, Result};
use fencepost_memory::Memory;
use fencepost_testkit::suite::under_watchdog;
use fencepost_testkit::wait;
use tokio::task::JoinHandle;

const TTL: Duration = Duration::from_secs(600);
const HOUR: Duration = Duration::from_secs(3600);
const INSTANT: Duration = Duration::from_millis(1);

/// Runs a test on an empty backend whose clock only the test advances.
pub(crate) fn on_a_manual_clock(test: impl AsyncFnOnce(Memory, ManualClock) + Send + 'static) {
    let name = std::thread::current().name().unwrap_or("a test").to_owned();
    under_watchdog(&name, || {
        let runtime =
            tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        let clock = ManualClock::new();
        runtime.block_on(test(Memory::with_clock(clock.clone()), clock));
    });
}

/// Spawns a waiter, and returns when it is in the queue.
pub(crate) async fn enqueue(client: &Client, name: &str, ttl: Duration) -> JoinHandle<Result<Guard>> {
    let before = client.inspect(name).await.unwrap().waiter_count;
    let lock = client.lock(name).ttl(ttl);
    let waiter = tokio::spawn(async move { lock.acquire().await });
    wait::until("it is in the queue", async || client.inspect(name).await.unwrap().waiter_count > before)
        .await;
    waiter
}

#[test]
fn a_guard_is_renewed_for_hours() {
    on_a_manual_clock(async |memory, clock| {
        let client = memory.client().unwrap();
        let guard = client.lock("a").ttl(TTL).acquire().await.unwrap();
        for _ in 0..24 {
            clock.advance(HOUR);
            assert!(guard.is_valid());
            assert!(guard.remaining() > TTL / 2);
        }
        guard.release().await.unwrap();
        assert!(memory.is_clean());
    });
}

/// On a manual clock a spin-wait with a deadline would never end.
#[test]
fn a_low_latency_client_stops_spinning() {
    on_a_manual_clock(async |memory, clock| {
        let client = memory.client_with(Options::new().low_latency()).unwrap();
        let guard = client.lock("a").ttl(TTL).acquire().await.unwrap();
        clock.advance(HOUR);
        assert!(guard.is_valid());
    });
}

/// Scenario 31: to the millisecond.
#[test]
fn a_guard_is_lost_at_its_deadline() {
    on_a_manual_clock(async |memory, clock| {
        let client = memory.client().unwrap();
        let guard = client.lock("a").ttl(TTL).acquire().await.unwrap();
        memory.faults().cut();
        assert_eq!(guard.remaining(), TTL.checked_sub(drift(TTL)).unwrap());
        clock.advance(guard.remaining().checked_sub(INSTANT).unwrap());
        assert!(guard.is_valid());
        clock.advance(INSTANT);
        assert!(!guard.is_valid());
        assert_eq!(guard.lost().await, LostReason::Expired);
    });
}

#[test]
fn an_outage_of_half_a_lease_does_not_lose_the_lock() {
    on_a_manual_clock(async |memory, clock| {
        let client = memory.client().unwrap();
        let guard = client.lock("a").ttl(TTL).acquire().await.unwrap();
        for _ in 0..20 {
            memory.faults().cut();
            clock.advance(TTL / 2);
            memory.faults().heal();
            clock.advance(TTL / 6);
            assert!(guard.is_valid());
        }
    });
}

#[test]
fn a_wait_times_out_on_time() {
    on_a_manual_clock(async |memory, clock| {
        let client = memory.client().unwrap();
        let guard = client.lock("a").ttl(TTL).acquire().await.unwrap();
        let lock = client.lock("a").ttl(TTL).wait(HOUR);
        let waiter = tokio::spawn(async move { lock.acquire().await });
        wait::until("it is in the queue", async || client.inspect("a").await.unwrap().waiter_count == 1)
            .await;
        clock.advance(HOUR.checked_sub(INSTANT).unwrap());
        assert_eq!(client.inspect("a").await.unwrap().waiter_count, 1);
        clock.advance(INSTANT);
        let error = waiter.await.unwrap().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::WaitTimeout);
        guard.release().await.unwrap();
        client.close().await;
        assert!(memory.is_clean());
    });
}

#[test]
fn a_queue_position_is_kept_for_hours() {
    on_a_manual_clock(async |memory, clock| {
        let (ours, theirs) = (memory.client().unwrap(), memory.client().unwrap());
        let guard = ours.lock("a").ttl(TTL).acquire().await.unwrap();
        let first = enqueue(&theirs, "a", TTL).await;
        let second = enqueue(&ours, "a", TTL).await;
        clock.advance(HOUR * 5);
        guard.release().await.unwrap();
        let first = first.await.unwrap().unwrap();
        assert!(!second.is_finished());
        clock.advance(HOUR * 5);
        first.release().await.unwrap();
        second.await.unwrap().unwrap().release().await.unwrap();
    });
}

/// Scenario 32.
#[test]
fn max_hold_ends_on_time() {
    on_a_manual_clock(async |memory, clock| {
        let client = memory.client().unwrap();
        let guard = client.lock("a").ttl(TTL).max_hold(HOUR).acquire().await.unwrap();
        clock.advance(HOUR.checked_sub(INSTANT).unwrap());
        assert!(guard.is_valid());
        clock.advance(INSTANT);
        assert_eq!(guard.lost().await, LostReason::MaxHold);
        client.close().await;
        assert!(memory.is_clean());
    });
}

/// After a pause of the host the deadline is checked before anything is renewed.
#[test]
fn a_paused_host_does_not_renew_a_lost_lock() {
    on_a_manual_clock(async |memory, clock| {
        let client = memory.client().unwrap();
        let guard = client.lock("a").ttl(TTL).acquire().await.unwrap();
        clock.jump(HOUR);
        assert!(!guard.is_valid());
        assert_eq!(guard.lost().await, LostReason::Expired);
        let again = client.lock("a").ttl(TTL).acquire().await.unwrap();
        assert!(again.token() > guard.token());
        assert!(!guard.is_valid());
    });
}

/// Scenario 45: the host is paused for longer than all leases; the waiter gets a new grant.
#[test]
fn a_paused_waiter_gets_a_new_grant() {
    on_a_manual_clock(async |memory, clock| {
        let client = memory.client().unwrap();
        let guard = client.lock("a").ttl(TTL).acquire().await.unwrap();
        let waiter = enqueue(&client, "a", TTL).await;
        clock.jump(HOUR);
        let next = waiter.await.unwrap().unwrap();
        assert!(next.is_valid() && next.token() > guard.token());
        assert!(!guard.is_valid());
        assert_eq!(client.inspect("a").await.unwrap().holders[0].token, Some(next.token()));
    });
}

#[test]
fn a_cell_expires_on_time() {
    on_a_manual_clock(async |memory, clock| {
        let client = memory.client().unwrap();
        let guard = client.lock("a").ttl(TTL).acquire().await.unwrap();
        guard.write_cell(*b"value", fencepost_core::Keep::For(HOUR)).await.unwrap();
        guard.release().await.unwrap();
        clock.advance(HOUR.checked_sub(INSTANT).unwrap());
        assert!(client.read_cell("a").await.unwrap().is_some());
        clock.advance(INSTANT);
        assert!(client.read_cell("a").await.unwrap().is_none());
    });
}
