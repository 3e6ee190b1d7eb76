//! Which flights are plain, on a real server.

use std::sync::Arc;
use std::time::Duration;

use fencepost_core::backend::{Keep, OnBusy, Op, Reply};
use fencepost_core::{Attempt, Award, FencingToken, Grant, LockName, Mode, Options, Owner, Rule, Want};
use fencepost_testkit::servers::mariadb::shared;

use super::backend::connect;
use super::flight::{Flight, Retry};
use super::state::ClientState;
use crate::config::parse;

const TTL: Duration = Duration::from_secs(60);

async fn client() -> Arc<ClientState> {
    let namespace = format!("t_{}", &Owner::random().to_hex()[..7]);
    let config = parse(&format!("{}?namespace={namespace}", shared().url())).unwrap();
    connect(config, &Options::new()).await.unwrap().0
}

fn attempt_of(mode: Mode, names: &[&str]) -> Arc<Attempt> {
    let want = |name: &&str| Want { name: LockName::new(*name).unwrap(), mode };
    Arc::new(Attempt {
        owner: Owner::random(),
        wants: names.iter().map(want).collect(),
        rule: Rule::All,
        ttl: TTL,
        label: "test".into(),
        meta: Arc::new([]),
    })
}

fn attempt(name: &str) -> Arc<Attempt> {
    attempt_of(Mode::Exclusive, &[name])
}

fn acquire(attempt: &Arc<Attempt>) -> Op {
    Op::Acquire { attempt: attempt.clone(), on_busy: OnBusy::Return }
}

fn wait(attempt: &Arc<Attempt>) -> Op {
    Op::Acquire { attempt: attempt.clone(), on_busy: OnBusy::Wait }
}

/// Executes a flight by the rules, and returns its only reply.
async fn decide(client: &ClientState, op: Op) -> Reply {
    let ops = [op];
    let mut flight = Flight::new(client, &ops, &[]);
    let mut lent = client.sessions.take().await.unwrap();
    let mut replies = flight.round(&mut lent).await.unwrap();
    client.sessions.put(lent);
    replies.remove(0).unwrap()
}

/// Acquires a lock, as a plain operation if nothing is stored of it.
async fn hold(client: &ClientState, attempt: &Arc<Attempt>) -> Grant {
    let op = acquire(attempt);
    let reply = match plain(client, std::slice::from_ref(&op)).await {
        Some(mut replies) => replies.remove(0),
        None => decide(client, op).await,
    };
    granted((attempt, reply))
}

/// Executes a flight as a plain one. Returns nothing if it is not; then it has changed nothing.
async fn plain(client: &ClientState, ops: &[Op]) -> Option<Vec<Reply>> {
    let mut flight = Flight::new(client, ops, &[]);
    let mut lent = client.sessions.take().await.unwrap();
    let plain = flight.plain(&lent)?;
    let replies = flight.execute_plain(&mut lent, &plain).await;
    if replies.is_err() {
        lent.session.run("ROLLBACK", TTL).await.unwrap();
    }
    client.sessions.put(lent);
    match replies {
        Ok(replies) => Some(replies.into_iter().map(|reply| reply.unwrap()).collect()),
        Err(Retry::Again) => None,
        Err(other) => panic!("{other:?}"),
    }
}

/// Returns how many rows the tables of locks, holders, tickets and cells have.
async fn rows(client: &ClientState) -> [i64; 4] {
    use fencepost_sql::Row;
    let tables = [&client.tables.locks, &client.tables.holders, &client.tables.tickets, &client.tables.cells];
    let sql = tables.map(|table| format!("SELECT COUNT(*) FROM {table}")).join("; ");
    let sets = client.query(&sql).await.unwrap();
    std::array::from_fn(|at| sets[at][0].integer(0).unwrap())
}

