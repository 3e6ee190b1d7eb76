//! A server that restarts, is killed, or is paused.

use std::time::Duration;

use fencepost_core::{Client, LostReason};
use fencepost_testkit::servers::postgres::{PostgresServer, PostgresServerConfig};
use fencepost_testkit::wait;

use crate::actions::{LONG_TTL, bench_on, connect, enqueue, granted, hold, until_renewed_since};

const TTL: Duration = Duration::from_secs(8);

/// The state of a lock is kept over `interrupt`: its holder, its waiter, and the order of tokens. A waiter whose ticket was not
/// on the disk yet when the server was killed joins again.
async fn assert_kept_over(holder: &Client, other: &Client, name: &str, interrupt: impl AsyncFnOnce()) {
    let guard = hold(&holder.lock(name).ttl(TTL)).await;
    let waiter = enqueue(other, other.lock(name).ttl(TTL), name, 1).await;
    let before = guard.valid_until();
    interrupt().await;
    until_renewed_since(&guard, before).await;
    wait::until("the waiter has a ticket", async || {
        other.inspect(name).await.is_ok_and(|state| state.waiter_count == 1)
    })
    .await;
    let token = guard.token();
    guard.release().await.expect("it is held");
    let guard = granted(waiter).await;
    assert!(guard.token() > token);
    guard.release().await.expect("it is held");
}

/// A commit is on the disk when a grant is returned, so that `kill -9` loses none.
#[tokio::test]
async fn a_server_that_restarts_or_is_killed_keeps_the_locks() {
    let server = PostgresServer::start(&PostgresServerConfig::durable());
    let bench = bench_on(&server);
    let (holder, other) = (connect(&bench).await, connect(&bench).await);
    assert_kept_over(&holder, &other, "restarted", async || {
        server.stop();
        server.restart();
    })
    .await;
    assert_kept_over(&holder, &other, "killed", async || {
        server.kill();
        server.restart();
    })
    .await;
    // Shorter than half a lease: it goes unnoticed.
    assert_kept_over(&holder, &other, "paused", async || {
        server.pause();
        wait::elapse(TTL * 2 / 5).await;
        server.resume();
    })
    .await;

    let ttl = Duration::from_secs(2);
    let guard = hold(&holder.lock("a").ttl(ttl)).await;
    let waiter = enqueue(&other, other.lock("a").ttl(LONG_TTL), "a", 1).await;
    server.pause();
    let reason = wait::within_timeout("it is lost", guard.lost()).await;
    assert_eq!(reason, LostReason::Expired);
    assert!(!waiter.is_finished());
    server.resume();
    assert!(granted(waiter).await.token() > guard.token());
}
