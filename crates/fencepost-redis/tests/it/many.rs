//! Thousands of holders of one lock, and thousands of dead tickets: what each call costs, and that live waiters enter.

use std::sync::Arc;
use std::time::Duration;

use fencepost_core::backend::{Backend, OnBusy, Op, Reply};
use fencepost_core::{Attempt, Grant, LockName, Mode, Owner, Rule, Want};
use fencepost_testkit::servers::redis::{RedisServer, RedisServerConfig};
use fencepost_testkit::suite::assert_clean;
use fencepost_testkit::{TestBench, WireBench, wait};

use crate::actions::{LONG_TTL, SHORT, enqueue, granted, hold, spawn_waiter, until_queued};
use crate::bench::RedisBench;

/// How many operations travel in one flight of these tests.
const FLIGHT: usize = 128;

fn attempt(name: &str, mode: Mode, ttl: Duration) -> Arc<Attempt> {
    let wants = vec![Want { name: LockName::new(name).unwrap(), mode }];
    let (owner, label, meta) = (Owner::random(), "bare".into(), [].into());
    Arc::new(Attempt { owner, wants, rule: Rule::All, ttl, label, meta })
}

/// Sends so many acquires; what came of each.
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
        // On a busy machine an answer may come too late; to send it again is harmless.
        let mut answers = backend.execute(ops.clone()).await;
        while answers.iter().any(Result::is_err) {
            answers = backend.execute(ops.clone()).await;
        }
        replies.extend(answers.into_iter().flatten());
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

/// The microseconds that the server has spent in scripts.
fn spent(server: &RedisServer) -> usize {
    let stats = server.cli(&["INFO", "commandstats"]);
    let line = stats.lines().find(|line| line.starts_with("cmdstat_evalsha:")).unwrap_or_default();
    let spent = line.split(',').find_map(|part| part.strip_prefix("usec="));
    spent.map_or(0, |spent| spent.parse().expect("it is a number"))
}

/// What each of these operations costs the server, in microseconds: a renewal, the check of a waiter, and to come and go.
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
        let come = grants(acquire(backend, 1, &name, mode, LONG_TTL).await).remove(0);
        assert_eq!(backend.execute(vec![Op::Release(come)]).await.remove(0).unwrap(), Reply::Released);
    }
    let turn = (spent(server) - before) / ROUNDS;
    // With slots a writer would be a contradiction: one that wants as many as there are waits.
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
    [renewal, turn, check]
}

/// Scenario 63: what a holder costs the server does not depend on how many others hold the lock with it. The bound is ten
/// times, and it used to be far more.
#[tokio::test]
async fn a_renewal_costs_the_same_among_thousands() {
    let server = RedisServer::start(&RedisServerConfig::plain());
    let bench = RedisBench::at(&server.url(), "", [server.url()]);
    let backend = bench.connect().await.unwrap();
    let slots = |permits| Mode::Semaphore { permits };
    for (few, many) in [(Mode::Shared, Mode::Shared), (slots(30), slots(4_010))] {
        let few = costs(&server, &*backend, few, 20).await;
        let many = costs(&server, &*backend, many, 4_000).await;
        for (at, what) in ["a renewal", "a turn", "a check"].iter().enumerate() {
            assert!(many[at] < few[at].max(20) * 10, "{what}: {few:?} µs among few, {many:?} among many");
        }
    }
    drop(backend);
}

/// Thousands of dead holders before a waiter: it enters when their leases have ended, and the slots of the dead are free.
#[tokio::test]
async fn thousands_of_dead_holders_make_room() {
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
    // On a busy machine they may have ended already.
    let next = spawn_waiter(client.lock("slots").mode(slots).ttl(LONG_TTL));
    granted(next).await.release().await.unwrap();
    for name in ["read", "slots"] {
        wait::until("they have ended", async || client.inspect(name).await.unwrap().holders.len() == 1).await;
    }
    alive.release().await.unwrap();
    let writer = granted(writer).await;
    assert!(dead.iter().all(|dead| dead.award.token < writer.token()));
    writer.release().await.unwrap();
    slot.release().await.unwrap();
    assert_clean(&bench).await;
}

