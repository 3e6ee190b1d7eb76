//! Parts that the suite does not reach, on a real server.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use fencepost_core::backend::{OnBusy, Op, Reply};
use fencepost_core::{Attempt, Backend, Client, LockName, Mode, Options, Owner, Result, Rule, Want};
use fencepost_testkit::actions::{LONG_TTL, granted, hold, spawn_waiter, until_idle, until_queued};
use fencepost_testkit::servers::mariadb::shared;

use super::backend::open_with;
use crate::config::{Config, parse};

fn config() -> Config {
    let namespace = format!("t_{}", &Owner::random().to_hex()[..7]);
    parse(&format!("{}?mode=named&namespace={namespace}", shared().url())).unwrap()
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
    const ROUNDS: u64 = 40;
    let config = config();
    let counter = Arc::new(AtomicU64::new(0));
    let mut tasks = Vec::new();
    for wait in 1..=4 {
        let (client, counter) = (client(&config, Duration::from_millis(wait)).await, counter.clone());
        tasks.push(tokio::spawn(async move {
            let mut last = None;
            for _ in 0..ROUNDS {
                let guard = client.lock("counter").ttl(LONG_TTL).acquire().await.unwrap();
                assert!(last < Some(guard.token()), "tokens grow");
                last = Some(guard.token());
                let seen = counter.load(Ordering::Relaxed);
                tokio::time::timeout(Duration::from_millis(2), std::future::pending::<()>())
                    .await
                    .unwrap_err();
                counter.store(seen + 1, Ordering::Relaxed);
                guard.release().await.unwrap();
            }
        }));
    }
    for task in tasks {
        task.await.unwrap();
    }
    assert_eq!(counter.load(Ordering::Relaxed), 4 * ROUNDS);
    let client = client(&config, Duration::from_secs(1)).await;
    assert!(client.inspect("counter").await.unwrap().is_idle());
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
        let (released, ()) = tokio::join!(guard.release(), async { waiter.abort() });
        released.unwrap();
        until_idle(&ours, "a").await;
    }
    let guard = hold(&theirs.lock("b").ttl(LONG_TTL)).await;
    let waiter = spawn_waiter(ours.lock("b").ttl(LONG_TTL));
    until_queued(&theirs, "b", 1).await;
    guard.release().await.unwrap();
    granted(waiter).await.release().await.unwrap();
    // A connection that could not be interrupted in time was closed: the sweep removes its row, and no other is left.
    theirs.sweep().await.unwrap();
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
        let attempt = Arc::new(Attempt {
            owner: Owner::random(),
            wants: vec![Want { name: LockName::new("a").unwrap(), mode: Mode::Exclusive }],
            rule: Rule::All,
            ttl: LONG_TTL,
            label: "test".into(),
            meta: Arc::new([]),
        });
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
