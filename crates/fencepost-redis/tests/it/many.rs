//! Thousands of holders of one lock, and thousands of dead tickets: the cost of a call, and that live waiters are granted.

use std::sync::Arc;
use std::time::Duration;

use fencepost_core::backend::{Backend, OnBusy, Op, Reply};
use fencepost_core::{Attempt, Grant, LockName, Mode, Owner, Rule, Want};
use fencepost_testkit::servers::redis::{RedisServer, RedisServerConfig};
use fencepost_testkit::suite::assert_clean;
use fencepost_testkit::{TestBench, WireBench, wait};

use crate::actions::{LONG_TTL, SHORT, enqueue, granted, hold, spawn_waiter, until_queued};
use crate::bench::RedisBench;

/// How many operations are in one flight of these tests.
const FLIGHT: usize = 128;

fn attempt(name: &str, mode: Mode, ttl: Duration) -> Arc<Attempt> {
    let wants = vec![Want { name: LockName::new(name).unwrap(), mode }];
    let (owner, label, meta) = (Owner::random(), "bare".into(), [].into());
    Arc::new(Attempt { owner, wants, rule: Rule::All, ttl, label, meta })
}

/// Sends `count` acquires. Returns the reply to each.
async fn acquire(
    backend: &dyn Backend,
    count: usize,
    name: &str,
    mode: Mode,
    ttl: Duration,
) -> Vec<(Arc<Attempt>, Reply)> {
    let attempts: Vec<_> = (0..count).map(|_| attempt(name, mode, ttl)).collect();
    let mut replies = Vec::new();
    for flight in attempts.chunks(FLIGHT) {
        let ops =
            flight.iter().map(|attempt| Op::Acquire { attempt: attempt.clone(), on_busy: OnBusy::Wait });
        let ops: Vec<Op> = ops.collect();
        // On a busy machine a reply may be late; a repeated acquire is harmless.
        let mut results = backend.execute(ops.clone()).await;
        while results.iter().any(Result::is_err) {
            results = backend.execute(ops.clone()).await;
        }
        replies.extend(results.into_iter().flatten());
    }
    attempts.into_iter().zip(replies).collect()
}

fn grants(acquired: Vec<(Arc<Attempt>, Reply)>) -> Vec<Grant> {
    let grant = |(attempt, reply)| match reply {
        Reply::Granted(award) => Grant { attempt, award },
        other => panic!("{other:?}"),
    };
    acquired.into_iter().map(grant).collect()
}

/// Returns the microseconds that the server has spent in scripts.
fn spent(server: &RedisServer) -> usize {
    let stats = server.cli(&["INFO", "commandstats"]);
    let line = stats.lines().find(|line| line.starts_with("cmdstat_evalsha:")).unwrap_or_default();
    let spent = line.split(',').find_map(|part| part.strip_prefix("usec="));
    spent.map_or(0, |spent| spent.parse().expect("it is a number"))
}

/// Measures the cost of operations on the server, in microseconds: a renewal, an acquire with its release, a check.
async fn costs(server: &RedisServer, backend: &dyn Backend, mode: Mode, holders: usize) -> [usize; 3] {
    const ROUNDS: usize = 200;
    let name = format!("of {holders} {mode:?}");
    let held = grants(acquire(backend, holders, &name, mode, LONG_TTL).await);
    let measured = async |op: &dyn Fn() -> Vec<Op>| {
        let before = spent(server);
        for _ in 0..ROUNDS {
            for op in op() {
                backend.execute(vec![op]).await.remove(0).unwrap();
            }
        }
        (spent(server) - before) / ROUNDS
    };
    let renewal = measured(&|| vec![Op::Renew(held[0].clone())]).await;
    let before = spent(server);
    for _ in 0..ROUNDS {
        let grant = grants(acquire(backend, 1, &name, mode, LONG_TTL).await).remove(0);
        assert_eq!(backend.execute(vec![Op::Release(grant)]).await.remove(0).unwrap(), Reply::Released);
    }
    let acquire_and_release = (spent(server) - before) / ROUNDS;
    // An exclusive attempt would conflict with a semaphore: there all permits are taken first.
    let full = if mode == Mode::Shared { Mode::Exclusive } else { mode };
    let waits = match mode {
        Mode::Semaphore { permits } => {
            let rest = usize::try_from(permits).unwrap() - holders;
            grants(acquire(backend, rest, &name, mode, LONG_TTL).await);
            attempt(&name, full, LONG_TTL)
        }
        _ => attempt(&name, full, LONG_TTL),
    };
    let ask = Op::Acquire { attempt: waits.clone(), on_busy: OnBusy::Wait };
    let reply = backend.execute(vec![ask]).await.remove(0).unwrap();
    assert!(matches!(reply, Reply::Waiting { .. }), "{reply:?}");
    let check = measured(&|| vec![Op::Check(waits.clone())]).await;
    [renewal, acquire_and_release, check]
}

