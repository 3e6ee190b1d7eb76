//! Locks in the users' own transactions: `lock_in`, and the row itself.

mod rows;

use std::pin::pin;
use std::time::Duration;

use fencepost_core::clock::Clock;
use fencepost_core::{Client, Lock};
use fencepost_testkit::TestBench;
use fencepost_testkit::servers::postgres::shared;
use fencepost_testkit::wait;

use crate::actions::{
    LONG_TTL, Transaction, bench_on, connect, enqueue, granted, hold, spawn_waiter, until_renewed,
    until_tickets,
};
use crate::bench::{DATABASE, PostgresBench};

/// Ten times what flights wait for locked rows before they go on without them.
const AT_ONCE: Duration = Duration::from_millis(7_500);

async fn fresh() -> (PostgresBench, Client) {
    let bench = bench_on(shared());
    let client = connect(&bench).await;
    (bench, client)
}

/// Acquires and releases a lock.
async fn turn(client: &Client, name: &str) -> u64 {
    let guard = hold(&client.lock(name).ttl(LONG_TTL)).await;
    let token = guard.token().get();
    guard.release().await.expect("it is held");
    token
}

/// While another transaction stores the token of another lock, a call that does not wait for its lock waits for that one.
#[tokio::test]
async fn a_free_lock_is_acquired_while_another_token_is_stored() {
    const KEY: &str = "hashtextextended('fencepost lock_in ' || $1, 0)";
    let (bench, _client) = fresh().await;
    let (storing, transaction) = (Transaction::begin(&bench).await, Transaction::begin(&bench).await);
    let lock = format!("SELECT 1::bigint FROM pg_advisory_xact_lock({KEY})");
    storing.value(&lock, bench.namespace()).await;
    let acquiring = tokio::spawn(async move { transaction.lock_in("a", 0).await });
    let waiting = format!(
        "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND NOT granted \
         AND classid::bigint << 32 | objid::bigint = {KEY}"
    );
    let driver = bench.driver().await;
    wait::until("the other token is awaited", async || {
        assert!(!acquiring.is_finished(), "it has given up");
        driver.query_one(&waiting, &[&bench.namespace()]).await.unwrap().get::<_, i64>(0) == 1
    })
    .await;
    storing.end("ROLLBACK").await;
    assert!(acquiring.await.unwrap().is_some());
}

/// Scenario 47: tokens are granted under the row lock, so that they rise in the order of the grants.
#[tokio::test]
async fn transactions_and_leases_exclude_each_other_with_rising_tokens() {
    let (bench, client) = fresh().await;
    let guard = hold(&client.lock("a").ttl(LONG_TTL)).await;
    let transaction = Transaction::begin(&bench).await;
    assert_eq!(transaction.lock_in("a", 0).await, None);
    assert_eq!(transaction.lock_in("a", 50).await, None);
    let first = guard.token().get();
    guard.release().await.unwrap();
    let second = transaction.lock_in("a", 0).await.expect("it is free, and the transaction goes on");
    assert!(second > first);
    assert!(client.lock("a").ttl(LONG_TTL).try_acquire().await.unwrap().is_none());
    let other = Transaction::begin(&bench).await;
    assert_eq!(other.lock_in("a", 50).await, None);
    let waiter = spawn_waiter(client.lock("a").ttl(LONG_TTL));
    until_tickets(&bench, 1).await;
    transaction.end("COMMIT").await;
    let guard = granted(waiter).await;
    assert!(guard.token().get() > second);
    assert_eq!(other.lock_in("a", 0).await, None);
    guard.release().await.unwrap();
    assert!(other.lock_in("a", 1000).await > Some(second));
}

/// Two transactions take two locks in opposite orders. One of them is refused, and its transaction goes on; the other is granted the
/// lock when that one ends.
#[tokio::test]
async fn a_deadlock_of_transactions_is_a_lock_that_cannot_be_acquired() {
    const WAIT_MS: i32 = 20_000;
    let (bench, client) = fresh().await;
    let (one, two) = (Transaction::begin(&bench).await, Transaction::begin(&bench).await);
    assert!(one.lock_in("a", 0).await.is_some());
    assert!(two.lock_in("b", 0).await.is_some());
    let (mut first, mut second) = (pin!(one.lock_in("b", WAIT_MS)), pin!(two.lock_in("a", WAIT_MS)));
    let granted = tokio::select! {
        refused = &mut first => {
            assert_eq!(refused, None);
            assert!(one.lock_in("c", 0).await.is_some(), "the transaction goes on");
            one.end("ROLLBACK").await;
            second.await
        }
        refused = &mut second => {
            assert_eq!(refused, None);
            assert!(two.lock_in("c", 0).await.is_some(), "the transaction goes on");
            two.end("ROLLBACK").await;
            first.await
        }
    };
    assert!(granted.is_some());
    turn(&client, "c").await;
}

