//! Locks in the users' own transactions, by the documented statements.

use std::time::Duration;

use fencepost_core::clock::Clock;
use fencepost_core::{Client, Lock, Page};
use fencepost_testkit::{TestBench, WireBench, wait};

use crate::actions::{LONG_TTL, Transaction, enqueue, granted, hold, spawn_waiter, until_renewed};
use crate::bench::MariadbBench;

/// Far above what an operation takes that is not delayed, and far below what it would be delayed by.
const AT_ONCE: Duration = Duration::from_secs(4);

async fn fresh() -> (MariadbBench, Client) {
    let bench = MariadbBench::plain();
    let client = bench.direct_client().await;
    (bench, client)
}

/// Scenario 47: tokens are minted under the row lock, so that they rise in the order of the grants.
#[tokio::test]
async fn transactions_and_leases_exclude_each_other_with_rising_tokens() {
    let (bench, client) = fresh().await;
    let guard = hold(&client.lock("a").ttl(LONG_TTL)).await;
    let mut transaction = Transaction::begin(&bench).await;
    assert_eq!(transaction.lock_in("a").await, None);
    transaction.end("ROLLBACK").await;
    let first = guard.token().get();
    guard.release().await.unwrap();
    let second = transaction.lock_in("a").await.expect("it is free, and the transaction goes on");
    assert!(second > first);
    assert!(client.lock("a").ttl(LONG_TTL).try_acquire().await.unwrap().is_none());
    let mut other = Transaction::begin(&bench).await;
    assert_eq!(other.lock_in("a").await, None);
    let waiter = spawn_waiter(client.lock("a").ttl(LONG_TTL));
    transaction.end("COMMIT").await;
    let guard = granted(waiter).await;
    assert!(guard.token().get() > second);
    assert_eq!(other.lock_in("a").await, None);
    other.end("ROLLBACK").await;
    let next = enqueue(&client, client.lock("a").ttl(LONG_TTL), "a", 1).await;
    guard.release().await.unwrap();
    assert_eq!(other.lock_in("a").await, None, "the lock was handed over");
    other.end("ROLLBACK").await;
    granted(next).await.release().await.unwrap();
    assert!(other.lock_in("a").await > Some(second));
    other.end("COMMIT").await;
    let reader = hold(&client.lock("a").ttl(LONG_TTL).shared()).await;
    assert_eq!(other.lock_in("a").await, None, "a reader has it");
    other.end("ROLLBACK").await;
    reader.release().await.unwrap();
    assert!(client.list("", Page::new(10)).await.unwrap().locks.is_empty());
}

#[tokio::test]
async fn a_waiter_is_granted_after_a_rollback() {
    let (bench, client) = fresh().await;
    for name in ["used", "fresh"] {
        if name == "used" {
            hold(&client.lock(name).ttl(LONG_TTL)).await.release().await.unwrap();
        }
        let mut transaction = Transaction::begin(&bench).await;
        assert!(transaction.lock_in(name).await.is_some());
        let waiter = spawn_waiter(client.lock(name).ttl(LONG_TTL));
        until_row_is_awaited(&bench).await;
        assert!(!waiter.is_finished());
        transaction.end("ROLLBACK").await;
        let guard = granted(waiter).await;
        assert_eq!(client.inspect(name).await.unwrap().holders.len(), 1, "{name}");
        guard.release().await.unwrap();
    }
    assert_eq!(bench.try_sql("SELECT COUNT(*) FROM {locks}").await.unwrap(), "0");
}

/// Waits until a statement of the namespace waits for a row.
async fn until_row_is_awaited(bench: &MariadbBench) {
    let sql = format!(
        "SELECT COUNT(*) FROM information_schema.INNODB_TRX WHERE trx_state = 'LOCK WAIT' AND trx_query LIKE '%{}%'",
        bench.namespace()
    );
    wait::until("a statement waits", async || bench.try_sql(&sql).await.unwrap() != "0").await;
}

/// A connection that breaks ends its transaction, and so its locks.
#[tokio::test]
async fn the_lock_of_a_broken_connection_is_free() {
    let (bench, client) = fresh().await;
    let mut transaction = Transaction::begin(&bench).await;
    assert!(transaction.lock_in("a").await.is_some());
    assert!(client.lock("a").ttl(LONG_TTL).try_acquire().await.unwrap().is_none());
    bench.try_sql(&format!("KILL {}", transaction.driver.id())).await.unwrap();
    hold(&client.lock("a").ttl(LONG_TTL)).await.release().await.unwrap();
}

