//! Interleavings of flights that only happen by chance, one step after the other: flights are called in the server directly, and
//! paused where they matter.

mod plain;
mod set_back;

use fencepost_testkit::servers::postgres::{PostgresServer, shared};
use fencepost_testkit::wait;
use tokio::task::JoinHandle;
use tokio_postgres::Client as Driver;
use tokio_postgres::error::SqlState;

use crate::actions::{bench_on, connect};
use crate::bench::{PostgresBench, drive};

/// Longer than a test takes, in ms.
const PATIENT: i32 = 60_000;

const EXCLUSIVE: i32 = 0;
const SHARED: i32 = -1;

/// Kinds and replies of operations, as in `flight.sql`.
const ACQUIRE_OR_WAIT: i32 = 1;
const ACQUIRE_OR_RETURN: i32 = 2;
const CHECK: i32 = 3;
const LEAVE: i32 = 4;
const READ_CELL: i32 = 7;
const BREAK: i32 = 9;
const BUSY: i32 = 0;
const RELEASED: i32 = 1;
const LEFT: i32 = 4;
const GRANTED: i32 = 7;
const WAITING: i32 = 9;
const LOCKED: i32 = 13;

/// Pauses `create_rows` at its start in sessions with the setting `fencepost_test.pause`, as long as another session has that
/// advisory lock.
const PAUSING: &str = "ALTER FUNCTION @.create_rows(text[], boolean) RENAME TO create_rows_inner; \
    CREATE FUNCTION @.create_rows(new_names text[], skip boolean) RETURNS boolean LANGUAGE plpgsql AS $$ \
    DECLARE key text := current_setting('fencepost_test.pause', true); \
    BEGIN \
        IF key <> '' THEN \
            WHILE NOT pg_try_advisory_lock_shared(key::bigint) LOOP PERFORM pg_sleep(0.005); END LOOP; \
            PERFORM pg_advisory_unlock_shared(key::bigint); \
        END IF; \
        RETURN create_rows_inner(new_names, skip); \
    END $$;";

/// The process of a flight in the server, and the code and the number of its reply; `None` if it waited too long for a lock.
type Flight = (i32, JoinHandle<Option<(i32, Option<i64>)>>);

/// The namespace of one test.
struct Stage {
    bench: PostgresBench,
    control: Driver,
}

impl Stage {
    async fn new() -> Self {
        Self::on(shared()).await
    }

    async fn on(server: &PostgresServer) -> Self {
        let bench = bench_on(server);
        connect(&bench).await.close().await;
        Self { control: drive(bench.direct()).await, bench }
    }

    fn sql(&self, text: &str) -> String {
        text.replace("@.", &format!("\"{}\".", self.bench.namespace()))
    }

    async fn execute(&self, text: &str) {
        self.control.batch_execute(&self.sql(text)).await.expect("it succeeds");
    }

    async fn session(&self) -> Driver {
        drive(self.bench.direct()).await
    }

    /// Returns the call of a flight with one operation of this owner on the lock "a", which waits this long for its row, in ms.
    fn call(&self, kind: i32, mode: i32, owner: i32, lock_wait: i32) -> String {
        let class = match (kind, mode) {
            (ACQUIRE_OR_WAIT | ACQUIRE_OR_RETURN, EXCLUSIVE) => 5,
            (ACQUIRE_OR_WAIT | ACQUIRE_OR_RETURN, SHARED) => 6,
            (CHECK, _) => 4,
            _ => 0,
        };
        let names = if kind == READ_CELL { "{}" } else { "{a}" };
        self.sql(&format!(
            "SELECT code, number FROM @.flight(-{owner}, {lock_wait}, '{names}', '{names}', '{{{kind}}}', '{{{class}}}', \
             '{{a}}', '{{{mode}}}', '{{f}}', '{{00000000-0000-0000-0000-{owner:012}}}', '{{NULL}}', '{{120000}}', \
             '{{label}}', '{{meta}}', '{{NULL}}') WHERE op = 1"
        ))
    }

    /// Returns the call of a flight that releases the lock "a".
    fn release(&self) -> String {
        self.sql(
            "SELECT f.code FROM @.locks AS l, @.flight(-1, 60000, '{a}', '{}', '{6}', '{0}', '{a}', '{0}', '{f}', \
             ARRAY[l.owner], ARRAY[l.token], '{NULL}', '{NULL}', '{NULL}', '{NULL}') AS f WHERE f.op = 1 AND l.name = 'a'",
        )
    }

    async fn flight(&self, driver: &Driver, kind: i32, mode: i32, owner: i32) -> i32 {
        driver
            .query_one(&self.call(kind, mode, owner, PATIENT), &[])
            .await
            .expect("the flight succeeds")
            .get(0)
    }