#[tokio::test]
async fn a_waiter_is_granted_after_a_rollback() {
    let (bench, client) = fresh().await;
    for (name, is_used) in [("used", true), ("fresh", false)] {
        if is_used {
            turn(&client, name).await;
        }
        let transaction = Transaction::begin(&bench).await;
        assert!(transaction.lock_in(name, 0).await.is_some());
        let waiter = spawn_waiter(client.lock(name).ttl(LONG_TTL));
        until_tickets(&bench, 1).await;
        transaction.end("ROLLBACK").await;
        let guard = granted(waiter).await;
        // It is stored, too.
        assert_eq!(client.inspect(name).await.unwrap().holders.len(), 1, "{name}");
        guard.release().await.unwrap();
    }
}

/// The waiters of a name whose first transaction is rolled back are not granted without a row.
#[tokio::test]
async fn waiters_of_a_name_without_a_row_do_not_both_hold_it() {
    let (bench, client) = fresh().await;
    let other = connect(&bench).await;
    let transaction = Transaction::begin(&bench).await;
    assert!(transaction.lock_in("a", 0).await.is_some());
    let waiters = [&client, &other].map(|client| spawn_waiter(client.lock("a").ttl(LONG_TTL)));
    until_tickets(&bench, 2).await;
    transaction.end("ROLLBACK").await;
    let mut tokens = Vec::new();
    let mut waiters = futures_util::future::select_all(waiters);
    loop {
        let (guard, _, left) = wait::within_timeout("one is granted", waiters).await;
        let guard = guard.unwrap().unwrap();
        assert_eq!(client.inspect("a").await.unwrap().holders.len(), 1);
        assert!(left.iter().all(|waiter| !waiter.is_finished()), "both hold it");
        tokens.push(guard.token());
        guard.release().await.unwrap();
        if left.is_empty() {
            break;
        }
        waiters = futures_util::future::select_all(left);
    }
    assert!(tokens.is_sorted());
}

#[tokio::test]
async fn a_rolled_back_transaction_leaves_nothing() {
    let (bench, client) = fresh().await;
    let transaction = Transaction::begin(&bench).await;
    let lost = transaction.lock_in("a", 0).await.expect("it is free");
    transaction.end("ROLLBACK").await;
    assert_eq!(transaction.value("SELECT count(*) FROM @.locks WHERE name = $1", "a").await, Some(0));
    assert!(client.locks("").next().await.unwrap().is_none());
    assert!(turn(&client, "a").await > lost);
    // A savepoint ends it, too.
    transaction.end("BEGIN; SAVEPOINT s").await;
    assert!(transaction.lock_in("a", 0).await.is_some());
    transaction.end("ROLLBACK TO s").await;
    turn(&client, "a").await;
    transaction.end("COMMIT").await;
}

#[tokio::test]
async fn a_transaction_waits_for_a_lease() {
    let (bench, client) = fresh().await;
    for is_released in [true, false] {
        let ttl = if is_released { LONG_TTL } else { Duration::from_millis(600) };
        let guard = hold(&client.lock("a").ttl(ttl)).await;
        let transaction = Transaction::begin(&bench).await;
        let waiting = tokio::spawn(async move { (transaction.lock_in("a", 20_000).await, transaction) });
        // The statement runs, and asks again and again.
        let driver = bench.driver().await;
        let sql = "SELECT count(*) FROM pg_stat_activity WHERE state = 'active' AND query LIKE '%lock_in%' AND \
            query LIKE '%' || $1 || '%' AND pid <> pg_backend_pid()";
        wait::until("the transaction waits", async || {
            driver.query_one(sql, &[&bench.namespace()]).await.unwrap().get::<_, i64>(0) == 1
        })
        .await;
        assert!(!waiting.is_finished());
        let token = guard.token().get();
        if is_released {
            guard.release().await.unwrap();
        } else {
            bench.steal(guard.name()).await;
        }
        let (granted, transaction) = wait::within_timeout("it is granted", waiting).await.unwrap();
        assert!(granted > Some(token));
        transaction.end("COMMIT").await;
    }
}