#[tokio::test]
async fn a_lock_of_which_nothing_is_stored_is_acquired_renewed_and_released() {
    let client = client().await;
    let attempts =
        [attempt("a"), attempt_of(Mode::Shared, &["b"]), attempt_of(Mode::Semaphore { permits: 3 }, &["c"])];
    let mut newest = 0;
    for _ in 0..3 {
        let replies = plain(&client, &attempts.each_ref().map(acquire)).await.unwrap();
        let grants: Vec<Grant> = attempts.iter().zip(replies).map(granted).collect();
        for grant in &grants {
            assert!(grant.award.token.get() > newest, "{grant:?}");
            newest = grant.award.token.get();
        }
        assert_eq!(rows(&client).await, [3, 3, 0, 0]);
        let renewals: Vec<Op> = grants.iter().cloned().map(Op::Renew).collect();
        assert_eq!(plain(&client, &renewals).await.unwrap(), vec![Reply::Renewed { ttl: TTL }; 3]);
        let releases: Vec<Op> = grants.into_iter().map(Op::Release).collect();
        assert_eq!(plain(&client, &releases).await.unwrap(), vec![Reply::Released; 3]);
        assert_eq!(rows(&client).await, [0; 4]);
    }
}

/// What the rules decide about a lock that a plain acquire was granted, and the other way round.
#[tokio::test]
async fn plain_operations_and_the_rules_take_turns() {
    let client = client().await;
    let grant = hold(&client, &attempt("a")).await;
    assert_eq!(decide(&client, acquire(&attempt("a"))).await, Reply::Busy);
    assert_eq!(decide(&client, Op::Renew(grant.clone())).await, Reply::Renewed { ttl: TTL });
    forget_busy(&client);
    assert_eq!(plain(&client, &[Op::Release(grant.clone())]).await, Some(vec![Reply::Released]));
    let attempt_of_next = attempt("a");
    let next = granted((&attempt_of_next, decide(&client, acquire(&attempt_of_next)).await));
    assert!(next.award.token > grant.award.token);
    assert_eq!(plain(&client, &[acquire(&attempt("a"))]).await, None);
    // Nothing but the holder is stored, whatever has decided it; and what is released can be acquired at once.
    assert_eq!(plain(&client, &[Op::Release(next)]).await, Some(vec![Reply::Released]));
    assert_eq!(rows(&client).await, [0; 4]);
    assert!(plain(&client, &[acquire(&attempt("a"))]).await.is_some());
}

/// Flights have operations of all kinds: each is plain for itself.
#[tokio::test]
async fn acquires_releases_and_renewals_are_executed_together() {
    let client = client().await;
    let (released, renewed, acquired) = (
        hold(&client, &attempt("b")).await,
        hold(&client, &attempt("c")).await,
        [attempt("a"), attempt("d")],
    );
    let ops = [acquire(&acquired[0]), Op::Release(released), Op::Renew(renewed), acquire(&acquired[1])];
    let replies = plain(&client, &ops).await.unwrap();
    assert_eq!(replies[1..3], [Reply::Released, Reply::Renewed { ttl: TTL }]);
    let [first, last] = [0, 3].map(|at| granted((&acquired[at / 3], replies[at].clone())).award.token);
    assert!(last > first);
    assert_eq!(rows(&client).await, [3, 3, 0, 0]);
}

fn granted((attempt, reply): (&Arc<Attempt>, Reply)) -> Grant {
    match reply {
        Reply::Granted(award) => Grant { attempt: attempt.clone(), award },
        other => panic!("{other:?}"),
    }
}

