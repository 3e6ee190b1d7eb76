//! Rows that the other program writes, and Fencepost's rows that it changes.

use std::time::Duration;

use fencepost_core::backend::{HolderState, Page};
use fencepost_core::{ErrorKind, LostReason};
use fencepost_testkit::{TestBench, suite, wait};

use super::bench::TableBench;

const LONG: Duration = Duration::from_secs(60);

/// The acquire of `ShedLock` with `usingDbTime()` (`PostgresSqlServerTimeStatementsSource`), for ten seconds; returns a row if it has
/// succeeded.
const SHEDLOCK_ACQUIRE: &str = "INSERT INTO @ (name, lock_until, locked_at, locked_by) VALUES ('a', \
    timezone('utc', CURRENT_TIMESTAMP) + interval '10 s', timezone('utc', CURRENT_TIMESTAMP), 'web1') \
    ON CONFLICT (name) DO UPDATE SET lock_until = timezone('utc', CURRENT_TIMESTAMP) + interval '10 s', \
    locked_at = timezone('utc', CURRENT_TIMESTAMP), locked_by = 'web1' \
    WHERE @.name = 'a' AND @.lock_until <= timezone('utc', CURRENT_TIMESTAMP) RETURNING locked_by";
/// Its release.
const SHEDLOCK_RELEASE: &str = "UPDATE @ SET lock_until = timezone('utc', CURRENT_TIMESTAMP) \
    WHERE name = 'a' AND locked_by = 'web1' RETURNING locked_by";
/// Its extension.
const SHEDLOCK_EXTEND: &str = "UPDATE @ SET lock_until = timezone('utc', CURRENT_TIMESTAMP) + interval '10 s' \
    WHERE name = 'a' AND locked_by = 'web1' AND lock_until > timezone('utc', CURRENT_TIMESTAMP) RETURNING locked_by";

#[test]
fn shedlock_and_fencepost_exclude_each_other() {
    suite::run(
        "shedlock_and_fencepost_exclude_each_other",
        TableBench::shedlock,
        async |bench: &TableBench| {
            let client = bench.client().await;
            let lock = client.lock("a").ttl(LONG);
            for _ in 0..3 {
                assert_eq!(bench.psql(SHEDLOCK_ACQUIRE), "web1");
                assert!(lock.try_acquire().await.unwrap().is_none());
                let state = client.inspect("a").await.unwrap();
                let holder = &state.holders[0];
                assert_eq!((&*holder.label, holder.token), ("web1 (not a Fencepost client)", None));
                assert!(holder.expires_in.is_some_and(|left| left > Duration::from_secs(5) && left < LONG));
                assert!(holder.held_for.is_some_and(|held_for| held_for < LONG));
                let waiter = tokio::spawn({
                    let lock = lock.clone();
                    async move { lock.acquire().await }
                });
                wait::until("the attempt waits", async || {
                    client.inspect("a").await.unwrap().waiter_count == 1
                })
                .await;
                assert_eq!(bench.psql(SHEDLOCK_RELEASE), "web1");
                let guard = wait::within_timeout("the waiter is granted", waiter).await.unwrap().unwrap();
                for statement in [SHEDLOCK_ACQUIRE, SHEDLOCK_RELEASE, SHEDLOCK_EXTEND] {
                    assert_eq!(bench.psql(statement), "", "{statement}");
                }
                assert!(guard.is_valid());
                guard.release().await.unwrap();
            }
            assert_eq!(bench.psql("SELECT count(*) FROM @"), "1", "the row is never deleted");
            client.close().await;
        },
    );
}

/// A job that was killed: its lease ends by the server's clock.
#[test]
fn a_foreign_lease_that_expires_frees_the_lock() {
    for (name, make, insert) in [
        (
            "shedlock",
            TableBench::shedlock as fn() -> TableBench,
            "INSERT INTO @ VALUES ('a', timezone('utc', now()) + interval '400 ms', timezone('utc', now()), 'web1')",
        ),
        (
            "table",
            TableBench::with_expiry,
            "INSERT INTO @ VALUES ('a', gen_random_uuid(), now() + interval '400 ms')",
        ),
    ] {
        suite::run(name, make, async move |bench: &TableBench| {
            let client = bench.client().await;
            bench.psql(insert);
            assert!(client.lock("a").try_acquire().await.unwrap().is_none());
            let lock = client.lock("a").ttl(LONG);
            let guard = wait::within_timeout("the foreign lease expires", lock.acquire()).await.unwrap();
            guard.release().await.unwrap();
            client.close().await;
        });
    }
}

