//! Thousands of waiters of one lock, and thousands of names that are used once.

use std::sync::Arc;
use std::time::Duration;

use fencepost_core::backend::{OnBusy, Op, Reply};
use fencepost_core::clock::Clock;
use fencepost_core::{Attempt, Grant, LockName, Mode, Owner, Rule, Want};
use fencepost_testkit::TestBench;
use fencepost_testkit::servers::redis::{RedisServer, RedisServerConfig};
use fencepost_testkit::wait;
use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;

use crate::actions::{LONG_TTL, SHORT, enqueue, granted, hold, spawn_waiter, until_queued};
use crate::bench::RedisBench;
use crate::connection::calls_of;

const WAITERS: usize = 10_000;
/// The bound for the server's memory per waiter: its ticket, its entry in the queue, and the overhead of Redis.
const BYTES_PER_WAITER: usize = 1024;

fn used_memory(server: &RedisServer) -> usize {
    let info = server.cli(&["INFO", "memory"]);
    let used = info.lines().find_map(|line| line.strip_prefix("used_memory:"));
    used.and_then(|used| used.trim().parse().ok()).expect("INFO has used_memory")
}

/// Scenario 43: the holder dies. One of ten thousand waiters is woken, soon after the lease has expired and with a few calls;
/// and the queue needs little memory on the server.
#[tokio::test]
async fn one_of_ten_thousand_is_woken() {
    let server = RedisServer::start(&RedisServerConfig::plain());
    let bench = RedisBench::at(&server.url(), "", [server.url()]);
    let (dying, proxy) = bench.proxied().await;
    let (client, observer) = (bench.client().await, bench.client().await);
    let dead = hold(&dying.lock("a").ttl(SHORT)).await;
    let empty = used_memory(&server);
    let mut waiters: FuturesUnordered<_> =
        (0..WAITERS).map(|_| spawn_waiter(client.lock("a").ttl(LONG_TTL))).collect();
    until_queued(&observer, "a", WAITERS).await;
    let full = used_memory(&server).saturating_sub(empty);
    assert!(full < WAITERS * BYTES_PER_WAITER, "{full} bytes for {WAITERS} waiters");
    proxy.crash();
    server.cli(&["CONFIG", "RESETSTAT"]);
    let clock = Clock::system();
    let ends = clock.now() + SHORT;
    let next = wait::within_timeout("a waiter is granted the lock", waiters.next()).await;
    let next = next.unwrap().unwrap().unwrap();
    // Ten times the documented bound, for a busy machine.
    assert!(clock.now() < ends + Duration::from_secs(10), "granted far too late");
    assert!(next.token() > dead.token());
    let (calls, pushes) = (calls_of(&server, "evalsha"), calls_of(&server, "publish"));
    assert!(pushes <= 1, "{pushes} pushes");
    assert!(calls <= 50, "{calls} calls for one turn");
    until_queued(&observer, "a", WAITERS - 1).await;
    drop(next);
    wait::within_timeout("all have left", client.close()).await;
    assert!(observer.inspect("a").await.unwrap().is_idle());
    let left = used_memory(&server).saturating_sub(empty);
    assert!(left < full / 2 + 1_000_000, "{left} of {full} bytes are left");
}

/// Names that are used once leave no keys: the namespace has two, however many names there were.
#[tokio::test]
async fn names_that_are_used_once_leave_no_keys() {
    let names = if std::env::var_os("FENCEPOST_FULL").is_some() { 1_000_000 } else { 20_000 };
    let server = RedisServer::start(&RedisServerConfig::plain());
    let bench = RedisBench::at(&server.url(), "", [server.url()]);
    let client = bench.client().await;
    let turns = futures_util::stream::iter(0..names).map(|number| {
        let lock = client.lock(format!("job/{number:08}#send_email"));
        async move { lock.acquire().await.unwrap().release().await.unwrap() }
    });
    turns.buffer_unordered(256).collect::<Vec<()>>().await;
    let keys: usize = server.cli(&["DBSIZE"]).parse().unwrap();
    assert_eq!(keys, 2, "after {names} names: {:?}", bench.keys().await);
}

/// A process dies with a thousand tickets: the waiters behind them do not wait until these tickets expire.
#[tokio::test]
async fn tickets_of_a_dead_process_delay_no_waiter() {
    let server = RedisServer::start(&RedisServerConfig::plain());
    let bench = RedisBench::at(&server.url(), "", [server.url()]);
    let (dying, proxy) = bench.proxied().await;
    let client = bench.client().await;
    let guard = hold(&client.lock("a").ttl(LONG_TTL)).await;
    let crowd: Vec<_> = (0..1000).map(|_| spawn_waiter(dying.lock("a").ttl(LONG_TTL))).collect();
    until_queued(&client, "a", crowd.len()).await;
    let next = enqueue(&client, client.lock("a").ttl(SHORT), "a", crowd.len() + 1).await;
    proxy.crash();
    wait::until("its subscription is gone", async || bench.listeners().await == Some(1)).await;
    guard.release().await.unwrap();
    granted(next).await.release().await.unwrap();
    // Nor a client that does not wait.
    drop(client.lock("a").try_acquire().await.unwrap().expect("all earlier waiters are dead"));
    for waiter in crowd {
        waiter.abort();
    }
}

/// However much a flight costs the server, the release at its end wakes the successor.
#[tokio::test]
async fn a_release_at_the_end_of_a_long_flight_wakes_the_successor() {
    // So long that no heartbeat finds the free lock before the test times out.
    const DAY: Duration = Duration::from_secs(24 * 3600);
    let bench = RedisBench::plain();
    let (client, backend) = (bench.client().await, bench.connect().await.unwrap());
    let attempt = |name: &str, mode| {
        let wants = vec![Want { name: LockName::new(name).unwrap(), mode }];
        let (owner, label, meta) = (Owner::random(), "bare".into(), [].into());
        Arc::new(Attempt { owner, wants, rule: Rule::All, ttl: DAY, label, meta })
    };
    let acquire = |attempt: Arc<Attempt>| Op::Acquire { attempt, on_busy: OnBusy::Wait };
    let held = attempt("a", Mode::Exclusive);
    let reply = backend.execute(vec![acquire(held.clone())]).await.remove(0).unwrap();
    let Reply::Granted(award) = reply else { panic!("{reply:?}") };
    let next = enqueue(&client, client.lock("a").ttl(DAY), "a", 1).await;
    // Each shared attempt reads the ticket of the exclusive waiter, more than once.
    let _reader = hold(&client.lock("b").mode(Mode::Shared).ttl(DAY)).await;
    let writer = enqueue(&client, client.lock("b").ttl(DAY), "b", 1).await;
    let mut flight: Vec<Op> = (0..200).map(|_| acquire(attempt("b", Mode::Shared))).collect();
    flight.push(Op::Release(Grant { attempt: held, award }));
    let replies = backend.execute(flight).await;
    assert_eq!(*replies[200].as_ref().unwrap(), Reply::Released);
    granted(next).await.release().await.unwrap();
    writer.abort();
}
