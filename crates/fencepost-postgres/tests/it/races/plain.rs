//! Flights of plain operations, which lock no row before they update it.

use fencepost_testkit::servers::postgres::shared;
use fencepost_testkit::wait;
use tokio::task::JoinHandle;
use tokio_postgres::Client as Driver;

use super::{ACQUIRE_OR_WAIT, GRANTED, PATIENT, RELEASED, Stage, WAITING};
use crate::bench::{PostgresBench, drive};

/// The statement of a flight with one operation.
const SINGLE: &str = include_str!("../../../src/lease/single.sql");

pub(super) const RENEW: i32 = 5;
pub(super) const RELEASE: i32 = 6;
pub(super) const RENEWED: i32 = 2;

/// The id of a client whose sessions are its own.
pub(super) const DIRECT: i64 = 1;
/// The id of a client behind a pooler.
pub(super) const POOLED: i64 = -1;

/// An operation of one owner on an exclusive lock, with the token that it holds.
#[derive(Clone, Copy)]
pub(super) struct Plain(pub(super) i32, pub(super) &'static str, pub(super) i32, pub(super) i64);

/// The number, the code and the token of a reply.
pub(super) type Reply = (i32, i32, Option<i64>);

impl Stage {
    /// Returns the statement of a flight with these operations: the statement for one operation, or the call of the function.
    pub(super) fn plain(&self, me: i64, ops: &[Plain]) -> String {
        let list = |item: fn(&Plain) -> String| {
            format!("'{{{}}}'", ops.iter().map(item).collect::<Vec<_>>().join(","))
        };
        let mut names: Vec<_> = ops.iter().map(|op| op.1).collect();
        names.sort_unstable();
        let new = ops.iter().filter(|op| op.0 < RENEW).map(|op| op.1).collect::<Vec<_>>();
        let arguments = [
            format!("{me}::bigint"),
            PATIENT.to_string(),
            format!("'{{{}}}'::text[]", names.join(",")),
            format!("'{{{}}}'::text[]", new.join(",")),
            list(|op| op.0.to_string()) + "::integer[]",
            list(|op| if op.0 < RENEW { "5" } else { "1" }.to_owned()) + "::integer[]",
            list(|op| op.1.to_owned()) + "::text[]",
            list(|_| "0".to_owned()) + "::text[]",
            list(|_| "f".to_owned()) + "::boolean[]",
            list(|op| format!("00000000-0000-0000-0000-{:012}", op.2)) + "::uuid[]",
            list(|op| op.3.to_string()) + "::bigint[]",
            list(|_| "120000".to_owned()) + "::bigint[]",
            list(|_| "label".to_owned()) + "::text[]",
            list(|_| "meta".to_owned()) + "::text[]",
            list(|_| "NULL".to_owned()) + "::bytea[]",
        ];
        if ops.len() > 1 {
            return self.sql(&format!("SELECT op, code, token FROM @.flight({})", arguments.join(", ")));
        }
        let numbered = arguments.iter().enumerate().rev();
        let single =
            numbered.fold(SINGLE.to_owned(), |sql, (at, value)| sql.replace(&format!("${}", at + 1), value));
        single.replace("@schema@.", &self.sql("@."))
    }

    /// Executes a flight, and returns its replies in the order of the operations.
    pub(super) async fn replies(&self, ops: &[Plain]) -> Vec<Reply> {
        replies(&self.control, &self.plain(DIRECT, ops)).await
    }

    /// Returns a session with the settings of flights, which waits for rows for ever.
    async fn settled_session(&self) -> Driver {
        let driver = self.session().await;
        let settings = self.sql("SELECT @.use_settings(false, 250); SET lock_timeout = 0");
        driver.batch_execute(&settings).await.expect("they can be set");
        driver
    }

    /// Starts a flight in such a session, and waits until it waits for a row.
    async fn start_plain(&self, ops: &[Plain]) -> (i32, JoinHandle<Vec<Reply>>) {
        let driver = self.settled_session().await;
        let pid = driver.query_one("SELECT pg_backend_pid()", &[]).await.expect("it has one").get(0);
        let sql = self.plain(DIRECT, ops);
        let flight = (pid, tokio::spawn(async move { replies(&driver, &sql).await }));
        self.until_waits(&flight, "Lock").await;
        assert!(!flight.1.is_finished(), "it waits for no row");
        flight
    }

    /// Creates the rows of free locks.
    pub(super) async fn create(&self, names: &[&str]) {
        for name in names {
            let row = format!(
                "INSERT INTO @.locks (name, token, expires_at) VALUES ('{name}', 0, clock_timestamp())"
            );
            self.execute(&row).await;
        }
    }

    /// Begins a transaction that has locked the row of this lock.
    async fn locking(&self, name: &str) -> Driver {
        let driver = self.session().await;
        let lock = format!("BEGIN; SELECT FROM @.locks WHERE name = '{name}' FOR NO KEY UPDATE");
        driver.batch_execute(&self.sql(&lock)).await.expect("it can be locked");
        driver
    }

    /// Returns the names of the rows that no transaction has locked.
    pub(super) async fn unlocked(&self) -> Vec<String> {
        let sql = self.sql("SELECT name FROM @.locks FOR NO KEY UPDATE SKIP LOCKED");
        let rows = self.control.query(&sql, &[]).await.expect("it can be read");
        rows.iter().map(|row| row.get(0)).collect()
    }

    /// Returns the first column of the first row.
    pub(super) async fn value<T: for<'a> tokio_postgres::types::FromSql<'a>>(&self, sql: &str) -> T {
        self.control.query_one(&self.sql(sql), &[]).await.expect("it can be read").get(0)
    }
}

pub(super) async fn replies(driver: &Driver, sql: &str) -> Vec<Reply> {
    let rows = driver.query(sql, &[]).await.expect("the flight succeeds");
    let mut replies: Vec<Reply> = rows.iter().map(|row| (row.get(0), row.get(1), row.get(2))).collect();
    replies.sort_unstable();
    replies
}

async fn ended(flight: (i32, JoinHandle<Vec<Reply>>)) -> Vec<Reply> {
    wait::within_timeout("it is answered", flight.1).await.unwrap()
}

/// A transaction of another program gets its token after a flight has read the clock, and is rolled back: its token is forgotten,
/// but may have been used.
#[tokio::test]
async fn a_flight_that_has_waited_for_a_rollback_gets_a_larger_token() {
    let ops = [Plain(ACQUIRE_OR_WAIT, "b", 1, 0), Plain(ACQUIRE_OR_WAIT, "a", 2, 0)];
    for ops in [&ops[..1], &ops[..]] {
        let stage = Stage::new().await;
        stage.create(&["a", "b"]).await;
        let transaction = stage.locking("b").await;
        let flight = stage.start_plain(ops).await;
        let lock_in = stage.sql("SELECT @.lock_in('b')");
        let forgotten: i64 = transaction.query_one(&lock_in, &[]).await.unwrap().get(0);
        transaction.batch_execute("ROLLBACK").await.unwrap();
        let replies = ended(flight).await;
        assert_eq!(replies.len(), ops.len());
        assert!(replies.iter().all(|reply| reply.1 == GRANTED), "{replies:?}");
        assert!(replies[0].2 > Some(forgotten), "{replies:?} after {forgotten}");
        let stored: i64 = stage.value("SELECT token FROM @.locks WHERE name = 'b'").await;
        assert_eq!(replies[0].2, Some(stored));
    }
}

/// A renewal that was delayed after it has read the clock does not shorten the lease that a later one has extended.
#[tokio::test]
async fn a_late_renewal_does_not_shorten_the_lease() {
    let stage = Stage::new().await;
    stage.create(&["a", "b"]).await;
    let acquires = [Plain(ACQUIRE_OR_WAIT, "a", 1, 0), Plain(ACQUIRE_OR_WAIT, "b", 2, 0)];
    let tokens: Vec<i64> = stage.replies(&acquires).await.iter().filter_map(|reply| reply.2).collect();
    let renewals = [Plain(RENEW, "a", 1, tokens[0]), Plain(RENEW, "b", 2, tokens[1])];
    for ops in [&renewals[..1], &renewals[..]] {
        let earlier = stage.locking("a").await;
        let late = stage.start_plain(ops).await;
        assert_eq!(replies(&earlier, &stage.plain(DIRECT, ops)).await[0].1, RENEWED);
        let extended = stage.sql("CREATE TABLE @.extended AS SELECT name, expires_at FROM @.locks; COMMIT");
        earlier.batch_execute(&extended).await.unwrap();
        assert!(ended(late).await.iter().all(|reply| reply.1 == RENEWED));
        let shorter = "SELECT count(*) FROM @.locks AS l JOIN @.extended AS e USING (name) WHERE l.expires_at < e.expires_at";
        assert_eq!(stage.value::<i64>(shorter).await, 0, "of {}", ops.len());
        stage.execute("DROP TABLE @.extended").await;
    }
}

/// While a flight waits for a row it has locked none whose name follows, or two flights would wait for each other.
#[tokio::test]
async fn rows_are_locked_in_the_order_of_their_names() {
    let stage = Stage::new().await;
    stage.create(&["a", "b"]).await;
    // Not plain, as with a waiter.
    stage.execute("UPDATE @.locks SET is_plain = false WHERE name = 'a'").await;
    let first = stage.locking("a").await;
    let flight =
        stage.start_plain(&[Plain(ACQUIRE_OR_WAIT, "b", 1, 0), Plain(ACQUIRE_OR_WAIT, "a", 2, 0)]).await;
    assert_eq!(stage.unlocked().await, ["b"]);
    first.batch_execute("COMMIT").await.unwrap();
    assert!(ended(flight).await.iter().all(|reply| reply.1 == GRANTED));
}

/// The order is that of the bytes, whatever the collation of the database is.
#[tokio::test]
async fn the_collation_of_the_database_does_not_matter() {
    let database = format!("sorted_{:016x}", rand::random::<u64>());
    shared().psql(&format!(
        "CREATE DATABASE {database} TEMPLATE template0 ENCODING 'UTF8' LOCALE_PROVIDER icu ICU_LOCALE 'en-US'"
    ));
    let url = shared().url(&database);
    let bench = PostgresBench::at(&url, "", &url);
    fencepost_postgres::connect(bench.url()).await.unwrap().close().await;
    let stage = Stage { control: drive(bench.direct()).await, bench };
    assert!(stage.value::<bool>("SELECT 'a' < 'B'").await);
    stage.create(&["a", "B"]).await;
    let first = stage.locking("B").await;
    let flight =
        stage.start_plain(&[Plain(ACQUIRE_OR_WAIT, "a", 1, 0), Plain(ACQUIRE_OR_WAIT, "B", 2, 0)]).await;
    assert_eq!(stage.unlocked().await, ["a"]);
    first.batch_execute("COMMIT").await.unwrap();
    assert!(ended(flight).await.iter().all(|reply| reply.1 == GRANTED));
}

/// Operations of which some concern more than their rows are all executed, once.
#[tokio::test]
async fn a_flight_with_other_than_plain_operations_is_complete() {
    let stage = Stage::new().await;
    stage.create(&["a", "b", "c"]).await;
    let acquires = [
        Plain(ACQUIRE_OR_WAIT, "a", 1, 0),
        Plain(ACQUIRE_OR_WAIT, "b", 2, 0),
        Plain(ACQUIRE_OR_WAIT, "c", 3, 0),
    ];
    let tokens: Vec<i64> = stage.replies(&acquires).await.iter().filter_map(|reply| reply.2).collect();
    assert_eq!(stage.replies(&[Plain(ACQUIRE_OR_WAIT, "b", 4, 0)]).await, [(1, WAITING, None)]);
    let replies = stage
        .replies(&[
            Plain(RELEASE, "a", 1, tokens[0]),
            Plain(RELEASE, "b", 2, tokens[1]),
            Plain(RENEW, "c", 3, tokens[2]),
            Plain(ACQUIRE_OR_WAIT, "new", 5, 0),
        ])
        .await;
    let replies: Vec<_> = replies.into_iter().filter(|reply| reply.0 > 0).collect();
    let codes: Vec<_> = replies.iter().map(|reply| (reply.0, reply.1)).collect();
    assert_eq!(codes, [(1, RELEASED), (2, RELEASED), (3, RENEWED), (4, GRANTED)]);
    let holders = "SELECT string_agg(name || right(owner::text, 1), ' ' ORDER BY name) FROM @.locks WHERE owner IS NOT NULL";
    assert_eq!(stage.value::<String>(holders).await, "b4 c3 new5");
    assert!(stage.value::<i64>("SELECT token FROM @.locks WHERE name = 'b'").await > tokens[1]);
    assert_eq!(stage.value::<i64>("SELECT token FROM @.locks WHERE name = 'c'").await, tokens[2]);
    let stored: i64 = stage.value("SELECT token FROM @.locks WHERE name = 'new'").await;
    assert_eq!(replies[3].2, Some(stored));
    assert_eq!(stage.value::<i64>("SELECT count(*) FROM @.tickets").await, 0);
}

/// Operations of which one turns out, after a wait for its row, to concern more than the row are all executed, once.
#[tokio::test]
async fn a_flight_whose_row_has_got_a_waiter_meanwhile_is_complete() {
    let stage = Stage::new().await;
    stage.create(&["a", "b", "c"]).await;
    let held = stage.replies(&[Plain(ACQUIRE_OR_WAIT, "b", 2, 0)]).await[0].2.expect("it is free");
    let joining = stage.locking("b").await;
    let ops =
        [Plain(ACQUIRE_OR_WAIT, "a", 1, 0), Plain(RELEASE, "b", 2, held), Plain(ACQUIRE_OR_WAIT, "c", 3, 0)];
    let flight = stage.start_plain(&ops).await;
    let first: i64 = stage.value("SELECT token FROM @.locks WHERE name = 'a'").await;
    let wait = stage.plain(POOLED, &[Plain(ACQUIRE_OR_WAIT, "b", 4, 0)]);
    assert_eq!(replies(&joining, &wait).await, [(1, WAITING, None)]);
    joining.batch_execute("COMMIT").await.unwrap();
    let replies = ended(flight).await;
    let codes: Vec<_> = replies.iter().map(|reply| (reply.0, reply.1)).collect();
    assert_eq!(codes, [(1, GRANTED), (2, RELEASED), (3, GRANTED)]);
    assert!(replies[0].2 > Some(first));
    let holders = "SELECT string_agg(name || right(owner::text, 1), ' ' ORDER BY name) FROM @.locks WHERE owner IS NOT NULL";
    assert_eq!(stage.value::<String>(holders).await, "a1 b4 c3");
    for (name, reply) in [("a", 0), ("c", 2)] {
        let stored: i64 = stage.value(&format!("SELECT token FROM @.locks WHERE name = '{name}'")).await;
        assert_eq!(replies[reply].2, Some(stored), "{name}");
    }
    assert!(stage.value::<i64>("SELECT token FROM @.locks WHERE name = 'b'").await > held);
}

/// The settings of a flight stay in a session of its own client, and only there.
#[tokio::test]
async fn settings_stay_in_sessions_that_are_not_shared() {
    let stage = Stage::new().await;
    let settings = "SELECT string_agg(current_setting(s, true), ' ') FROM unnest(ARRAY['lock_timeout', 'plan_cache_mode', \
        'jit', 'enable_seqscan', 'enable_bitmapscan', 'enable_hashjoin', 'enable_mergejoin', 'synchronous_commit']) AS s";
    let used = "250ms force_generic_plan off off off off off on";
    let read = async |driver: &Driver| driver.query_one(settings, &[]).await.unwrap().get::<_, String>(0);
    for ops in [
        &[Plain(ACQUIRE_OR_WAIT, "a", 1, 0)][..],
        &[Plain(ACQUIRE_OR_WAIT, "b", 2, 0), Plain(ACQUIRE_OR_WAIT, "c", 3, 0)],
        // It waits, so that the commit is not synchronous.
        &[Plain(ACQUIRE_OR_WAIT, "a", 4, 0)],
    ] {
        let (shared_one, own) = (stage.session().await, stage.session().await);
        let defaults = read(&shared_one).await;
        assert_ne!(defaults, used);
        replies(&shared_one, &stage.plain(POOLED, ops)).await;
        assert_eq!(read(&shared_one).await, defaults);
        replies(&own, &stage.plain(DIRECT, ops)).await;
        assert_eq!(read(&own).await, used);
    }
}
