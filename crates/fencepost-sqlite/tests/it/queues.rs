//! The queue that a client caches equals the one in the file, for every process that reads it.

use std::sync::Arc;
use std::time::Duration;

use fencepost_core::backend::{Backend, OnBusy, Op, Reply};
use fencepost_core::lock_table::FIRST_WAITERS;
use fencepost_core::{Attempt, Grant, LockName, Mode, Owner, Rule, Want};
use fencepost_testkit::{TestBench, wait};

use crate::bench::SqliteBench;

const LONG: Duration = Duration::from_secs(120);
const SHORT: Duration = Duration::from_millis(100);

fn attempt(name: &str, mode: Mode, ttl: Duration) -> Arc<Attempt> {
    Arc::new(Attempt {
        owner: Owner::random(),
        wants: vec![Want { name: LockName::new(name).unwrap(), mode }],
        rule: Rule::All,
        ttl,
        label: "test".into(),
        meta: [].into(),
    })
}

async fn execute(backend: &Arc<dyn Backend>, op: Op) -> Reply {
    backend.execute(vec![op]).await.remove(0).unwrap()
}

async fn enqueue(backend: &Arc<dyn Backend>, attempt: &Arc<Attempt>) -> Reply {
    execute(backend, Op::Acquire { attempt: attempt.clone(), on_busy: OnBusy::Wait }).await
}

async fn hold(backend: &Arc<dyn Backend>, attempt: &Arc<Attempt>) -> Grant {
    match enqueue(backend, attempt).await {
        Reply::Granted(award) => Grant { attempt: attempt.clone(), award },
        other => panic!("{other:?}"),
    }
}

/// Adds waiters whose client is dead and whose tickets have not expired.
async fn dead_waiters(bench: &SqliteBench, count: usize, mode: Mode) {
    let dead = bench.connect().await.unwrap();
    for _ in 0..count {
        let waiter = attempt("a", mode, LONG);
        assert!(matches!(enqueue(&dead, &waiter).await, Reply::Waiting { .. }));
    }
    drop(dead);
}

async fn until_tickets(bench: &SqliteBench, count: usize) {
    wait::until(&format!("{count} tickets"), async || bench.count("tickets") == count).await;
}

#[tokio::test]
async fn a_waiter_for_any_of_two_leaves_both_queues() {
    let bench = SqliteBench::new();
    let (ours, theirs) = (bench.client().await, bench.client().await);
    let a = ours.lock("a").ttl(LONG).acquire().await.unwrap();
    let b = ours.lock("b").ttl(LONG).acquire().await.unwrap();
    let lock = theirs.lock_any(["a", "b"]).ttl(LONG);
    let waiter = tokio::spawn(async move { lock.acquire().await });
    until_tickets(&bench, 2).await;
    a.release().await.unwrap();
    let guard = wait::within_timeout("the lock", waiter).await.unwrap().unwrap();
    assert_eq!(guard.name().as_str(), "a");
    assert_eq!(bench.count("tickets"), 0);
    guard.release().await.unwrap();
    b.release().await.unwrap();
    assert_eq!(bench.count("holders"), 0);
}

#[tokio::test]
async fn an_owner_that_is_granted_again_has_its_new_token_in_the_file() {
    let bench = SqliteBench::new();
    let (ours, theirs) = (bench.connect().await.unwrap(), bench.connect().await.unwrap());
    let me = attempt("a", Mode::Exclusive, SHORT);
    let first = hold(&ours, &me).await;
    wait::elapse(SHORT).await;
    let second = hold(&ours, &me).await;
    assert!(second.award.token > first.award.token);
    // Another process writes, so that the file is read again.
    hold(&theirs, &attempt("z", Mode::Exclusive, LONG)).await;
    let token: u32 = bench
        .driver()
        .query_row(
            "SELECT token = ?1 FROM holders WHERE name = 'a'",
            [second.award.token.get().cast_signed()],
            |row| row.get(0),
        )
        .unwrap();
    assert_eq!(token, 1);
}

#[tokio::test]
async fn an_owner_that_is_queued_again_has_one_ticket() {
    let bench = SqliteBench::new();
    let (ours, theirs) = (bench.connect().await.unwrap(), bench.connect().await.unwrap());
    hold(&theirs, &attempt("a", Mode::Exclusive, LONG)).await;
    let me = attempt("a", Mode::Exclusive, SHORT);
    enqueue(&ours, &me).await;
    wait::elapse(SHORT).await;
    assert!(matches!(enqueue(&ours, &me).await, Reply::Waiting { .. }));
    assert_eq!(bench.count("tickets"), 1);
}