    /// Starts a flight in a session of its own.
    async fn start(&self, setting: &str, call: String) -> Flight {
        let driver = self.session().await;
        driver.batch_execute(setting).await.expect("it can be set");
        let pid = driver.query_one("SELECT pg_backend_pid()", &[]).await.expect("it has one").get(0);
        let reply = async move {
            match driver.query_one(&call, &[]).await {
                Ok(row) => Some((row.get(0), row.get(1))),
                Err(error) if error.code() == Some(&SqlState::LOCK_NOT_AVAILABLE) => None,
                Err(error) => panic!("{error:?}"),
            }
        };
        (pid, tokio::spawn(reply))
    }

    /// Waits until the flight is over, or waits for this in the server.
    async fn until_waits<T>(&self, (pid, flight): &(i32, JoinHandle<T>), event: &str) {
        let sql = "SELECT count(*) FROM pg_stat_activity WHERE pid = $1 AND (wait_event = $2 OR wait_event_type = $2)";
        wait::until("the flight waits", async || {
            let waiting = self.control.query_one(sql, &[pid, &event]).await.expect("it can be read");
            flight.is_finished() || waiting.get::<_, i64>(0) == 1
        })
        .await;
    }
}

/// A row that another client creates while a flight is about to create it: the flight locks it before it decides.
#[tokio::test]
async fn a_row_that_another_flight_has_created_is_locked() {
    for (paused, other) in [(EXCLUSIVE, SHARED), (SHARED, EXCLUSIVE), (EXCLUSIVE, EXCLUSIVE), (1, 1)] {
        let stage = Stage::new().await;
        stage.execute(PAUSING).await;
        let key = rand::random::<i64>();
        stage.execute(&format!("SELECT pg_advisory_lock({key})")).await;
        let pause = format!("SET fencepost_test.pause = '{key}'");
        let flight = stage.start(&pause, stage.call(ACQUIRE_OR_WAIT, paused, 1, PATIENT)).await;
        stage.until_waits(&flight, "PgSleep").await;
        assert_eq!(stage.flight(&stage.session().await, LEAVE, EXCLUSIVE, 2).await, LEFT);
        let slow = stage.session().await;
        slow.batch_execute("BEGIN").await.unwrap();
        assert_eq!(stage.flight(&slow, ACQUIRE_OR_WAIT, other, 3).await, GRANTED);
        stage.execute(&format!("SELECT pg_advisory_unlock({key})")).await;
        stage.until_waits(&flight, "Lock").await;
        slow.batch_execute("COMMIT").await.unwrap();
        let reply = wait::within_timeout("it is answered", flight.1).await.unwrap();
        assert_eq!(reply.map(|(code, _)| code), Some(WAITING), "{paused} {other}");
    }
}

/// A cell that is read while a reader is granted the lock does not hide the reader.
#[tokio::test]
async fn reading_a_cell_does_not_hide_a_reader() {
    let stage = Stage::new().await;
    assert_eq!(stage.flight(&stage.control, LEAVE, EXCLUSIVE, 1).await, LEFT);
    // As after the last reader has gone and before its name is settled.
    stage.execute("UPDATE @.locks SET left_until = NULL, is_plain = false; DELETE FROM @.tombstones").await;
    let slow = stage.session().await;
    slow.batch_execute("BEGIN").await.unwrap();
    assert_eq!(stage.flight(&slow, ACQUIRE_OR_WAIT, SHARED, 2).await, GRANTED);
    let reading = stage.start("", stage.call(READ_CELL, EXCLUSIVE, 3, PATIENT)).await;
    stage.until_waits(&reading, "Lock").await;
    slow.batch_execute("COMMIT").await.unwrap();
    wait::within_timeout("it is read", reading.1).await.unwrap();
    assert_eq!(stage.flight(&stage.control, ACQUIRE_OR_RETURN, EXCLUSIVE, 4).await, BUSY);
}

/// A check that skips the locked row while a release hands the lock over leaves no second ticket, and is not told to wait.
#[tokio::test]
async fn a_check_during_a_hand_over_leaves_no_ticket() {
    let stage = Stage::new().await;
    assert_eq!(stage.flight(&stage.control, ACQUIRE_OR_WAIT, EXCLUSIVE, 1).await, GRANTED);
    assert_eq!(stage.flight(&stage.control, ACQUIRE_OR_WAIT, EXCLUSIVE, 2).await, WAITING);
    let slow = stage.session().await;
    slow.batch_execute("BEGIN").await.unwrap();
    assert_eq!(slow.query_one(&stage.release(), &[]).await.unwrap().get::<_, i32>(0), RELEASED);
    let check = stage.start("", stage.call(CHECK, EXCLUSIVE, 2, -1)).await;
    stage.until_waits(&check, "Lock").await;
    slow.batch_execute("COMMIT").await.unwrap();
    // None: it has waited for the ticket for too long, and nothing was applied.
    let reply = wait::within_timeout("it is answered", check.1).await.unwrap();
    assert!(matches!(reply, None | Some((LOCKED, None))), "{reply:?}");
    let tickets = stage.control.query_one(&stage.sql("SELECT count(*) FROM @.tickets"), &[]).await.unwrap();
    assert_eq!(tickets.get::<_, i64>(0), 0);
}

