//! What ends a connection: administrators, outages, clients that are gone or silent.

use std::time::Duration;

use fencepost_core::{Guard, LostReason};
use fencepost_testkit::actions::{LONG_TTL, enqueue, granted, hold, spawn_waiter, until_idle, until_queued};
use fencepost_testkit::scripted_process::ScriptedProcess;
use fencepost_testkit::servers::mariadb::{MariadbServer, MariadbServerConfig};
use fencepost_testkit::wire::Direction;
use fencepost_testkit::{TestBench, WireBench, wait};

use super::NamedBench;

/// A ttl whose heartbeats a test waits for.
const TTL: Duration = Duration::from_secs(6);

async fn lost(guard: &Guard) -> LostReason {
    wait::within_timeout("the lock is lost", guard.lost()).await
}

/// Scenario 17: the connection of the holder is killed. The lock is lost at the next heartbeat, and not acquired again behind the
/// holder's back.
#[tokio::test(flavor = "multi_thread")]
async fn a_killed_holder_is_lost_at_its_heartbeat() {
    let bench = NamedBench::plain();
    let (client, other) = (bench.client().await, bench.client().await);
    let guard = hold(&client.lock("a").ttl(TTL)).await;
    assert_eq!(bench.kill_holders("a").await, 1);
    assert_eq!(lost(&guard).await, LostReason::NotHeld);
    assert!(!guard.is_valid());
    assert!(other.inspect("a").await.unwrap().is_idle(), "it was not acquired again");
    let next = hold(&other.lock("a").ttl(LONG_TTL)).await;
    assert!(next.token() > guard.token());
    assert!(guard.release().await.is_err());
    assert!(next.is_valid());
}

/// A waiter whose connection is killed, or whose wait is interrupted, waits again.
#[tokio::test(flavor = "multi_thread")]
async fn a_killed_waiter_waits_again() {
    let bench = NamedBench::plain();
    let client = bench.client().await;
    let guard = hold(&client.lock("a").ttl(LONG_TTL)).await;
    let waiter = enqueue(&client, client.lock("a").ttl(LONG_TTL), "a", 1).await;
    for end in ["KILL", "KILL QUERY"] {
        let waiting = bench.connections("a", 0).await;
        assert_eq!(waiting.len(), 1);
        bench.sql(&format!("{end} {}", waiting[0])).await;
        wait::until("it waits on another connection", async || {
            let now = bench.connections("a", 0).await;
            now.len() == 1 && now != waiting && client.inspect("a").await.unwrap().waiter_count == 1
        })
        .await;
    }
    guard.release().await.unwrap();
    granted(waiter).await.release().await.unwrap();
}

/// An outage ends the connections: holders are lost at their heartbeats, waiters wait again.
#[tokio::test(flavor = "multi_thread")]
async fn an_outage_loses_the_holder_and_keeps_the_waiters() {
    let bench = NamedBench::plain();
    let client = bench.client().await;
    let guard = hold(&client.lock("a").ttl(TTL)).await;
    let ttl = Duration::from_secs(3);
    let waiter = enqueue(&client, client.lock("a").ttl(ttl), "a", 1).await;
    bench.wire().cut();
    let reason = lost(&guard).await;
    assert!(matches!(reason, LostReason::Expired | LostReason::NotHeld), "{reason:?}");
    bench.wire().heal();
    granted(waiter).await.release().await.unwrap();
}

/// A server that is killed or restarted forgets all locks; a holder learns it at its heartbeat, and the next token is larger.
#[tokio::test(flavor = "multi_thread")]
async fn locks_end_with_the_server() {
    let bench = NamedBench::on(&MariadbServerConfig::plain());
    let client = bench.client().await;
    for end in [MariadbServer::kill, MariadbServer::stop] {
        let guard = hold(&client.lock("a").ttl(TTL)).await;
        let waiter = enqueue(&client, client.lock("a").ttl(Duration::from_secs(2)), "a", 1).await;
        end(bench.server());
        let reason = lost(&guard).await;
        assert!(matches!(reason, LostReason::Expired | LostReason::NotHeld), "{reason:?}");
        bench.server().restart();
        let next = granted(waiter).await;
        assert!(next.token() > guard.token());
        next.release().await.unwrap();
        until_idle(&client, "a").await;
    }
}

