//! Parts that the suite does not reach, on a real server.

use std::sync::Arc;
use std::time::Duration;

use fencepost_core::{Backend, Client, Options};
use fencepost_testkit::actions::{LONG_TTL, granted, spawn_waiter, until_idle};
use fencepost_testkit::servers::postgres::{PostgresServer, PostgresServerConfig, shared};
use fencepost_testkit::wait;
use fencepost_testkit::workload::count_under_the_lock;
use rustix::process::{Pid, Signal, kill_process};

use super::backend::open_with;
use super::session::Session;
use crate::config::{Config, parse};
use crate::link::Link;

fn config(server: &PostgresServer) -> Config {
    let namespace = format!("test_{:016x}", rand::random::<u64>());
    parse(&format!("{}?mode=advisory&namespace={namespace}", server.url("postgres"))).unwrap()
}

async fn client(config: &Config, wait_slice: Duration) -> Client {
    let config = config.clone();
    let opening = async move {
        let backend = open_with(config, &Options::new(), wait_slice).await?;
        Ok(Arc::new(backend) as Arc<dyn Backend>)
    };
    Client::connect_with(opening).await.unwrap()
}

/// A wait that ends when the lock is granted may have both outcomes at once, as `DistributedLock` issue 147 shows. With waits
/// of a few milliseconds it happens often; no lock is lost, and none is granted twice.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_wait_that_ends_when_the_lock_is_granted() {
    let config = config(shared());
    let mut clients = Vec::new();
    for slice in 1..=4 {
        clients.push(client(&config, Duration::from_millis(slice)).await);
    }
    count_under_the_lock(clients, 60).await;
}

/// Returns the server's process of the one session that waits in this namespace.
async fn waiting_process(config: &Config) -> Pid {
    let sql = format!(
        "SELECT pid FROM pg_locks JOIN \"{}\".advisory_sessions USING (pid) WHERE locktype = 'advisory' AND NOT granted",
        config.namespace
    );
    let mut found = String::new();
    wait::until("a session waits", async || {
        found = shared().psql(&sql);
        !found.is_empty()
    })
    .await;
    Pid::from_raw(found.parse().unwrap()).unwrap()
}

/// The same, for certain: the process that waits is stopped, until the lock is granted to it and its time is over.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_grant_and_the_end_of_the_wait_are_read_at_once() {
    let config = config(shared());
    let slice = Duration::from_secs(1);
    let (ours, theirs) = (client(&config, slice).await, client(&config, slice).await);
    let guard = ours.lock("a").acquire().await.unwrap();
    let waiter = spawn_waiter(theirs.lock("a").ttl(LONG_TTL));
    let process = waiting_process(&config).await;
    kill_process(process, Signal::STOP).unwrap();
    guard.release().await.unwrap();
    wait::elapse(slice * 2).await;
    kill_process(process, Signal::CONT).unwrap();
    let guard = granted(waiter).await;
    assert_eq!(ours.inspect("a").await.unwrap().holders[0].token, Some(guard.token()));
    assert!(ours.lock("a").try_acquire().await.unwrap().is_none());
    guard.release().await.unwrap();
    assert!(ours.inspect("a").await.unwrap().is_idle());
}

/// A waiter leaves while the lock is granted to it: the lock is free afterwards, although its session is used again.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_grant_and_a_cancellation_are_read_at_once() {
    let config = config(shared());
    let slice = Duration::from_secs(60);
    let (ours, theirs) = (client(&config, slice).await, client(&config, slice).await);
    let guard = ours.lock("a").ttl(LONG_TTL).acquire().await.unwrap();
    let waiter = spawn_waiter(theirs.lock("a").ttl(LONG_TTL));
    let process = waiting_process(&config).await;
    kill_process(process, Signal::STOP).unwrap();
    waiter.abort();
    // The cancellation is sent to the process, and waits for it.
    wait::elapse(Duration::from_millis(500)).await;
    guard.release().await.unwrap();
    kill_process(process, Signal::CONT).unwrap();
    until_idle(&ours, "a").await;
    let other = theirs.lock("b").acquire().await.unwrap();
    assert!(ours.inspect("a").await.unwrap().is_idle());
    other.release().await.unwrap();
}

#[tokio::test]
async fn a_session_is_set_to_notice_the_end_of_its_client() {
    let server = PostgresServer::start(
        &PostgresServerConfig::plain()
            .with_setting("statement_timeout", "1s")
            .with_setting("lock_timeout", "1s"),
    );
    let link = Link::new(config(&server)).unwrap();
    let session = Session::open(&link).await.unwrap();
    for (setting, value) in [
        ("statement_timeout", 0),
        ("lock_timeout", 0),
        ("tcp_keepalives_idle", 5),
        ("tcp_keepalives_interval", 2),
        ("tcp_keepalives_count", 3),
        ("tcp_user_timeout", 10_000),
        ("client_connection_check_interval", 2_000),
        ("idle_session_timeout", 60_000),
    ] {
        let number = "(SELECT setting::bigint FROM pg_settings WHERE name = $1)";
        assert_eq!(session.evaluate(number, setting).await.unwrap(), value, "{setting}");
    }
}

/// Tokens follow the clock of the server, and grow although it is set back.
#[tokio::test(flavor = "multi_thread")]
async fn tokens_grow_although_the_clock_is_set_back() {
    let server = PostgresServer::start(&PostgresServerConfig::plain().with_movable_clock());
    let client = client(&config(&server), Duration::from_secs(60)).await;
    let mut last = client.lock("a").acquire().await.unwrap().token();
    let micros: u64 =
        server.psql("SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint").parse().unwrap();
    assert!(last.get() > micros - 60_000_000 && last.get() <= micros, "{last} is not near {micros}");
    for shift in [-3600, -7200, 0, 3600, -3600] {
        server.shift_clock(shift);
        let next = client.lock("a").acquire().await.unwrap().token();
        assert!(next > last, "{next} after {last} at {shift}");
        last = next;
    }
}