/// A token of `lock_in` is stored outside of its transaction: it does not replace a larger one that another transaction has stored since,
/// and a hand-over is above.
#[tokio::test]
async fn tokens_of_transactions_never_become_smaller() {
    let stage = Stage::new().await;
    let key = format!("hashtextextended('fencepost lock_in {}', 0)", stage.bench.namespace());
    stage.execute(&format!("SELECT pg_advisory_lock({key})")).await;
    let lock_in = stage.start("", stage.sql(&format!("SELECT 1, @.lock_in('a', {PATIENT})"))).await;
    stage.until_waits(&lock_in, "Lock").await;
    let once = stage.start("", stage.sql("SELECT 1, @.lock_in('b')")).await;
    assert_eq!(once.1.await.unwrap(), Some((1, None)));
    let ahead = "SELECT setval('@.lock_in_tokens', @.micros(clock_timestamp()) + 3600000000)";
    let larger: i64 = stage.value(ahead).await;
    stage.execute(&format!("SELECT pg_advisory_unlock({key})")).await;
    let reply = wait::within_timeout("it is granted", lock_in.1).await.unwrap();
    assert!(reply.is_some_and(|(_, token)| token.is_some() && token < Some(larger)), "{reply:?}");
    assert_eq!(stage.value::<i64>("SELECT @.lock_in_token()").await, larger);
    assert_eq!(stage.flight(&stage.control, ACQUIRE_OR_WAIT, EXCLUSIVE, 1).await, GRANTED);
    assert_eq!(stage.flight(&stage.control, ACQUIRE_OR_WAIT, EXCLUSIVE, 2).await, WAITING);
    let larger: i64 = stage.value(ahead).await;
    assert_eq!(stage.value::<i32>(&stage.release()).await, RELEASED);
    assert!(stage.value::<i64>("SELECT token FROM @.locks WHERE name = 'a'").await > larger);
}

/// A break concerns all names of its grant, and locks their rows in order, too: while it waits for one, it has locked none that
/// follows. A flight that does not wait leaves it for later.
#[tokio::test]
async fn a_break_locks_the_rows_of_its_grant_in_order() {
    let stage = Stage::new().await;
    let flight = |lock_wait: i32, names: &str, kind: i32, class: i32, ops: &str, modes: &str, token: i64| {
        stage.sql(&format!(
            "SELECT code, number, token FROM @.flight(-1, {lock_wait}, '{names}', '{names}', '{{{kind}}}', '{{{class}}}', \
             ARRAY[{ops}], '{modes}', '{{f}}', '{{00000000-0000-0000-0000-000000000001}}', '{{{token}}}', '{{120000}}', \
             '{{label}}', '{{meta}}', '{{NULL}}') WHERE op = 1"
        ))
    };
    let acquire = flight(PATIENT, "{a,b}", ACQUIRE_OR_WAIT, 0, "E'b\\na'", "{\"0,-1\"}", 0);
    let granted = stage.control.query_one(&acquire, &[]).await.unwrap();
    assert_eq!(granted.get::<_, i32>(0), GRANTED);
    let token: i64 = granted.get(2);
    let other = stage.session().await;
    let lock = "BEGIN; SELECT FROM @.locks WHERE name = 'a' FOR NO KEY UPDATE";
    other.batch_execute(&stage.sql(lock)).await.unwrap();
    let patient = stage.start("", flight(PATIENT, "{b}", BREAK, 0, "'b'", "{\"\"}", token)).await;
    stage.until_waits(&patient, "Lock").await;
    assert_eq!(stage.unlocked().await, ["b"]);
    let brief = stage.start("", flight(0, "{b}", BREAK, 0, "'b'", "{\"\"}", token)).await;
    assert_eq!(brief.1.await.unwrap(), Some((LOCKED, None)));
    other.batch_execute("COMMIT").await.unwrap();
    let reply = wait::within_timeout("it is answered", patient.1).await.unwrap();
    assert_eq!(reply.map(|(code, _)| code), Some(RELEASED));
    let left =
        "SELECT (SELECT count(*) FROM @.holders) + (SELECT count(*) FROM @.locks WHERE owner IS NOT NULL)";
    assert_eq!(stage.value::<i64>(left).await, 0);
}