/// Scenario 63: the cost of a holder does not depend on the number of other holders of the lock. The bound is a factor of ten; it
/// used to be far more.
#[tokio::test]
async fn a_renewal_costs_the_same_among_thousands() {
    let server = RedisServer::start(&RedisServerConfig::plain());
    let bench = RedisBench::at(&server.url(), "", [server.url()]);
    let backend = bench.connect().await.unwrap();
    let slots = |permits| Mode::Semaphore { permits };
    for (few, many) in [(Mode::Shared, Mode::Shared), (slots(30), slots(4_010))] {
        let few = costs(&server, &*backend, few, 20).await;
        let many = costs(&server, &*backend, many, 4_000).await;
        for (at, what) in ["a renewal", "an acquire and release", "a check"].iter().enumerate() {
            assert!(many[at] < few[at].max(20) * 10, "{what}: {few:?} µs among few, {many:?} among many");
        }
    }
    drop(backend);
}

/// Thousands of dead holders before a waiter: it is granted when their leases have expired, and their permits are free.
#[tokio::test]
async fn thousands_of_dead_holders_expire() {
    let server = RedisServer::start(&RedisServerConfig::plain());
    let bench = RedisBench::at(&server.url(), "", [server.url()]);
    let (client, backend) = (bench.client().await, bench.connect().await.unwrap());
    let alive = hold(&client.lock("read").mode(Mode::Shared).ttl(LONG_TTL)).await;
    let slots = Mode::Semaphore { permits: 5_001 };
    let slot = hold(&client.lock("slots").mode(slots).ttl(LONG_TTL)).await;
    let ends_in = SHORT * 5;
    let dead = grants(acquire(&*backend, 5_000, "read", Mode::Shared, ends_in).await);
    grants(acquire(&*backend, 5_000, "slots", slots, ends_in).await);
    let writer = enqueue(&client, client.lock("read").ttl(LONG_TTL), "read", 1).await;
    // On a busy machine they may have expired already.
    let next = spawn_waiter(client.lock("slots").mode(slots).ttl(LONG_TTL));
    granted(next).await.release().await.unwrap();
    for name in ["read", "slots"] {
        wait::until("they have expired", async || client.inspect(name).await.unwrap().holders.len() == 1)
            .await;
    }
    alive.release().await.unwrap();
    let writer = granted(writer).await;
    assert!(dead.iter().all(|dead| dead.award.token < writer.token()));
    writer.release().await.unwrap();
    slot.release().await.unwrap();
    assert_clean(&bench).await;
}

/// A waiter behind thousands of dead tickets is granted when the lock is released, not at its next heartbeat.
async fn is_granted_behind_dead_tickets(ttl_of_dead: Duration) {
    const DEAD: usize = 25_000;
    let server = RedisServer::start(&RedisServerConfig::plain());
    let bench = RedisBench::at(&server.url(), "", [server.url()]);
    let (client, dying) = (bench.client().await, bench.connect().await.unwrap());
    let guard = hold(&client.lock("a").ttl(LONG_TTL)).await;
    let tickets = acquire(&*dying, DEAD, "a", Mode::Exclusive, ttl_of_dead).await;
    assert!(tickets.iter().all(|(_, reply)| matches!(reply, Reply::Waiting { .. })));
    let queue = format!("{}:q:a", bench.namespace());
    let next = spawn_waiter(client.lock("a").ttl(LONG_TTL));
    wait::until("it is behind them", async || server.cli(&["ZCARD", &queue]) == (DEAD + 1).to_string()).await;
    dying.close().await;
    drop(dying);
    wait::until("its subscription is gone", async || bench.listeners().await == Some(1)).await;
    if ttl_of_dead < LONG_TTL {
        let keys = || server.cli(&["DBSIZE"]).parse::<usize>().unwrap();
        wait::until("their tickets have expired", async || keys() < 100).await;
    }
    guard.release().await.unwrap();
    // Its own heartbeat would come after the timeout of this test.
    granted(next).await.release().await.unwrap();
    drop(client.lock("a").try_acquire().await.unwrap().expect("all earlier waiters are dead"));
}

/// Scenario 64: a client died with 25,000 tickets, which have not expired yet.
#[tokio::test]
async fn a_waiter_is_granted_behind_thousands_of_tickets_of_a_dead_client() {
    is_granted_behind_dead_tickets(LONG_TTL).await;
}