/// The process of a holder is stopped, as one on a host that is gone: the server ends its connection a ttl, in whole seconds, after
/// the last heartbeat, and the holder learns it when it continues.
#[test]
fn a_stopped_holder_loses_the_lock_after_its_ttl() {
    let bench = NamedBench::plain();
    let mut stopped = ScriptedProcess::new(bench.url());
    stopped.send("acquire a 1500");
    let old: u64 = stopped.receive("granted").parse().unwrap();
    stopped.pause();
    let runtime = tokio::runtime::Runtime::new().unwrap();
    runtime.block_on(async {
        let client = bench.client().await;
        let next = hold(&client.lock("a").ttl(LONG_TTL)).await;
        assert!(next.token().get() > old);
        stopped.resume();
        stopped.send("valid");
        assert_eq!(stopped.receive("valid"), "false");
        assert!(next.is_valid());
        next.release().await.unwrap();
    });
}

/// The process of a waiter is stopped: it delays those behind it by its ttl at most, once it is granted.
#[test]
fn a_stopped_waiter_delays_the_next_by_its_ttl_at_most() {
    let bench = NamedBench::plain();
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let mut stopped = ScriptedProcess::new(bench.url());
    runtime.block_on(async {
        let client = bench.client().await;
        let guard = hold(&client.lock("a").ttl(LONG_TTL)).await;
        stopped.send("acquire a 2000");
        until_queued(&client, "a", 1).await;
        let waiter = enqueue(&client, client.lock("a").ttl(LONG_TTL), "a", 2).await;
        stopped.pause();
        guard.release().await.unwrap();
        granted(waiter).await.release().await.unwrap();
        stopped.resume();
    });
    // It waits again, with a grant that it has read in time.
    stopped.receive("granted");
    stopped.send("valid");
    assert_eq!(stopped.receive("valid"), "true");
}

/// A process that is killed frees its lock at once, and leaves the queue.
#[test]
fn a_killed_process_leaves_no_lock_and_no_waiter() {
    let bench = NamedBench::plain();
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let mut holder = ScriptedProcess::new(bench.url());
    let mut waiting = ScriptedProcess::new(bench.url());
    holder.send("acquire a 120000");
    holder.receive("granted");
    waiting.send("acquire a 120000");
    runtime.block_on(async {
        let client = bench.client().await;
        until_queued(&client, "a", 1).await;
        let waiter = enqueue(&client, client.lock("a").ttl(LONG_TTL), "a", 2).await;
        waiting.kill();
        // While it waits, the server checks every second whether its client is connected.
        until_queued(&client, "a", 1).await;
        holder.kill();
        granted(waiter).await.release().await.unwrap();
        until_idle(&client, "a").await;
    });
}

/// The network of a holder is silent: the holder gives up at its deadline, and the server ends the connection after that.
#[tokio::test(flavor = "multi_thread")]
async fn a_silent_holder_is_lost_before_the_server_frees_the_lock() {
    let bench = NamedBench::plain();
    let silent = bench.client().await;
    let direct = bench.direct_client().await;
    let ttl = Duration::from_secs(3);
    for silence in [None, Some(Direction::ToServer), Some(Direction::ToClient)] {
        let guard = hold(&silent.lock("a").ttl(ttl)).await;
        let waiter = spawn_waiter(direct.lock("a").ttl(LONG_TTL));
        until_queued(&direct, "a", 1).await;
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

/// Tokens follow the clock of the server, and grow although it is set back and the server restarted.
#[tokio::test(flavor = "multi_thread")]
async fn tokens_grow_although_the_clock_is_set_back() {
    let bench = NamedBench::on(&MariadbServerConfig::plain().with_movable_clock());
    let client = bench.client().await;
    let mut last = hold(&client.lock("a")).await.token();
    let micros = "SELECT CAST(UNIX_TIMESTAMP(SYSDATE(6)) * 1000000 AS UNSIGNED)";
    let micros: u64 = bench.sql(micros).await.parse().unwrap();
    assert!(last.get() > micros - 60_000_000 && last.get() <= micros, "{last} is not near {micros}");
    for shift in [-3600, -7200, 0, 3600, -3600] {
        bench.server().shift_clock(shift);
        bench.server().restart();
        let client = bench.client().await;
        let next = hold(&client.lock("a")).await.token();
        assert!(next > last, "{next} after {last} at {shift}");
        last = next;
    }
}
