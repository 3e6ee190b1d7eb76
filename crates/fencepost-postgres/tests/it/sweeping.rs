//! What is stored is bounded: expired rows and unused names are removed.

use fencepost_core::Client;
use fencepost_testkit::databases::{dead_tickets, sweeping};
use fencepost_testkit::servers::postgres::shared;
use fencepost_testkit::{StoredCounts, TestBench, wait};
use futures_util::{StreamExt, stream};

use crate::actions::{LONG_TTL, bench_on, connect, hold};
use crate::bench::PostgresBench;

/// Returns the first number that a query returns; `@.` stands for the schema.
async fn number(bench: &PostgresBench, sql: &str) -> i64 {
    let sql = sql.replace("@.", &format!("{}.", bench.namespace()));
    bench.driver().await.query_one(&sql, &[]).await.expect("it succeeds").get(0)
}

async fn turn(client: &Client, name: &str) {
    hold(&client.lock(name).ttl(LONG_TTL)).await.release().await.expect("it is held");
}

/// Scenario 67: names that are used once leave a bounded number of rows, whatever the number of names. A row is removed a second
/// after its last use, and turns of one other lock remove all that is left.
#[tokio::test]
async fn one_off_names_are_removed() {
    const WAVE: usize = 2_500;
    let bench = bench_on(shared());
    let client = connect(&bench).await;
    let waves = if std::env::var_os("FENCEPOST_FULL").is_some() { 400 } else { 8 };
    let mut most = 0;
    for wave in 0..waves {
        let names = stream::iter(0..WAVE).map(|number| {
            let client = client.clone();
            async move { turn(&client, &format!("job/{wave}/{number}")).await }
        });
        names.buffer_unordered(128).for_each(async |()| {}).await;
        most = most.max(number(&bench, "SELECT count(*) FROM @.locks").await);
    }
    wait::until("the rows of unused names are removed", async || {
        for _ in 0..50 {
            turn(&client, "busy").await;
        }
        number(&bench, "SELECT count(*) FROM @.locks").await < 100
    })
    .await;
    // Those of the last second, and what the sweep has not reached yet: 21,000 of 1,000,000 on two cores.
    assert!(most < 50_000, "{most} rows");
    assert!(client.locks("").next().await.unwrap().is_none());
}

/// A client dies with holders, tickets, cells and tombstones. The operations of others remove them after a ttl.
#[tokio::test]
async fn what_a_dead_client_leaves_is_removed() {
    let bench = PostgresBench::behind_a_wire(shared());
    let tombstone = format!(
        "INSERT INTO {}.tombstones VALUES (gen_random_uuid(), clock_timestamp() + interval '1 s')",
        bench.namespace()
    );
    let names = "SELECT count(*) FROM @.locks WHERE name <> 'busy'";
    let left = StoredCounts { cells: 1, ..StoredCounts::default() };
    sweeping::what_a_dead_client_leaves_is_removed(
        &bench,
        async || bench.driver().await.batch_execute(&tombstone).await.unwrap(),
        async || bench.peek().await == left && number(&bench, names).await == 1,
    )
    .await;
}

/// The turns of a busy lock update one row in place: the table does not grow.
#[tokio::test]
async fn a_busy_lock_does_not_make_its_table_grow() {
    let bench = bench_on(shared());
    let (client, other) = (connect(&bench).await, connect(&bench).await);
    turn(&client, "busy").await;
    let turns = 1500;
    tokio::join!(
        async {
            for _ in 0..turns {
                turn(&client, "busy").await;
            }
        },
        async {
            for _ in 0..turns {
                turn(&other, "busy").await;
            }
        },
    );
    let size = "SELECT pg_relation_size('@.locks') + pg_indexes_size('@.locks')";
    let tickets = "SELECT pg_total_relation_size('@.tickets')";
    let dead =
        "SELECT n_dead_tup FROM pg_stat_user_tables WHERE schemaname || '.' = '@.' AND relname = 'locks'";
    let hot = "SELECT 100 * n_tup_hot_upd / greatest(n_tup_upd, 1) FROM pg_stat_user_tables \
        WHERE schemaname || '.' = '@.' AND relname = 'locks'";
    wait::until("the statistics are written", async || number(&bench, hot).await > 0).await;
    println!(
        "{} turns: locks {} bytes with {} dead rows, {} % of updates in place; tickets {} bytes",
        2 * turns,
        number(&bench, size).await,
        number(&bench, dead).await,
        number(&bench, hot).await,
        number(&bench, tickets).await,
    );
    // Old snapshots of other tests keep dead rows.
    assert!(number(&bench, size).await < 4 * 1024 * 1024);
    assert!(number(&bench, hot).await > 90);
    assert!(number(&bench, tickets).await < 8 * 1024 * 1024);
}

/// Scenario 64: a client died with 25,000 tickets, which have not expired yet.
#[tokio::test]
async fn a_waiter_is_granted_behind_tickets_of_a_dead_client() {
    dead_tickets::a_waiter_is_granted_behind_tickets_of_a_dead_client(&PostgresBench::plain()).await;
}

/// Scenario 64: 25,000 tickets have expired, and are still stored.
#[tokio::test]
async fn a_waiter_is_granted_behind_expired_tickets() {
    dead_tickets::a_waiter_is_granted_behind_expired_tickets(&PostgresBench::plain()).await;
}
