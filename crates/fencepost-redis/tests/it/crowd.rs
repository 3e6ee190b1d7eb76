//! Many: waiters on one lock, and names that are used once.

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
/// For each waiter, of the server's memory: its ticket, its place, and what Redis adds to that.
const BYTES_EACH: usize = 1024;

fn used_memory(server: &RedisServer) -> usize {
    let info = server.cli(&["INFO", "memory"]);
    let used = info.lines().find_map(|line| line.strip_prefix("used_memory:"));
    used.and_then(|used| used.trim().parse().ok()).expect("it says how much")
}

/// Scenario 43: the holder dies. One of ten thousand is told, soon after the end of the lease, with a handful of calls;
/// and the line costs the server little.
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
    assert!(full < WAITERS * BYTES_EACH, "{full} bytes for {WAITERS} waiters");
    proxy.crash();
    server.cli(&["CONFIG", "RESETSTAT"]);
    let clock = Clock::system();
    let ends = clock.now() + SHORT;
    let next = wait::within_timeout("somebody is granted the lock", waiters.next()).await;
    let next = next.unwrap().unwrap().unwrap();
    // Ten times what is promised, for a machine that is busy.
    assert!(clock.now() < ends + Duration::from_secs(10), "granted far too late");
    assert!(next.token() > dead.token());
    let (calls, pushes) = (calls_of(&server, "evalsha"), calls_of(&server, "publish"));
    assert!(pushes <= 1, "{pushes} were told");
    assert!(calls <= 50, "{calls} calls for one turn");
    until_queued(&observer, "a", WAITERS - 1).await;
    drop(next);
    wait::within_timeout("all have left", client.close()).await;
    assert!(observer.inspect("a").await.unwrap().is_idle());
    let left = used_memory(&server).saturating_sub(empty);
    assert!(left < full / 2 + 1_000_000, "{left} of {full} bytes are left");
}

/// Names that are used once leave nothing: two keys for the whole namespace, however many there were.
#[tokio::test]
async fn names_that_are_used_once_leave_nothing() {
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

/// A process dies with a crowd of its own in line: whoever stands behind them does not wait for the end of their tickets.
#[tokio::test]
async fn a_dead_crowd_costs_nobody_its_ttl() {
    let server = RedisServer::start(&RedisServerConfig::plain());
    let bench = RedisBench::at(&server.url(), "", [server.url()]);
    let (dying, proxy) = bench.proxied().await;
    let client = bench.client().await;
    let guard = hold(&client.lock("a").ttl(LONG_TTL)).await;
    let crowd: Vec<_> = (0..1000).map(|_| spawn_waiter(dying.lock("a").ttl(LONG_TTL))).collect();
    until_queued(&client, "a", crowd.len()).await;
    let next = enqueue(&client, client.lock("a").ttl(SHORT), "a", crowd.len() + 1).await;
    proxy.crash();
    wait::until("the server knows of the death", async || bench.listeners().await == Some(1)).await;
    guard.release().await.unwrap();
    granted(next).await.release().await.unwrap();
    // Nor does somebody who only tries.
    drop(client.lock("a").try_acquire().await.unwrap().expect("all before it are dead"));
    for waiter in crowd {
        waiter.abort();
    }
}

/// However much a flight asks of the server, the release at its end tells whoever is next.
#[tokio::test]
async fn a_release_behind_a_crowd_tells_the_next() {
    // Nobody's heartbeat finds it out while the test is patient.
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
    // Each of those who want to read looks at the one who wants to write, more than once.
    let _reader = hold(&client.lock("b").mode(Mode::Shared).ttl(DAY)).await;
    let writer = enqueue(&client, client.lock("b").ttl(DAY), "b", 1).await;
    let mut flight: Vec<Op> = (0..200).map(|_| acquire(attempt("b", Mode::Shared))).collect();
    flight.push(Op::Release(Grant { attempt: held, award }));
    let replies = backend.execute(flight).await;
    assert_eq!(*replies[200].as_ref().unwrap(), Reply::Released);
    granted(next).await.release().await.unwrap();
    writer.abort();
}
