//! A server that restarts, is killed or paused, fails over, or whose clock is set; connections that an administrator ends.

use std::time::Duration;

use fencepost_core::{Client, Guard, LostReason};

use crate::actions::{
    LONG_TTL, enqueue, granted, hold, spawn_waiter, until_idle, until_queued, until_renewed,
    until_renewed_since,
};
use crate::behaviors::session_ends::{assert_lost_in_outage, loss_ttl};
use crate::servers::OwnServer;
use crate::{SessionBench, TestBench, WireBench, wait};

const HOUR: i64 = 3600;

/// The state of a lock is kept over `interrupt`: its holder, its waiter, and the order of tokens. A waiter whose ticket was not on
/// the disk yet when the server was killed joins again.
async fn assert_kept_over(clients: &[Client; 2], ttl: Duration, name: &str, interrupt: impl AsyncFnOnce()) {
    let [holder, other] = clients;
    let guard = hold(&holder.lock(name).ttl(ttl)).await;
    let waiter = enqueue(other, other.lock(name).ttl(ttl), name, 1).await;
    let before = guard.valid_until();
    interrupt().await;
    until_renewed_since(&guard, before).await;
    until_queued(other, name, 1).await;
    let token = guard.token();
    guard.release().await.expect("it is held");
    let guard = granted(waiter).await;
    assert!(guard.token() > token);
    guard.release().await.expect("it is held");
}

/// A commit is on the disk when a grant is returned, so that `kill -9` loses none. The ttl is longer than a restart takes.
pub async fn a_server_that_restarts_or_is_killed_keeps_the_locks(
    clients: [Client; 2],
    server: &impl OwnServer,
    ttl: Duration,
) {
    assert_kept_over(&clients, ttl, "restarted", async || {
        server.stop();
        server.restart();
    })
    .await;
    assert_kept_over(&clients, ttl, "killed", async || {
        server.kill();
        server.restart();
    })
    .await;
    // Shorter than half a lease: it goes unnoticed.
    assert_kept_over(&clients, ttl, "paused", async || {
        server.pause();
        wait::elapse(ttl * 2 / 5).await;
        server.resume();
    })
    .await;

    let [holder, other] = clients;
    let guard = hold(&holder.lock("a").ttl(Duration::from_secs(2))).await;
    let waiter = enqueue(&other, other.lock("a").ttl(LONG_TTL), "a", 1).await;
    server.pause();
    let reason = wait::within_timeout("it is lost", guard.lost()).await;
    assert_eq!(reason, LostReason::Expired);
    assert!(!waiter.is_finished());
    server.resume();
    assert!(granted(waiter).await.token() > guard.token());
}

/// A server that is killed or restarted forgets the locks of sessions; their holders learn it, and the next token is larger.
pub async fn locks_in_sessions_end_with_the_server<B: SessionBench>(bench: &B, server: &impl OwnServer) {
    let client = bench.client().await;
    for is_killed in [true, false] {
        let guard = hold(&client.lock("a").ttl(loss_ttl(bench))).await;
        let waiter = enqueue(&client, client.lock("a").ttl(Duration::from_secs(2)), "a", 1).await;
        if is_killed {
            server.kill();
        } else {
            server.stop();
        }
        assert_lost_in_outage(bench, &guard).await;
        server.restart();
        let next = granted(waiter).await;
        assert!(next.token() > guard.token());
        next.release().await.expect("it is held");
        until_idle(&client, "a").await;
    }
}