#[tokio::test]
async fn a_transaction_waits_for_another_one() {
    let (bench, _client) = fresh().await;
    for name in ["fresh", "fresh"] {
        let (first, second) = (Transaction::begin(&bench).await, Transaction::begin(&bench).await);
        let token = first.lock_in(name, 0).await;
        assert_eq!(second.lock_in(name, 20).await, None);
        let waiting = tokio::spawn(async move { second.lock_in("fresh", 20_000).await });
        first.end("COMMIT").await;
        assert!(wait::within_timeout("it is granted", waiting).await.unwrap() > token);
    }
}

#[tokio::test]
async fn several_locks_in_one_transaction() {
    let (bench, client) = fresh().await;
    let transaction = Transaction::begin(&bench).await;
    let first = transaction.lock_in("a", 0).await.unwrap();
    assert!(transaction.lock_in("b", 0).await.is_some());
    assert!(transaction.lock_in("a", 0).await.unwrap() > first);
    let waiter = spawn_waiter(client.lock_all(["a", "b"]).ttl(LONG_TTL));
    until_tickets(&bench, 2).await;
    // A lock that the transaction has already does not wait for those behind it.
    assert!(transaction.lock_in("a", 0).await.unwrap() > first);
    transaction.end("COMMIT").await;
    granted(waiter).await.release().await.unwrap();
}

#[tokio::test]
async fn psql_locks_in_its_transaction() {
    let (bench, client) = fresh().await;
    let namespace = bench.namespace();
    let script = format!(
        "BEGIN; SELECT {namespace}.lock_in('a'); SELECT {namespace}.lock_in('a', 10) IS NULL; COMMIT;"
    );
    let lines = shared().psql_in(DATABASE, &script);
    let (token, is_null) = lines.split_once('\n').expect("two rows");
    assert_eq!(is_null, "f");
    assert!(turn(&client, "a").await > token.parse().unwrap());
    let guard = hold(&client.lock("a").ttl(LONG_TTL)).await;
    let asked = format!("BEGIN; SELECT {namespace}.lock_in('a', 10) IS NULL; SELECT 'goes on'; COMMIT;");
    assert_eq!(shared().psql_in(DATABASE, &asked), "t\ngoes on");
    guard.release().await.unwrap();
}

#[tokio::test]
async fn hostile_and_invalid_names() {
    let (bench, client) = fresh().await;
    let long = "x".repeat(512);
    let names = ["a'b", "a\"; DROP SCHEMA x", "a\\b", "a%_", "$1", "ß\u{301}", " ", &long];
    let transaction = Transaction::begin(&bench).await;
    for name in names {
        assert!(transaction.lock_in(name, 0).await.is_some(), "{name}");
    }
    let locks = names.map(|name| client.lock(name).ttl(LONG_TTL));
    for acquired in futures_util::future::join_all(locks.iter().map(Lock::try_acquire)).await {
        assert!(acquired.unwrap().is_none());
    }
    let waiters = locks.map(spawn_waiter);
    until_tickets(&bench, 8).await;
    transaction.end("COMMIT").await;
    for waiter in waiters {
        granted(waiter).await.release().await.unwrap();
    }
    for name in [None, Some(""), Some("a\nb"), Some("a\u{85}b"), Some(&*"x".repeat(513))] {
        let transaction = Transaction::begin(&bench).await;
        let error = transaction.try_lock_in(name, 0).await.unwrap_err();
        assert_eq!(
            error.code().map(tokio_postgres::error::SqlState::code),
            Some("22023"),
            "{name:?}: {error:?}"
        );
    }
    let transaction = Transaction::begin(&bench).await;
    assert!(transaction.lock_in("a", -5).await.is_some());
    let sql = format!("SELECT \"{}\".lock_in('b', NULL) IS NOT NULL", bench.namespace());
    assert!(transaction.driver.query_one(&sql, &[]).await.unwrap().get::<_, bool>(0));
}

