//! Hours of leases in no time: what a manual clock shows to the millisecond.

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

/// Runs a test on a fresh storage whose clock stands still unless the test moves it.
pub(crate) fn on_a_manual_clock(test: impl AsyncFnOnce(Memory, ManualClock) + Send + 'static) {
    let name = std::thread::current().name().unwrap_or("a test").to_owned();
    under_watchdog(&name, || {
        let runtime =
            tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        let clock = ManualClock::new();
        runtime.block_on(test(Memory::with_clock(clock.clone()), clock));
    });
}

/// Waits in a task of its own, and returns when it stands in line.
pub(crate) async fn in_line(client: &Client, name: &str, ttl: Duration) -> JoinHandle<Result<Guard>> {
    let before = client.inspect(name).await.unwrap().waiter_count;
    let lock = client.lock(name).ttl(ttl);
    let waiter = tokio::spawn(async move { lock.acquire().await });
    wait::until("it stands in line", async || client.inspect(name).await.unwrap().waiter_count > before)
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

/// To stay awake until some moment would be for ever on a clock that stands still.
#[test]
fn a_low_latency_client_comes_to_rest() {
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
fn an_absence_of_half_a_lease_goes_unnoticed() {
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
fn a_wait_is_over_when_it_is_over() {
    on_a_manual_clock(async |memory, clock| {
        let client = memory.client().unwrap();
        let guard = client.lock("a").ttl(TTL).acquire().await.unwrap();
        let lock = client.lock("a").ttl(TTL).wait(HOUR);
        let waiter = tokio::spawn(async move { lock.acquire().await });
        wait::until("it waits", async || client.inspect("a").await.unwrap().waiter_count == 1).await;
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
fn a_place_in_line_is_kept_for_hours() {
    on_a_manual_clock(async |memory, clock| {
        let (ours, theirs) = (memory.client().unwrap(), memory.client().unwrap());
        let guard = ours.lock("a").ttl(TTL).acquire().await.unwrap();
        let first = in_line(&theirs, "a", TTL).await;
        let second = in_line(&ours, "a", TTL).await;
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

/// A machine that was paused finds all of the time gone: the deadline is looked at before anything is renewed.
#[test]
fn a_paused_machine_does_not_renew_what_it_has_lost() {
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

/// Scenario 45: the machine is paused for longer than all leases; whoever waited gets a grant that is new.
#[test]
fn a_paused_waiter_gets_a_new_grant() {
    on_a_manual_clock(async |memory, clock| {
        let client = memory.client().unwrap();
        let guard = client.lock("a").ttl(TTL).acquire().await.unwrap();
        let waiter = in_line(&client, "a", TTL).await;
        clock.jump(HOUR);
        let next = waiter.await.unwrap().unwrap();
        assert!(next.is_valid() && next.token() > guard.token());
        assert!(!guard.is_valid());
        assert_eq!(client.inspect("a").await.unwrap().holders[0].token, Some(next.token()));
    });
}

#[test]
fn a_cell_ends_on_time() {
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