#[tokio::test]
async fn a_live_waiter_does_not_wait_for_the_tickets_of_dead_ones() {
    let bench = SqliteBench::new();
    let (ours, theirs) = (bench.client().await, bench.client().await);
    let guard = ours.lock("a").ttl(LONG).acquire().await.unwrap();
    dead_waiters(&bench, 40, Mode::Exclusive).await;
    let lock = theirs.lock("a").ttl(LONG);
    let waiter = tokio::spawn(async move { lock.acquire().await });
    until_tickets(&bench, 41).await;
    guard.release().await.unwrap();
    let guard = wait::within_timeout("the lock", waiter).await.unwrap().unwrap();
    assert!(ours.lock("a").try_acquire().await.unwrap().is_none());
    drop(guard);
}

#[tokio::test]
async fn a_dead_writer_in_the_queue_does_not_block_a_reader() {
    let bench = SqliteBench::new();
    let (ours, theirs) = (bench.client().await, bench.client().await);
    let reading = ours.lock("a").mode(Mode::Shared).ttl(LONG).acquire().await.unwrap();
    dead_waiters(&bench, 1, Mode::Exclusive).await;
    let lock = theirs.lock("a").mode(Mode::Shared).ttl(LONG);
    drop(wait::within_timeout("the lock", lock.acquire()).await.unwrap());
    drop(reading);
}

/// A queue of ten thousand is not read to find the successor. Here a ticket at its end is unreadable.
#[tokio::test]
async fn a_release_and_a_leave_read_the_first_waiters_only() {
    let bench = SqliteBench::new();
    let (ours, theirs) = (bench.connect().await.unwrap(), bench.connect().await.unwrap());
    let grant = hold(&ours, &attempt("a", Mode::Exclusive, LONG)).await;
    let waiters: Vec<_> = (0..2 * FIRST_WAITERS).map(|_| attempt("a", Mode::Exclusive, LONG)).collect();
    for waiter in &waiters {
        assert!(matches!(enqueue(&theirs, waiter).await, Reply::Waiting { .. }));
    }
    let unreadable = "INSERT INTO tickets SELECT name, seq + 1, randomblob(16), ttl_ns, until_ns, clock, since_ms, \
         client, rule, '0 ' || char(1), label, meta FROM tickets ORDER BY seq DESC LIMIT 1";
    let driver = bench.driver();
    assert_eq!(driver.execute(unreadable, []).unwrap(), 1);
    assert!(ours.inspect(&LockName::new("a").unwrap()).await.is_err(), "the row can be read");
    assert_eq!(execute(&ours, Op::Release(grant)).await, Reply::Released);
    let holder =
        || driver.query_row("SELECT owner FROM holders", [], |row| row.get::<_, [u8; 16]>(0)).unwrap();
    assert_eq!(holder(), waiters[0].owner.to_bytes());
    let [.., last] = &waiters[..] else { panic!("there are some") };
    assert_eq!(execute(&theirs, Op::Leave(last.clone())).await, Reply::Left);
    assert_eq!(bench.count("tickets"), waiters.len() - 1);
}

/// Rows of another boot are read in every sweep; they must not exhaust its limit.
#[tokio::test]
async fn the_sweep_reaches_all_rows() {
    let bench = SqliteBench::new();
    let client = bench.client().await;
    let driver = bench.driver();
    for number in 0..600 {
        let week = 7i64 * 86_400_000_000_000;
        driver
            .execute(
                "INSERT INTO cells (name, token, keep, keep_ns, until_ns, clock, bytes) VALUES (?1, 1, 1, ?2, 5, 77, x'00')",
                rusqlite::params![format!("cell/{number:03}"), week],
            )
            .unwrap();
    }
    let clock: i64 = {
        let guard = client.lock("b").acquire().await.unwrap();
        let clock = driver.query_row("SELECT clock FROM holders", [], |row| row.get(0)).unwrap();
        guard.release().await.unwrap();
        clock
    };
    driver
        .execute(
            "INSERT INTO holders VALUES ('z', x'00112233445566778899aabbccddeeff', 1, 0, 1, 1, ?1, 1, 1, NULL, 0, '', '')",
            [clock],
        )
        .unwrap();
    wait::until("the expired holder to be removed", async || {
        driver.execute("UPDATE storage SET swept_ns = 0", []).unwrap();
        client.lock("other").acquire().await.unwrap().release().await.unwrap();
        bench.count("holders") == 0
    })
    .await;
}