/// A transaction that commits leaves the row of the name, which a client removes.
#[tokio::test]
async fn rows_of_transactions_are_swept() {
    let (bench, client) = fresh().await;
    let mut transaction = Transaction::begin(&bench).await;
    for number in 0..200 {
        assert!(transaction.lock_in(&format!("once/{number}")).await.is_some());
    }
    transaction.end("COMMIT").await;
    let removed = client.sweep().await.unwrap().expect("there is something to sweep");
    assert!(removed <= 200, "{removed}");
    assert_eq!(bench.try_sql("SELECT COUNT(*) FROM {locks}").await.unwrap(), "0");
}

/// A transaction that has locks for long delays no other lock, and no renewal, not even of the client that waits for them.
#[tokio::test]
async fn a_long_transaction_delays_no_other_lock() {
    let (bench, client) = fresh().await;
    let kept = hold(&client.lock("kept").ttl(Duration::from_secs(6))).await;
    let mut transaction = Transaction::begin(&bench).await;
    for number in 0..5 {
        assert!(transaction.lock_in(&format!("held/{number}")).await.is_some());
    }
    let clock = Clock::system();
    for round in 0..3 {
        let tries: Vec<_> =
            (0..5).map(|number| client.lock(format!("held/{number}")).ttl(LONG_TTL)).collect();
        let tries = futures_util::future::join_all(tries.iter().map(Lock::try_acquire));
        let others: Vec<String> = (0..20).map(|number| format!("other/{round}/{number}")).collect();
        let turns = others.iter().map(async |name| {
            let sent = clock.now();
            hold(&client.lock(name).ttl(LONG_TTL)).await.release().await.unwrap();
            clock.now().since(sent)
        });
        let turns = futures_util::future::join_all(turns);
        let (tries, times) = tokio::join!(tries, turns);
        for busy in tries {
            assert!(busy.expect("a try of a busy lock succeeds").is_none());
        }
        let longest = times.into_iter().max().unwrap();
        println!("others took {longest:?} in round {round}");
        assert!(longest < AT_ONCE, "others took {longest:?} in round {round}");
    }
    let waiters: Vec<_> =
        (0..5).map(|number| spawn_waiter(client.lock(format!("held/{number}")).ttl(LONG_TTL))).collect();
    until_renewed(&kept).await;
    until_renewed(&kept).await;
    assert!(waiters.iter().all(|waiter| !waiter.is_finished()));
    transaction.end("COMMIT").await;
    for waiter in waiters {
        granted(waiter).await.release().await.unwrap();
    }
    assert!(kept.is_valid());
}

/// Scenario 19: the time, and what is held, are read when the lock is asked for, not when the transaction began.
#[tokio::test]
async fn an_old_transaction_reads_the_present_state() {
    let (bench, client) = fresh().await;
    let mut old = Transaction::begin(&bench).await;
    old.run("SELECT NOW()").await;
    old.run(&bench.with_tables("SELECT * FROM {holders}")).await;
    let guard = hold(&client.lock("a").ttl(LONG_TTL)).await;
    assert_eq!(old.lock_in("a").await, None);
    old.end("ROLLBACK").await;
    old.run(&bench.with_tables("SELECT * FROM {holders}")).await;
    // The lease of a client that is gone ends while the transaction is open.
    let dead = bench.client().await;
    let expiring = hold(&dead.lock("b").ttl(bench.ttl())).await;
    bench.wire().cut();
    wait::until("the lease has expired", async || client.inspect("b").await.unwrap().is_idle()).await;
    assert!(old.lock_in("b").await > Some(expiring.token().get()));
    old.end("COMMIT").await;
    guard.release().await.unwrap();
}

#[tokio::test]
async fn hostile_names() {
    let (bench, client) = fresh().await;
    let long = "x".repeat(512);
    let names = ["a'b", "a\"; DROP TABLE x", "a\\b", "a%_", "?", "ß\u{301}", "A", "a", " ", "a ", &long];
    let mut transaction = Transaction::begin(&bench).await;
    for name in names {
        assert!(transaction.lock_in(name).await.is_some(), "{name}");
    }
    let locks = names.map(|name| client.lock(name).ttl(LONG_TTL));
    for acquired in futures_util::future::join_all(locks.iter().map(Lock::try_acquire)).await {
        assert!(acquired.unwrap().is_none());
    }
    transaction.end("COMMIT").await;
    for lock in locks {
        hold(&lock).await.release().await.unwrap();
    }
}
