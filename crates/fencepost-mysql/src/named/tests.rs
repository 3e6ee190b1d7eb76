//! Parts that the suite does not reach, on a real server.

use std::sync::Arc;
use std::time::Duration;

use fencepost_core::backend::{OnBusy, Op, Reply};
use fencepost_core::{Attempt, Backend, Client, LockName, Mode, Options, Owner, Result, Rule, Want};
use fencepost_sql::session_lock::{LockSession, Tried};
use fencepost_testkit::actions::{LONG_TTL, granted, hold, spawn_waiter, until_idle, until_queued};
use fencepost_testkit::servers::mariadb::shared;
use fencepost_testkit::wait;
use fencepost_testkit::workload::count_under_the_lock;
use mysql_async::prelude::Queryable;
use mysql_async::{Conn, Opts};

use super::backend::open_with;
use super::session::Session;
use crate::config::{Config, parse};
use crate::session::Connector;

fn config() -> Config {
    let namespace = format!("t_{}", &Owner::random().to_hex()[..7]);
    parse(&format!("{}?mode=named&namespace={namespace}", shared().url())).unwrap()
}

fn attempt(name: &str) -> Arc<Attempt> {
    Arc::new(Attempt {
        owner: Owner::random(),
        wants: vec![Want { name: LockName::new(name).unwrap(), mode: Mode::Exclusive }],
        rule: Rule::All,
        ttl: LONG_TTL,
        label: "test".into(),
        meta: Arc::new([]),
    })
}

async fn driver() -> Conn {
    Conn::new(Opts::from_url(&shared().url()).unwrap()).await.unwrap()
}

async fn client(config: &Config, wait_slice: Duration) -> Client {
    let config = config.clone();
    let opening = async move {
        let backend = open_with(config, &Options::new(), wait_slice).await?;
        Ok(Arc::new(backend) as Arc<dyn Backend>)
    };
    Client::connect_with(opening).await.unwrap()
}

/// With waits of a few milliseconds, many end just when the lock is granted: no lock is lost, and none is granted twice.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_wait_that_ends_when_the_lock_is_granted() {
    let config = config();
    let mut clients = Vec::new();
    for slice in 1..=4 {
        clients.push(client(&config, Duration::from_millis(slice)).await);
    }
    count_under_the_lock(clients, 40).await;
}

/// Waiters leave while the lock is granted to them: it is free afterwards, although their connections are used again.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_grant_and_an_interruption_at_once() {
    let config = config();
    let slice = Duration::from_secs(60);
    let (ours, theirs) = (client(&config, slice).await, client(&config, slice).await);
    for _ in 0..40 {
        let guard = hold(&ours.lock("a").ttl(LONG_TTL)).await;
        let waiter = spawn_waiter(theirs.lock("a").ttl(LONG_TTL));
        until_queued(&ours, "a", 1).await;
        let (released, ()) = tokio::join!(guard.release(), async move { waiter.abort() });
        released.unwrap();
        until_idle(&ours, "a").await;
    }
    let guard = hold(&theirs.lock("b").ttl(LONG_TTL)).await;
    let waiter = spawn_waiter(ours.lock("b").ttl(LONG_TTL));
    until_queued(&theirs, "b", 1).await;
    guard.release().await.unwrap();
    granted(waiter).await.release().await.unwrap();
    // No connection was closed, and none has left a row.
    assert_eq!(theirs.sweep().await.unwrap(), Some(0));
    for name in ["a", "b"] {
        assert!(theirs.inspect(name).await.unwrap().is_idle(), "no connection has left a row of {name}");
    }
}

/// The task of an attempt that found the lock held ends before its reply: it does not end the next one of the same owner.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_attempt_that_was_busy_can_wait() {
    let config = config();
    let slice = Duration::from_secs(60);
    let guard = hold(&client(&config, slice).await.lock("a").ttl(LONG_TTL)).await;
    let backend = open_with(config, &Options::new(), slice).await.unwrap();
    let execute = async |op: Op| -> Result<Reply> { backend.execute(vec![op]).await.remove(0) };
    for _ in 0..10 {
        let attempt = attempt("a");
        let acquire = |on_busy| Op::Acquire { attempt: attempt.clone(), on_busy };
        assert!(matches!(execute(acquire(OnBusy::Return)).await, Ok(Reply::Busy)));
        for op in [acquire(OnBusy::Wait), Op::Check(attempt.clone()), Op::Check(attempt.clone())] {
            let reply = execute(op).await;
            assert!(matches!(reply, Ok(Reply::Waiting { .. })), "{reply:?}");
        }
        assert!(matches!(execute(Op::Leave(attempt)).await, Ok(Reply::Left)));
    }
    guard.release().await.unwrap();
    backend.close().await;
}

/// A transaction that the server chooses as the victim of a deadlock is repeated, and the lock acquired before it is kept.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_deadlock_is_not_shown() {
    let config = config();
    let creator = client(&config, Duration::from_secs(60)).await;
    let connector = Connector::new(&config).unwrap();
    let mut holder = Session::open(&connector, &config).await.unwrap();
    let mut waiter = Session::open(&connector, &config).await.unwrap();
    let (held, waiting, key) = (attempt("a"), attempt("a"), format!("test {}", config.namespace));
    assert!(matches!(holder.try_lock(&key, &held, OnBusy::Return).await, Ok(Tried::Acquired(_))));
    assert!(matches!(waiter.try_lock(&key, &waiting, OnBusy::Wait).await, Ok(Tried::NotFree)));
    let table = config.named_table("named_sessions");
    let id = waiter.id();
    let mut other = driver().await;
    let row = format!("SELECT id FROM {table} WHERE connection = {id}");
    let row: i64 = other.query_first(row).await.unwrap().expect("a waiter has a row");
    // The other transaction blocks every insert. It has changed more rows than the waiter's, which is therefore the victim.
    let scratch = config.named_table("scratch");
    other.query_drop(format!("CREATE TABLE {scratch} (id INT PRIMARY KEY)")).await.unwrap();
    other.query_drop("START TRANSACTION").await.unwrap();
    other.query_drop(format!("INSERT INTO {scratch} SELECT seq FROM seq_1_to_1000")).await.unwrap();
    other.query_drop(format!("SELECT id FROM {table} WHERE id > {row} FOR UPDATE")).await.unwrap();
    assert!(holder.unlock(&key, &held).await.unwrap());
    waiter.connection.run("SET SESSION innodb_lock_wait_timeout = 60", LONG_TTL).await.unwrap();
    let waiting = tokio::spawn(async move {
        assert_eq!(waiter.wait(&key, &waiting, LONG_TTL).await?, Tried::Unnumbered);
        waiter.try_lock(&key, &waiting, OnBusy::Wait).await
    });
    let inserting = format!(
        "SELECT COUNT(*) FROM information_schema.PROCESSLIST WHERE id = {id} AND info LIKE 'INSERT%'"
    );
    wait::until("the waiter has deleted its row, and inserts the next", async || {
        other.query_first(&inserting).await.unwrap() == Some(1_i64)
    })
    .await;
    // The waiter's transaction has this row locked, and waits for the other one, or will.
    other.query_drop(format!("SELECT id FROM {table} WHERE id = {row} FOR UPDATE")).await.unwrap();
    other.query_drop("ROLLBACK").await.unwrap();
    let outcome = wait::within_timeout("the wait ends", waiting).await.unwrap();
    assert!(matches!(outcome, Ok(Tried::Acquired(_))), "{outcome:?}");
    other.query_drop(format!("DROP TABLE {scratch}")).await.unwrap();
    creator.close().await;
}
