//! What ends the session of a lock: administrators, outages, clients that are gone or silent.

use std::time::Duration;

use fencepost_core::{Guard, LostReason};

use super::{LONG_TTL, granted, hold, name};
use crate::actions::{enqueue, until_idle, until_queued};
use crate::scripted_process::ScriptedProcess;
use crate::test_bench::{SessionBench, TestBench};
use crate::wait;
use crate::wire::Direction;

/// A ttl in which a holder learns that its session has ended: at once, or at its next heartbeat.
pub(crate) fn loss_ttl<B: TestBench>(bench: &B) -> Duration {
    if bench.notifies_holders() { LONG_TTL } else { Duration::from_secs(6) }
}

async fn lost(guard: &Guard) -> LostReason {
    wait::within_timeout("the lock is lost", guard.lost()).await
}

/// Asserts that the lock is lost because its session has ended. Without a server, a heartbeat may not learn that in time.
pub(crate) async fn assert_lost_in_outage<B: TestBench>(bench: &B, guard: &Guard) {
    let reason = lost(guard).await;
    let is_late = !bench.notifies_holders() && reason == LostReason::Expired;
    assert!(reason == LostReason::NotHeld || is_late, "{reason:?}");
}

/// Scenarios 15 and 17: the session of the holder is terminated. The lock is lost, and not acquired again behind the holder's
/// back.
pub async fn a_terminated_holder_is_lost<B: SessionBench>(bench: &B) {
    let (client, other) = (bench.client().await, bench.client().await);
    let guard = hold(&client.lock("a").ttl(loss_ttl(bench))).await;
    assert_eq!(bench.peek().await.holders, 1);
    bench.steal(&name("a")).await;
    assert_eq!(lost(&guard).await, LostReason::NotHeld);
    assert!(!guard.is_valid());
    assert!(other.inspect("a").await.unwrap().is_idle(), "it was not acquired again");
    let next = hold(&other.lock("a").ttl(LONG_TTL)).await;
    assert!(next.token() > guard.token());
    assert!(guard.release().await.is_err());
    assert!(next.is_valid());
}

/// An outage ends the sessions: holders are lost, waiters wait again.
pub async fn an_outage_loses_the_holder_and_keeps_the_waiters<B: SessionBench>(bench: &B) {
    let client = bench.client().await;
    let guard = hold(&client.lock("a").ttl(loss_ttl(bench))).await;
    let ttl = Duration::from_secs(3);
    let waiter = enqueue(&client, client.lock("a").ttl(ttl), "a", 1).await;
    bench.wire().cut();
    assert_lost_in_outage(bench, &guard).await;
    wait::elapse(ttl).await;
    bench.wire().heal();
    granted(waiter).await.release().await.unwrap();
}

/// The process of a holder is stopped, as one on a host that is gone: the server ends its session a ttl after the last heartbeat,
/// and the holder learns it when it continues.
pub async fn a_stopped_holder_loses_the_lock_after_its_ttl<B: SessionBench>(bench: &B) {
    let mut stopped = ScriptedProcess::new(bench.url());
    stopped.send("acquire a 1500");
    let old: u64 = stopped.receive("granted").parse().unwrap();
    stopped.pause();
    let client = bench.client().await;
    let next = hold(&client.lock("a").ttl(LONG_TTL)).await;
    assert!(next.token().get() > old);
    stopped.resume();
    stopped.send("valid");
    assert_eq!(stopped.receive("valid"), "false");
    assert!(next.is_valid());
    next.release().await.unwrap();
}

/// The process of a waiter is stopped: it delays those behind it by its ttl at most, once it is granted.
pub async fn a_stopped_waiter_delays_the_next_by_its_ttl_at_most<B: SessionBench>(bench: &B) {
    let mut stopped = ScriptedProcess::new(bench.url());
    let client = bench.client().await;
    let guard = hold(&client.lock("a").ttl(LONG_TTL)).await;
    stopped.send("acquire a 2000");
    until_queued(&client, "a", 1).await;
    let waiter = enqueue(&client, client.lock("a").ttl(LONG_TTL), "a", 2).await;
    stopped.pause();
    guard.release().await.unwrap();
    granted(waiter).await.release().await.unwrap();
    stopped.resume();
    // It waits again, with a grant that it has read in time.
    stopped.receive("granted");
    stopped.send("valid");
    assert_eq!(stopped.receive("valid"), "true");
}

/// A process that is killed frees its lock at once, and leaves the queue.
pub async fn a_killed_process_leaves_no_lock_and_no_waiter<B: SessionBench>(bench: &B) {
    let (mut holder, mut waiting) = (ScriptedProcess::new(bench.url()), ScriptedProcess::new(bench.url()));
    holder.send("acquire a 120000");
    holder.receive("granted");
    waiting.send("acquire a 120000");
    let client = bench.client().await;
    until_queued(&client, "a", 1).await;
    let waiter = enqueue(&client, client.lock("a").ttl(LONG_TTL), "a", 2).await;
    waiting.kill();
    // While a session waits, the server checks every one or two seconds whether its client is connected.
    until_queued(&client, "a", 1).await;
    holder.kill();
    granted(waiter).await.release().await.unwrap();
    until_idle(&client, "a").await;
}

/// The network of a holder is silent: the holder gives up at its deadline, and the server ends the session after that.
pub async fn a_silent_holder_is_lost_before_the_server_frees_the_lock<B: SessionBench>(bench: &B) {
    let (silent, direct) = (bench.client().await, bench.direct_client().await);
    let ttl = Duration::from_secs(3);
    for silence in [None, Some(Direction::ToServer), Some(Direction::ToClient)] {
        let guard = hold(&silent.lock("a").ttl(ttl)).await;
        let waiter = enqueue(&direct, direct.lock("a").ttl(LONG_TTL), "a", 1).await;
        match silence {
            None => bench.wire().blackhole(),
            Some(direction) => bench.wire().one_way(direction),
        }
        let reason = lost(&guard).await;
        assert!(matches!(reason, LostReason::Expired | LostReason::NotHeld), "{reason:?}");
        let next = granted(waiter).await;
        assert!(!guard.is_valid() && next.token() > guard.token());
        bench.wire().heal();
        next.release().await.unwrap();
        until_idle(&direct, "a").await;
    }
}

/// The network of a waiter is silent when the lock is granted to it: the grant is not shown as valid for longer than the server
/// keeps it, and the next waiter enters.
pub async fn a_silent_waiter_does_not_show_an_old_grant<B: SessionBench>(bench: &B) {
    let (silent, direct) = (bench.client().await, bench.direct_client().await);
    let guard = hold(&direct.lock("a").ttl(LONG_TTL)).await;
    let late = enqueue(&direct, silent.lock("a").ttl(Duration::from_secs(2)), "a", 1).await;
    let waiter = enqueue(&direct, direct.lock("a").ttl(LONG_TTL), "a", 2).await;
    bench.wire().blackhole();
    guard.release().await.unwrap();
    let next = granted(waiter).await;
    bench.wire().heal();
    wait::elapse(Duration::from_millis(500)).await;
    assert!(next.is_valid() && !late.is_finished(), "both believe to hold the lock");
    next.release().await.unwrap();
    granted(late).await.release().await.unwrap();
}
