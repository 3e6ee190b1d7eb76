//! Connections that break and recover, slow ones, and ones on which nothing arrives any more.

use std::time::Duration;

use fencepost_core::LostReason;
use fencepost_core::clock::Clock;

use super::hold;
use crate::actions::until_renewed;
use crate::test_bench::WireBench;
use crate::wait;
use crate::wire::{Direction, Wire};

/// Holds a lock, lets the fault last until nearly half of the lease has passed, and asserts that the holder did not notice.
async fn goes_unnoticed<B: WireBench>(bench: &B, break_it: impl FnOnce(&Wire)) {
    let ttl = bench.ttl_above_read_timeout();
    let client = bench.client().await;
    let guard = hold(&client.lock("a").ttl(ttl)).await;
    let token = guard.token();
    break_it(bench.wire());
    wait::until("a renewal is late", async || guard.remaining() < ttl * 6 / 10).await;
    bench.wire().heal();
    wait::until("it is renewed", async || guard.remaining() > ttl * 9 / 10).await;
    assert_eq!((guard.lost_reason(), guard.token()), (None, token));
    guard.release().await.expect("it is still held");
}

/// Connections are closed, and new ones rejected for a while.
pub async fn a_cut_of_less_than_half_a_lease_goes_unnoticed<B: WireBench>(bench: &B) {
    goes_unnoticed(bench, Wire::cut).await;
}

/// Nothing arrives in either direction for a while.
pub async fn silence_of_less_than_half_a_lease_goes_unnoticed<B: WireBench>(bench: &B) {
    goes_unnoticed(bench, Wire::blackhole).await;
}

/// Requests arrive, replies do not.
pub async fn silence_of_the_server_goes_unnoticed<B: WireBench>(bench: &B) {
    goes_unnoticed(bench, |wire| wire.one_way(Direction::ToServer)).await;
}

/// Replies would arrive, requests do not.
pub async fn silence_towards_the_server_goes_unnoticed<B: WireBench>(bench: &B) {
    goes_unnoticed(bench, |wire| wire.one_way(Direction::ToClient)).await;
}

/// A slow but steady connection keeps its locks.
pub async fn a_slow_wire_keeps_its_locks<B: WireBench>(bench: &B) {
    for slow in [|wire: &Wire| wire.delay(Duration::from_millis(60)), |wire: &Wire| wire.throttle(4000)] {
        let client = bench.client().await;
        let guard = hold(&client.lock("a").ttl(bench.ttl() * 2)).await;
        slow(bench.wire());
        for _ in 0..4 {
            until_renewed(&guard).await;
        }
        guard.release().await.expect("it is still held");
        bench.wire().heal();
    }
}

/// Scenario 20: nothing arrives any more, and the lock is lost at its deadline, not when a call times out.
pub async fn a_silent_wire_loses_the_lock_at_its_deadline<B: WireBench>(bench: &B) {
    let (clock, ttl) = (Clock::system(), bench.ttl() * 2);
    let client = bench.client().await;
    let guard = hold(&client.lock("a").ttl(ttl)).await;
    bench.wire().blackhole();
    assert_eq!(wait::within_timeout("the lock is lost", guard.lost()).await, LostReason::Expired);
    assert!(clock.now() >= guard.valid_until(), "it was lost too early");
    assert!(clock.now() < guard.valid_until() + ttl, "it was lost too late");
    assert!(!guard.is_valid());
    bench.wire().heal();
    let again = hold(&client.lock("a").ttl(ttl)).await;
    assert!(again.token() > guard.token());
    again.release().await.expect("it is held");
}