/// What is stored of a lock makes its operations not plain: they change nothing, nor do those of other locks in the same flight.
#[tokio::test]
async fn what_is_in_use_is_left_to_the_rules() {
    let client = client().await;
    let held = hold(&client, &attempt("held")).await;
    let reader = hold(&client, &attempt_of(Mode::Shared, &["read"])).await;
    hold(&client, &attempt_of(Mode::Shared, &["read"])).await;
    let awaited = hold(&client, &attempt("awaited")).await;
    client.poller.set_ready(true);
    assert!(matches!(decide(&client, wait(&attempt("awaited"))).await, Reply::Waiting { .. }));
    let with_cell = hold(&client, &attempt("cell")).await;
    let name = with_cell.attempt.wants[0].name.clone();
    let write = Op::WriteCell { grant: with_cell.clone(), name, bytes: [1].into(), keep: Keep::Always };
    assert_eq!(decide(&client, write).await, Reply::Written);
    let others = Grant { attempt: attempt("held"), ..held.clone() };
    let stale = Award { token: FencingToken::new(held.award.token.get() - 1), ..held.award };
    let stale = Grant { attempt: held.attempt.clone(), award: stale };
    let before = rows(&client).await;
    for op in [
        acquire(&attempt("held")),
        acquire(&attempt_of(Mode::Shared, &["read"])),
        acquire(&attempt("cell")),
        Op::Release(reader),
        Op::Release(awaited),
        Op::Release(with_cell),
        Op::Release(others.clone()),
        Op::Release(stale.clone()),
        Op::Renew(others),
        Op::Renew(stale),
    ] {
        let text = format!("{op:?}");
        forget_busy(&client);
        assert_eq!(plain(&client, std::slice::from_ref(&op)).await, None, "{text}");
        forget_busy(&client);
        assert_eq!(plain(&client, &[acquire(&attempt("free")), op]).await, None, "{text}");
        assert_eq!(rows(&client).await, before, "{text}");
    }
    assert_eq!(plain(&client, &[Op::Release(held)]).await, Some(vec![Reply::Released]));
}

/// An acquire that arrives after its sender has left must not be granted.
#[tokio::test]
async fn an_attempt_with_a_tombstone_is_not_granted() {
    let client = client().await;
    let (left, other) = (attempt("a"), attempt("b"));
    assert_eq!(decide(&client, Op::Leave(left.clone())).await, Reply::Left);
    forget_busy(&client);
    assert_eq!(plain(&client, &[acquire(&left), acquire(&other)]).await, None);
    assert_eq!(rows(&client).await, [0; 4]);
    assert!(plain(&client, &[acquire(&other), acquire(&attempt("a"))]).await.is_some());
}

#[tokio::test]
async fn an_expired_lease_is_neither_renewed_nor_released() {
    let client = client().await;
    let grant = hold(&client, &attempt("a")).await;
    client.query(&format!("UPDATE {} SET until_ns = 1", client.tables.holders)).await.unwrap();
    for op in [Op::Renew(grant.clone()), Op::Release(grant)] {
        assert_eq!(plain(&client, &[op]).await, None);
    }
}

/// Flights whose operations depend on each other, or that may have been sent before, are decided by the rules.
#[tokio::test]
async fn flights_that_are_not_tried() {
    let client = client().await;
    let grant = hold(&client, &attempt("a")).await;
    let (sent, again) = (attempt("c"), attempt("c"));
    client.sent.send(&[acquire(&sent)], client.now());
    for ops in [
        vec![Op::Release(grant.clone()), acquire(&attempt("a"))],
        vec![Op::Renew(grant.clone()), Op::Release(grant.clone())],
        vec![acquire(&attempt_of(Mode::Exclusive, &["d", "e"]))],
        vec![acquire(&sent)],
        vec![Op::Check(again.clone())],
        vec![],
    ] {
        let flight = Flight::new(&client, &ops, &[]);
        let lent = client.sessions.take().await.unwrap();
        assert!(flight.plain(&lent).is_none(), "{ops:?}");
        client.sessions.put(lent);
    }
    let readers = [attempt_of(Mode::Shared, &["read"]), attempt_of(Mode::Shared, &["read"])];
    let renewals = [hold(&client, &readers[0]).await, hold(&client, &readers[1]).await].map(Op::Renew);
    forget_busy(&client);
    assert!(plain(&client, &renewals).await.is_some(), "renewals of one lock do not depend on each other");
    // After a try that found the lock held, the next one does not expect it to be free.
    assert!(plain(&client, &[acquire(&again)]).await.is_some());
    assert_eq!(decide(&client, acquire(&attempt("c"))).await, Reply::Busy);
    let ops = [acquire(&attempt("c"))];
    let lent = client.sessions.take().await.unwrap();
    assert!(Flight::new(&client, &ops, &[]).plain(&lent).is_none());
}

/// Forgets which locks were in use: the server decides again.
fn forget_busy(client: &ClientState) {
    for name in ["held", "read", "awaited", "cell", "a", "b"] {
        let name = LockName::new(name).unwrap();
        client.busy.remove(&name);
        client.held.remove(&name);
    }
}