/// Scenario 64: 25,000 tickets have expired, and are still in the queue.
#[tokio::test]
async fn a_waiter_is_granted_behind_thousands_of_expired_tickets() {
    is_granted_behind_dead_tickets(SHORT * 15).await;
}

/// A thousand tickets are skipped because their client is disconnected. After its reconnect they have their positions again.
#[tokio::test]
async fn a_thousand_skipped_waiters_return_to_their_positions() {
    const SKIPPED: usize = 1_000;
    let bench = RedisBench::plain();
    let (disconnected, other) = (bench.client().await, bench.direct_client().await);
    let guard = hold(&other.lock("a").ttl(LONG_TTL)).await;
    let skipped: Vec<_> = (0..SKIPPED).map(|_| spawn_waiter(disconnected.lock("a").ttl(LONG_TTL))).collect();
    until_queued(&other, "a", SKIPPED).await;
    let second = enqueue(&other, other.lock("a").ttl(LONG_TTL), "a", SKIPPED + 1).await;
    let third = enqueue(&other, other.lock("a").ttl(LONG_TTL), "a", SKIPPED + 2).await;
    bench.wire().cut();
    wait::until("it is not subscribed", async || bench.listeners().await == Some(1)).await;
    guard.release().await.unwrap();
    let second = granted(second).await;
    bench.wire().heal();
    until_queued(&other, "a", SKIPPED + 1).await;
    second.release().await.unwrap();
    for waiter in skipped {
        let guard = granted(waiter).await;
        assert!(!third.is_finished(), "a skipped waiter was overtaken");
        guard.release().await.unwrap();
    }
    granted(third).await.release().await.unwrap();
    assert_clean(&bench).await;
}

/// A lock that clients of an earlier version hold together with this one: they write only the hash, without its index.
#[tokio::test]
async fn holders_of_earlier_versions_count() {
    let server = RedisServer::start(&RedisServerConfig::plain().with_movable_clock());
    let bench = RedisBench::at(&server.url(), "", [server.url()]);
    let (client, backend) = (bench.client().await, bench.connect().await.unwrap());
    let two = Mode::Semaphore { permits: 2 };
    let key = format!("{}:l:a", bench.namespace());
    let now = || server.cli(&["TIME"]).lines().next().unwrap().parse::<u64>().unwrap() * 1000;
    let field = |owner: char, ttl: u64| {
        let owner = owner.to_string().repeat(32);
        let until = now() + ttl;
        (
            owner,
            format!(
                "n2 1700000000000001 {until} {} 0 {ttl} 00000000000000aa 15 {{\"label\":\"old\"}}",
                now()
            ),
        )
    };
    let write = |owner: char, ttl: u64| {
        let (owner, value) = field(owner, ttl);
        server.cli(&["HSET", &key, &owner, &value]);
        server.cli(&["PEXPIRE", &key, &ttl.to_string()]);
    };
    let is_free = async || {
        let ours = client.lock("a").mode(two).ttl(LONG_TTL).try_acquire().await.unwrap();
        ours.is_some()
    };
    let acquired = async || grants(acquire(&*backend, 1, "a", two, LONG_TTL).await).remove(0);
    let release = async |grant: Grant| {
        assert_eq!(backend.execute(vec![Op::Release(grant)]).await.remove(0).unwrap(), Reply::Released);
    };
    // One holder of the earlier version: one permit is left.
    write('a', 3_600_000);
    let ours = acquired().await;
    assert!(!is_free().await);
    // It releases and another one acquires: the number is the same.
    server.cli(&["HDEL", &key, &"a".repeat(32)]);
    write('b', 600_000);
    assert!(!is_free().await);
    assert_eq!(client.inspect("a").await.unwrap().holders.len(), 2);
    release(ours).await;
    let ours = acquired().await;
    assert!(!is_free().await);
    // It renews: the time in the index has passed, and the lease has not expired.
    server.shift_clock(500);
    let renewed = backend.execute(vec![Op::Renew(ours.clone())]).await.remove(0).unwrap();
    assert_eq!(renewed, Reply::NotHeld, "the lease of this version has expired as the clock was set forward");
    write('b', 600_000);
    let ours = acquired().await;
    server.shift_clock(900);
    write('b', 600_000);
    let again = acquired().await;
    assert!(!is_free().await, "the earlier version has renewed, and this version holds the other permit");
    // The clock is set back: no lease is longer than its ttl.
    server.shift_clock(0);
    assert!(!is_free().await);
    server.shift_clock(601);
    assert!(is_free().await, "the lease of the earlier version has expired");
    drop((ours, again));
}