/// A waiter behind so many dead tickets enters when the lock is released, and not when its heartbeat looks again.
async fn enters_behind_the_dead(ttl_of_the_dead: Duration) {
    const DEAD: usize = 25_000;
    let server = RedisServer::start(&RedisServerConfig::plain());
    let bench = RedisBench::at(&server.url(), "", [server.url()]);
    let (client, dying) = (bench.client().await, bench.connect().await.unwrap());
    let guard = hold(&client.lock("a").ttl(LONG_TTL)).await;
    let tickets = acquire(&*dying, DEAD, "a", Mode::Exclusive, ttl_of_the_dead).await;
    assert!(tickets.iter().all(|(_, reply)| matches!(reply, Reply::Waiting { .. })));
    let queue = format!("{}:q:a", bench.namespace());
    let next = spawn_waiter(client.lock("a").ttl(LONG_TTL));
    wait::until("it stands behind them", async || server.cli(&["ZCARD", &queue]) == (DEAD + 1).to_string())
        .await;
    dying.close().await;
    drop(dying);
    wait::until("the server knows of the death", async || bench.listeners().await == Some(1)).await;
    if ttl_of_the_dead < LONG_TTL {
        let alive = || server.cli(&["DBSIZE"]).parse::<usize>().unwrap();
        wait::until("their tickets have ended", async || alive() < 100).await;
    }
    guard.release().await.unwrap();
    // Its own heartbeat would come too late for the patience of this test.
    granted(next).await.release().await.unwrap();
    drop(client.lock("a").try_acquire().await.unwrap().expect("all before it are dead"));
}

/// Scenario 64: a client died with 25,000 tickets, which live on for a while.
#[tokio::test]
async fn a_waiter_enters_behind_thousands_whose_client_died() {
    enters_behind_the_dead(LONG_TTL).await;
}

/// Scenario 64: 25,000 tickets have ended, and still stand in the queue.
#[tokio::test]
async fn a_waiter_enters_behind_thousands_of_tickets_that_ended() {
    enters_behind_the_dead(SHORT * 15).await;
}

/// A thousand tickets are passed over because their client is away. When it is back they are in their places again.
#[tokio::test]
async fn a_crowd_that_was_passed_over_comes_back_to_its_places() {
    const CROWD: usize = 1_000;
    let bench = RedisBench::plain();
    let (away, other) = (bench.client().await, bench.direct_client().await);
    let guard = hold(&other.lock("a").ttl(LONG_TTL)).await;
    let crowd: Vec<_> = (0..CROWD).map(|_| spawn_waiter(away.lock("a").ttl(LONG_TTL))).collect();
    until_queued(&other, "a", CROWD).await;
    let second = enqueue(&other, other.lock("a").ttl(LONG_TTL), "a", CROWD + 1).await;
    let third = enqueue(&other, other.lock("a").ttl(LONG_TTL), "a", CROWD + 2).await;
    bench.wire().cut();
    wait::until("it does not listen", async || bench.listeners().await == Some(1)).await;
    guard.release().await.unwrap();
    let second = granted(second).await;
    bench.wire().heal();
    until_queued(&other, "a", CROWD + 1).await;
    second.release().await.unwrap();
    for waiter in crowd {
        let guard = granted(waiter).await;
        assert!(!third.is_finished(), "the crowd was overtaken");
        guard.release().await.unwrap();
    }
    granted(third).await.release().await.unwrap();
    assert_clean(&bench).await;
}

/// A lock that earlier versions hold together with this one: they write the hash alone, without its index.
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
    let taken = async || grants(acquire(&*backend, 1, "a", two, LONG_TTL).await).remove(0);
    let give_back = async |grant: Grant| {
        assert_eq!(backend.execute(vec![Op::Release(grant)]).await.remove(0).unwrap(), Reply::Released);
    };
    // One of theirs is there: one slot is left.
    write('a', 3_600_000);
    let ours = taken().await;
    assert!(!is_free().await);
    // One leaves and another comes: the number is the same.
    server.cli(&["HDEL", &key, &"a".repeat(32)]);
    write('b', 600_000);
    assert!(!is_free().await);
    assert_eq!(client.inspect("a").await.unwrap().holders.len(), 2);
    give_back(ours).await;
    let ours = taken().await;
    assert!(!is_free().await);
    // It renews: what the index knows is over, and the lease is not.
    server.shift_clock(500);
    let renewed = backend.execute(vec![Op::Renew(ours.clone())]).await.remove(0).unwrap();
    assert_eq!(renewed, Reply::NotHeld, "our own lease has ended with the clock");
    write('b', 600_000);
    let ours = taken().await;
    server.shift_clock(900);
    write('b', 600_000);
    let again = taken().await;
    assert!(!is_free().await, "theirs is renewed, and ours is there");
    // The clock is set back: no lease is longer than its ttl.
    server.shift_clock(0);
    assert!(!is_free().await);
    server.shift_clock(601);
    assert!(is_free().await, "theirs has ended");
    drop((ours, again));
}