#[tokio::test]
async fn other_isolation_levels_are_refused() {
    let (bench, client) = fresh().await;
    for level in ["REPEATABLE READ", "SERIALIZABLE"] {
        let transaction = Transaction::begin_with(&bench, &format!("ISOLATION LEVEL {level}")).await;
        let error = transaction.try_lock_in(Some("a"), 0).await.unwrap_err();
        assert!(error.as_db_error().unwrap().message().contains("READ COMMITTED"), "{error:?}");
    }
    let transaction = Transaction::begin_with(&bench, "READ ONLY").await;
    assert_eq!(transaction.try_lock_in(Some("a"), 0).await.unwrap_err().code().unwrap().code(), "25006");
    turn(&client, "a").await;
}

/// A transaction that has locks for long delays no other lock, and no renewal, not even of the client that waits for them.
#[tokio::test]
async fn a_long_transaction_delays_no_other_lock() {
    let (bench, client) = fresh().await;
    turn(&client, "held/used").await;
    let kept = hold(&client.lock("kept").ttl(Duration::from_secs(9))).await;
    let transaction = Transaction::begin(&bench).await;
    assert!(transaction.lock_in("held/used", 0).await.is_some());
    // Rows that no other transaction sees yet.
    for number in 0..60 {
        assert!(transaction.lock_in(&format!("held/{number}"), 0).await.is_some());
    }
    let clock = Clock::system();
    for round in 0..3 {
        let names = (0..60).map(|number| format!("held/{number}")).chain(["held/used".into()]);
        let tries: Vec<_> = names.map(|name| client.lock(name).ttl(LONG_TTL)).collect();
        let tries = futures_util::future::join_all(tries.iter().map(Lock::try_acquire));
        let others: Vec<String> = (0..20).map(|number| format!("other/{round}/{number}")).collect();
        let turns = futures_util::future::join_all(others.iter().map(|name| async {
            let sent = clock.now();
            turn(&client, name).await;
            clock.now().since(sent)
        }));
        let (tries, times) = tokio::join!(tries, turns);
        for busy in tries {
            assert!(busy.expect("a try of a busy lock succeeds").is_none());
        }
        let longest = times.into_iter().max().unwrap();
        assert!(longest < AT_ONCE, "others took {longest:?} in round {round}");
    }
    let waiters: Vec<_> =
        (0..60).map(|number| spawn_waiter(client.lock(format!("held/{number}")).ttl(LONG_TTL))).collect();
    until_tickets(&bench, 60).await;
    until_renewed(&kept).await;
    until_renewed(&kept).await;
    transaction.end("COMMIT").await;
    for waiter in waiters {
        granted(waiter).await.release().await.unwrap();
    }
    assert!(kept.is_valid());
}

/// A waiter that a transaction has passed over, because it does not listen for a moment, can listen again at once.
#[tokio::test]
async fn a_transaction_does_not_keep_a_client_from_listening() {
    let bench = PostgresBench::plain();
    let (away, client) = (bench.client().await, connect(&bench.without_wire()).await);
    let guard = hold(&client.lock("a").ttl(LONG_TTL)).await;
    let waiter = enqueue(&client, away.lock("a").ttl(LONG_TTL), "a", 1).await;
    bench.cut().await;
    wait::until("one client listens", async || bench.listeners().await == Some(1)).await;
    guard.release().await.unwrap();
    let transaction = Transaction::begin(&bench).await;
    assert!(transaction.lock_in("a", 1000).await.is_some());
    bench.heal().await;
    wait::until("both listen", async || bench.listeners().await == Some(2)).await;
    transaction.end("COMMIT").await;
    granted(waiter).await.release().await.unwrap();
}

/// Scenario 19: the time is read when the lock is asked for, not when the transaction began.
#[tokio::test]
async fn an_old_transaction_reads_the_present_time() {
    let (bench, client) = fresh().await;
    let old = Transaction::begin(&bench).await;
    old.driver.batch_execute("SELECT now()").await.unwrap();
    let guard = hold(&client.lock("a").ttl(Duration::from_secs(1))).await;
    until_renewed(&guard).await;
    assert_eq!(old.lock_in("a", 0).await, None);
    let token = guard.token().get();
    bench.steal(guard.name()).await;
    let expired = "UPDATE @.locks SET owner = gen_random_uuid(), ttl_ms = 1000, token = token + 1, \
        expires_at = clock_timestamp() WHERE name = $1 RETURNING token";
    let other = Transaction::begin(&bench).await;
    other.value(expired, "a").await;
    other.end("COMMIT").await;
    // Not 0: a renewal of the holder may have locked the row.
    assert!(old.lock_in("a", 5_000).await > Some(token + 1), "the lease ended after the transaction began");
}
