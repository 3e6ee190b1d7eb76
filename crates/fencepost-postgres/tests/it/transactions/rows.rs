//! The rows of locks: those that other programs lock, and those that are deleted meanwhile.

use std::time::Duration;

use fencepost_core::{LostReason, Page};
use fencepost_testkit::wait;

use super::{fresh, turn};
use crate::actions::{LONG_TTL, Transaction, enqueue, granted, hold, spawn_waiter, until_tickets};
use crate::bench::PostgresBench;

/// A release, a renewal or a check of a name without a row is answered, although a transaction had the row shortly before.
#[tokio::test]
async fn a_lock_is_lost_whose_row_is_gone() {
    let (bench, client) = fresh().await;
    let guard = hold(&client.lock("a").ttl(Duration::from_secs(5))).await;
    let transaction = Transaction::begin(&bench).await;
    let seized = "SELECT token FROM @.locks WHERE name = $1 FOR UPDATE";
    assert!(transaction.value(seized, "a").await.is_some());
    // The renewal fails, and is repeated.
    wait::elapse(Duration::from_millis(2500)).await;
    transaction.value("DELETE FROM @.locks WHERE name = $1 RETURNING token", "a").await;
    transaction.end("COMMIT").await;
    let reason = wait::within_timeout("it is lost", guard.lost()).await;
    assert_eq!(reason, LostReason::NotHeld);
}

const CREATE_ROW: &str = "INSERT INTO @.locks (name, token, expires_at) \
    SELECT $1, floor, clock_timestamp() FROM @.storage ON CONFLICT DO NOTHING RETURNING token";
const LOCK_ROW: &str = "SELECT token FROM @.locks WHERE name = $1 AND is_plain \
    AND (owner IS NULL OR expires_at <= clock_timestamp()) FOR UPDATE";

/// The documented statements that lock the row itself: they exclude holders, in both directions, and do not overtake a queue.
/// The token is that of the last grant, not a new one.
#[tokio::test]
async fn a_row_is_locked_without_the_function() {
    let (bench, client) = fresh().await;
    let transaction = Transaction::begin(&bench).await;
    assert_eq!(transaction.value(LOCK_ROW, "a").await, None, "the row does not exist");
    transaction.value(CREATE_ROW, "a").await;
    assert!(transaction.value(LOCK_ROW, "a").await.is_some());
    assert!(client.lock("a").ttl(LONG_TTL).try_acquire().await.unwrap().is_none());
    let waiter = spawn_waiter(client.lock("a").ttl(LONG_TTL));
    until_tickets(&bench, 1).await;
    transaction.end("COMMIT").await;
    let guard = granted(waiter).await;
    transaction.end("BEGIN").await;
    assert_eq!(transaction.value(LOCK_ROW, "a").await, None, "a lease is held");
    let next = enqueue(&client, client.lock("a").ttl(LONG_TTL), "a", 1).await;
    let token = i64::try_from(guard.token().get()).unwrap();
    guard.release().await.unwrap();
    assert_eq!(transaction.value(LOCK_ROW, "a").await, None, "the lock was handed over");
    granted(next).await.release().await.unwrap();
    assert!(transaction.value(LOCK_ROW, "a").await > Some(token));
    transaction.end("COMMIT").await;
    let reader = hold(&client.lock("a").ttl(LONG_TTL).shared()).await;
    assert_eq!(transaction.value(LOCK_ROW, "a").await, None, "a reader has it");
    reader.release().await.unwrap();
    assert!(client.list("", Page::new(10)).await.unwrap().locks.is_empty());
}

/// The row is deleted, by a sweep, while a transaction waits for it.
#[tokio::test]
async fn a_row_that_is_deleted_meanwhile_is_created_again() {
    let (bench, client) = fresh().await;
    turn(&client, "a").await;
    let (sweep, transaction) = (Transaction::begin(&bench).await, Transaction::begin(&bench).await);
    let seized = "SELECT token FROM @.locks WHERE name = $1 FOR NO KEY UPDATE";
    assert!(sweep.value(seized, "a").await.is_some());
    let waiting = tokio::spawn(async move { (transaction.lock_in("a", 20_000).await, transaction) });
    until_row_is_awaited(&bench).await;
    sweep.value("DELETE FROM @.locks WHERE name = $1 RETURNING token", "a").await;
    sweep.end("COMMIT").await;
    let (token, transaction) = wait::within_timeout("it is granted", waiting).await.unwrap();
    assert!(token.is_some());
    assert!(client.lock("a").ttl(LONG_TTL).try_acquire().await.unwrap().is_none(), "both hold it");
    transaction.end("COMMIT").await;
}

/// The acquire of a client waits for the row when the transaction gets its token, and the transaction is rolled back.
#[tokio::test]
async fn a_grant_after_a_rollback_has_a_larger_token() {
    let (bench, client) = fresh().await;
    turn(&client, "a").await;
    let transaction = Transaction::begin(&bench).await;
    assert!(transaction.lock_in("a", 0).await.is_some());
    let waiter = spawn_waiter(client.lock("a").ttl(LONG_TTL));
    until_row_is_awaited(&bench).await;
    let token = transaction.lock_in("a", 0).await;
    transaction.end("ROLLBACK").await;
    let guard = granted(waiter).await;
    assert!(Some(guard.token().get()) > token);
    guard.release().await.unwrap();
}

/// Waits until a statement of the namespace waits for a row.
async fn until_row_is_awaited(bench: &PostgresBench) {
    let driver = bench.driver().await;
    let sql = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND query LIKE '%' || $1 || '%'";
    wait::until("a statement waits", async || {
        driver.query_one(sql, &[&bench.namespace()]).await.unwrap().get::<_, i64>(0) == 1
    })
    .await;
}