#[test]
fn a_home_made_client_and_fencepost_exclude_each_other() {
    let name = "a_home_made_client_and_fencepost_exclude_each_other";
    suite::run(name, TableBench::with_expiry, async |bench: &TableBench| {
        let client = bench.client().await;
        let theirs = "6f9619ff-8b86-4011-b42d-00c04fc964ff";
        let insert = format!("INSERT INTO @ VALUES ('a', '{theirs}', now() + interval '1 h')");
        let acquire = format!("{insert} ON CONFLICT DO NOTHING RETURNING lock_name");
        for _ in 0..3 {
            assert_eq!(bench.psql(&acquire), "a");
            assert!(client.lock("a").try_acquire().await.unwrap().is_none());
            bench.psql(&format!("DELETE FROM @ WHERE lock_name = 'a' AND owner_id = '{theirs}'"));
            let guard = client.lock("a").ttl(LONG).try_acquire().await.unwrap().expect("it is free");
            assert_eq!(bench.psql(&acquire), "");
            let take = "UPDATE @ SET note = 'taken' WHERE lock_name = 'a' AND expires_at < now() RETURNING lock_name";
            assert_eq!(bench.psql(take), "");
            guard.release().await.unwrap();
            assert_eq!(bench.psql("SELECT count(*) FROM @"), "0");
        }
        client.close().await;
    });
}

/// A null, and infinity.
#[test]
fn a_foreign_lease_without_an_end_is_held_for_ever() {
    let name = "a_foreign_lease_without_an_end_is_held_for_ever";
    suite::run(name, TableBench::with_expiry, async |bench: &TableBench| {
        let client = bench.client().await;
        for end in ["NULL", "'infinity'"] {
            bench.psql(&format!("INSERT INTO @ VALUES ('a', gen_random_uuid(), {end})"));
            let state = client.inspect("a").await.unwrap();
            assert_eq!(state.holders[0].expires_in, Some(HolderState::NO_EXPIRY), "{end}");
            let error = client.lock("a").wait(Duration::from_millis(200)).acquire().await.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::WaitTimeout);
            bench.psql("DELETE FROM @");
        }
        client.close().await;
    });
}

/// Scenario 70: a foreign client overwrites the row without comparing. The holder notices at its next renewal, and the foreign row
/// stays.
#[test]
fn a_row_that_was_overwritten_is_not_renewed() {
    suite::run(
        "a_row_that_was_overwritten_is_not_renewed",
        TableBench::shedlock,
        async |bench: &TableBench| {
            let client = bench.client().await;
            let guard = client.lock("a").ttl(bench.ttl()).acquire().await.unwrap();
            bench.psql("UPDATE @ SET locked_by = 'web1'");
            assert_eq!(wait::within_timeout("the lock is lost", guard.lost()).await, LostReason::NotHeld);
            assert!(guard.release().await.is_err());
            assert_eq!(bench.psql("SELECT locked_by FROM @"), "web1");
            bench.psql("DELETE FROM @");
            client.close().await;
        },
    );
}

/// Without a token a foreign holder cannot be broken by mistake; a Fencepost holder of another process can.
#[test]
fn a_list_shows_foreign_holders_and_a_break_ends_ours() {
    suite::run("a_list_shows_foreign_holders", TableBench::shedlock, async |bench: &TableBench| {
        let (client, other) = (bench.client().await, bench.client().await);
        bench.psql(SHEDLOCK_ACQUIRE);
        let guard = other.lock("b").ttl(LONG).label("ours").acquire().await.unwrap();
        bench.psql(
            "INSERT INTO @ SELECT E'line\\nbreak', lock_until, locked_at, 'web1' FROM @ WHERE name = 'a'",
        );
        let page = client.list("", Page::new(1)).await.unwrap();
        assert_eq!((page.locks[0].name.as_str(), page.locks[0].holders[0].token), ("a", None));
        let page = client.list("", Page::new(10).after(page.next)).await.unwrap();
        let [b] = page.locks.as_slice() else { panic!("{page:?}") };
        assert_eq!((&*b.holders[0].label, b.holders[0].token), ("ours", Some(guard.token())));
        client.break_lock("b", guard.token()).await.unwrap();
        assert!(client.lock("b").try_acquire().await.unwrap().is_some());
        assert!(guard.release().await.is_err());
        bench.psql("DELETE FROM @");
        client.close().await;
        other.close().await;
    });
}

/// A transaction of the other program that keeps the row locked delays neither other names nor the client.
#[test]
fn a_row_that_a_transaction_has_locked_delays_no_other_name() {
    let name = "a_row_that_a_transaction_has_locked_delays_no_other_name";
    suite::run(name, TableBench::shedlock, async |bench: &TableBench| {
        let client = bench.client().await;
        client.lock("a").acquire().await.unwrap().release().await.unwrap();
        let driver =
            crate::bench::drive(&fencepost_testkit::servers::postgres::shared().url(crate::bench::DATABASE))
                .await;
        let table = format!("\"{}\"", bench.table);
        driver
            .batch_execute(&format!("BEGIN; SELECT FROM {table} WHERE name = 'a' FOR UPDATE"))
            .await
            .unwrap();
        assert!(client.lock("a").try_acquire().await.unwrap().is_none());
        let waiter = tokio::spawn({
            let lock = client.lock("a").ttl(LONG);
            async move { lock.acquire().await }
        });
        wait::until("the attempt waits", async || client.inspect("a").await.unwrap().waiter_count == 1).await;
        for _ in 0..20 {
            client.lock("b").acquire().await.unwrap().release().await.unwrap();
        }
        driver.batch_execute("COMMIT").await.unwrap();
        wait::within_timeout("the waiter is granted", waiter)
            .await
            .unwrap()
            .unwrap()
            .release()
            .await
            .unwrap();
        client.close().await;
    });
}