/// What the replica has is kept: the holder goes on renewing there. A grant that it has not is granted to another client, with a
/// larger token; the first holder is told at its next renewal. `detach` waits for the replica and disconnects it, `fail_over`
/// replaces the primary.
pub async fn an_asynchronous_replica_loses_the_last_grants(
    [client, other]: [Client; 2],
    detach: impl FnOnce(),
    fail_over: impl FnOnce(),
) {
    let ttl = Duration::from_secs(15);
    let kept = hold(&client.lock("kept").ttl(ttl)).await;
    let waiter = enqueue(&client, other.lock("kept").ttl(ttl), "kept", 1).await;
    let used = hold(&client.lock("lost").ttl(ttl)).await;
    let old = used.token();
    used.release().await.expect("it is held");
    detach();
    for _ in 0..20 {
        hold(&client.lock("lost").ttl(ttl)).await.release().await.expect("it is held");
    }
    let lost = hold(&client.lock("lost").ttl(ttl)).await;
    assert!(lost.token() > old);
    let before = kept.valid_until();
    fail_over();
    let second = hold(&other.lock("lost").ttl(ttl)).await;
    assert!(second.token() > lost.token(), "{:?} after {:?}", second.token(), lost.token());
    let reason = wait::within_timeout("the loss is told", lost.lost()).await;
    assert_eq!(reason, LostReason::NotHeld);
    until_renewed_since(&kept, before).await;
    assert!(!waiter.is_finished());
    kept.release().await.expect("it is held");
    granted(waiter).await.release().await.expect("it is held");
    second.release().await.expect("it is held");
}

/// Set back, the clock of the server does not make leases longer. Live holders renew, and waiters of dead ones are granted after
/// a ttl.
pub async fn a_clock_set_back_keeps_no_lock<B: WireBench>(bench: &B, server: &impl OwnServer) {
    let ttl = Duration::from_secs(6);
    let (dead, client, other) =
        (bench.client().await, bench.direct_client().await, bench.direct_client().await);
    server.shift_clock(HOUR);
    let kept = hold(&client.lock("kept").ttl(ttl)).await;
    let kept_reader = hold(&client.lock("kept/read").shared().ttl(ttl)).await;
    let exclusive = hold(&dead.lock("exclusive").ttl(ttl)).await;
    let queued = hold(&dead.lock("queued").ttl(ttl)).await;
    let dead_waiter = enqueue(&client, dead.lock("queued").ttl(ttl), "queued", 1).await;
    let reader = hold(&dead.lock("shared").shared().ttl(ttl)).await;
    // Its lease is extended after the row of its lock was last written.
    server.shift_clock(HOUR + 2);
    until_renewed(&reader).await;
    bench.wire().cut();
    server.shift_clock(0);
    let waiters = ["exclusive", "queued", "shared"].map(|name| spawn_waiter(other.lock(name).ttl(ttl)));
    for (waiter, orphan) in waiters.into_iter().zip([&exclusive, &queued, &reader]) {
        let guard = granted(waiter).await;
        assert!(guard.token() > orphan.token(), "{:?}", guard.name());
        guard.release().await.expect("it is held");
    }
    for guard in [&kept, &kept_reader] {
        until_renewed(guard).await;
        until_renewed(guard).await;
    }
    let second = other.lock("kept").ttl(ttl).try_acquire().await.expect("it is reachable");
    assert!(second.is_none());
    dead_waiter.abort();
}

/// An administrator ends all connections, again and again: locks are renewed on new ones, and waiters keep their positions.
/// `end_all` returns how many connections there were.
pub async fn ended_connections_lose_nothing<B: TestBench>(bench: &B, end_all: impl AsyncFn() -> usize) {
    let (client, other) = (bench.client().await, bench.client().await);
    let ttl = Duration::from_secs(3);
    let kept = hold(&client.lock("kept").ttl(ttl)).await;
    let reader = hold(&client.lock("read").shared().ttl(ttl)).await;
    let guard = hold(&other.lock("a").ttl(ttl)).await;
    let first = enqueue(&client, client.lock("a").ttl(LONG_TTL), "a", 1).await;
    let second = enqueue(&client, other.lock("a").ttl(LONG_TTL), "a", 2).await;
    for _ in 0..4 {
        let before = [&kept, &reader, &guard].map(Guard::valid_until);
        assert!(end_all().await > 0);
        for (guard, before) in [&kept, &reader, &guard].into_iter().zip(before) {
            until_renewed_since(guard, before).await;
        }
    }
    wait::until("both listen again", async || bench.listeners().await == Some(2)).await;
    let token = guard.token();
    guard.release().await.expect("it is held");
    let guard = granted(first).await;
    assert!(guard.token() > token);
    assert!(!second.is_finished());
    guard.release().await.expect("it is held");
    granted(second).await.release().await.expect("it is held");
}
