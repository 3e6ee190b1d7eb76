//! What ends a session: administrators, outages, clients that are gone or silent.

use std::time::Duration;

use fencepost_core::{Guard, LostReason};
use fencepost_testkit::actions::{LONG_TTL, enqueue, granted, hold, spawn_waiter, until_idle, until_queued};
use fencepost_testkit::scripted_process::ScriptedProcess;
use fencepost_testkit::servers::postgres::{PostgresPair, PostgresServer, PostgresServerConfig, Replication};
use fencepost_testkit::wire::Direction;
use fencepost_testkit::{TestBench, WireBench, wait};

use super::AdvisoryBench;

async fn lost(guard: &Guard) -> LostReason {
    wait::within_timeout("the lock is lost", guard.lost()).await
}

/// Scenario 15: the session of the holder is terminated. The lock is lost at once, and not acquired again behind the
/// holder's back.
#[tokio::test(flavor = "multi_thread")]
async fn a_terminated_holder_is_lost_at_once() {
    let bench = AdvisoryBench::plain();
    let (client, other) = (bench.client().await, bench.client().await);
    let guard = hold(&client.lock("a").ttl(LONG_TTL)).await;
    assert_eq!(bench.terminate_holders("a").await, 1);
    // The next heartbeat is 40 s away.
    assert_eq!(lost(&guard).await, LostReason::NotHeld);
    assert!(!guard.is_valid());
    assert!(other.inspect("a").await.unwrap().is_idle(), "it was not acquired again");
    let next = hold(&other.lock("a").ttl(LONG_TTL)).await;
    assert!(next.token() > guard.token());
    assert!(guard.release().await.is_err());
    assert!(next.is_valid());
}

/// A waiter whose session is terminated waits in a new one.
#[tokio::test(flavor = "multi_thread")]
async fn a_terminated_waiter_waits_again() {
    let bench = AdvisoryBench::plain();
    let client = bench.client().await;
    let guard = hold(&client.lock("a").ttl(LONG_TTL)).await;
    let waiter = enqueue(&client, client.lock("a").ttl(LONG_TTL), "a", 1).await;
    let driver = bench.driver().await;
    let mut last = None;
    for end in ["pg_terminate_backend", "pg_cancel_backend"] {
        let sql = format!(
            "SELECT pid, {end}(pid) FROM pg_locks WHERE locktype = 'advisory' AND NOT granted AND pid IN \
            (SELECT pid FROM pg_stat_activity WHERE application_name = $1)"
        );
        let mut ended = last;
        wait::until("another session waits, and is ended", async || {
            let found = driver.query_opt(&sql, &[&bench.namespace()]).await.unwrap();
            ended = found.map(|row| row.get::<_, i32>(0));
            ended.is_some() && ended != last
        })
        .await;
        last = ended;
    }
    guard.release().await.unwrap();
    granted(waiter).await.release().await.unwrap();
}

/// An outage ends the sessions: holders are lost at once, waiters wait again.
#[tokio::test(flavor = "multi_thread")]
async fn an_outage_loses_the_holder_at_once_and_keeps_the_waiters() {
    let bench = AdvisoryBench::plain();
    let client = bench.client().await;
    let guard = hold(&client.lock("a").ttl(LONG_TTL)).await;
    let ttl = Duration::from_secs(3);
    let waiter = enqueue(&client, client.lock("a").ttl(ttl), "a", 1).await;
    bench.wire().cut();
    assert_eq!(lost(&guard).await, LostReason::NotHeld);
    wait::elapse(ttl).await;
    bench.wire().heal();
    granted(waiter).await.release().await.unwrap();
}

/// A server that is killed forgets all locks; a holder learns it at once, and the next token is larger.
#[tokio::test(flavor = "multi_thread")]
async fn locks_end_with_the_server() {
    let server = PostgresServer::start(&PostgresServerConfig::plain());
    let bench = AdvisoryBench::on(&server, "");
    let client = bench.client().await;
    for end in [PostgresServer::kill, PostgresServer::stop] {
        let guard = hold(&client.lock("a").ttl(LONG_TTL)).await;
        let waiter = enqueue(&client, client.lock("a").ttl(Duration::from_secs(2)), "a", 1).await;
        end(&server);
        assert_eq!(lost(&guard).await, LostReason::NotHeld);
        server.restart();
        let next = granted(waiter).await;
        assert!(next.token() > guard.token());
        next.release().await.unwrap();
    }
}

/// A standby that is promoted knows no advisory locks of the primary before it, but its tokens are larger.
#[tokio::test(flavor = "multi_thread")]
async fn a_promoted_standby_grants_larger_tokens() {
    let pair = PostgresPair::start(Replication::Asynchronous);
    let url = format!("{}?mode=advisory", pair.primary().url("postgres"));
    let url = url.replace("/postgres?", &format!(",127.0.0.1:{}/postgres?", pair.standby().port()));
    let client = fencepost_postgres::connect(&url).await.unwrap();
    let guard = hold(&client.lock("a").ttl(LONG_TTL)).await;
    let waiter = enqueue(&client, client.lock("a").ttl(Duration::from_secs(2)), "a", 1).await;
    pair.wait_until_caught_up();
    pair.primary().kill();
    assert_eq!(lost(&guard).await, LostReason::NotHeld);
    pair.promote();
    let next = granted(waiter).await;
    assert!(next.token() > guard.token());
    next.release().await.unwrap();
}

/// The process of a holder is stopped: the server ends its session a ttl after the last heartbeat, and the holder learns it
/// when it continues.
#[test]
fn a_stopped_holder_loses_the_lock_after_its_ttl() {
    let bench = AdvisoryBench::plain();
    let mut stopped = ScriptedProcess::new(bench.url());
    stopped.send("acquire a 2000");
    let old = token(&stopped.receive("granted"));
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
    let bench = AdvisoryBench::plain();
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
    let bench = AdvisoryBench::plain();
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
        // While it waits, the server checks every 2 s whether its client is connected.
        until_queued(&client, "a", 1).await;
        holder.kill();
        granted(waiter).await.release().await.unwrap();
        until_idle(&client, "a").await;
    });
}

fn token(reply: &str) -> u64 {
    reply.parse().unwrap()
}

/// The network of a holder is silent: the holder gives up at its deadline, and the server ends the session after that.
#[tokio::test(flavor = "multi_thread")]
async fn a_silent_holder_is_lost_before_the_server_frees_the_lock() {
    let bench = AdvisoryBench::plain();
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

/// The network of a waiter is silent when the lock is granted to it: the grant is not shown as valid for longer than the server
/// keeps it, and the next waiter enters.
#[tokio::test(flavor = "multi_thread")]
async fn a_silent_waiter_does_not_show_an_old_grant() {
    let bench = AdvisoryBench::plain();
    let silent = bench.client().await;
    let direct = bench.direct_client().await;
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
