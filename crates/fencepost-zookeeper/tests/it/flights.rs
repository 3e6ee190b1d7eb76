//! Requests that overtake each other, and nodes that almost belong to an attempt: an attempt has one node, and none
//! after it has left.

use std::future::poll_fn;
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use fencepost_core::backend::{OnBusy, Op, Reply, Wakeup};
use fencepost_core::{
    Attempt, Backend, ErrorKind, FencingToken, Grant, LockName, Mode, Owner, Result, Rule, Want,
};
use fencepost_testkit::suite::assert_clean;
use fencepost_testkit::wait;
use fencepost_testkit::{TestBench, WireBench};
use futures_util::StreamExt;
use zookeeper_client::{Acl, Acls, AuthId, CreateMode, Permission};

use crate::actions::{LONG_TTL, SHORT_TTL, connect};
use crate::bench::ZooKeeperBench;

fn attempt(names: &[String]) -> Arc<Attempt> {
    attempt_by(Rule::All, names, SHORT_TTL * 4)
}

fn attempt_by(rule: Rule, names: &[String], ttl: Duration) -> Arc<Attempt> {
    let want = |name: &String| Want { name: LockName::new(name).unwrap(), mode: Mode::Exclusive };
    Arc::new(Attempt {
        owner: Owner::random(),
        wants: names.iter().map(want).collect(),
        rule,
        ttl,
        label: "bare".into(),
        meta: [].into(),
    })
}

async fn acquire(backend: &dyn Backend, attempt: &Arc<Attempt>) -> Result<Reply> {
    backend.execute(vec![Op::Acquire { attempt: attempt.clone(), on_busy: OnBusy::Wait }]).await.remove(0)
}

async fn leave(backend: &dyn Backend, attempt: &Arc<Attempt>) -> Result<Reply> {
    backend.execute(vec![Op::Leave(attempt.clone())]).await.remove(0)
}

/// Two sends of one attempt wait for the session and get it at the same time.
#[tokio::test]
async fn two_sends_of_one_attempt_make_one_node() {
    let bench = ZooKeeperBench::plain();
    let (backend, driver) = (bench.connect().await.unwrap(), bench.driver().await);
    let attempt = attempt(&["a".to_owned()]);
    let (first, second) = futures_util::join!(acquire(&*backend, &attempt), acquire(&*backend, &attempt));
    for reply in [first, second] {
        match reply {
            Ok(reply) => assert!(matches!(reply, Reply::Granted(_)), "{reply:?}"),
            Err(error) => assert_eq!(error.kind(), ErrorKind::OutcomeUnknown),
        }
    }
    assert_eq!(bench.contenders(&driver, "a").await.len(), 1);
    assert!(matches!(acquire(&*backend, &attempt).await, Ok(Reply::Granted(_))));
    backend.close().await;
    assert_clean(&bench).await;
}

/// A watch reports that a grant was broken while its owner acquires again: the acquire sees the old grant or gets a new
/// one, and does not fail.
#[tokio::test]
async fn an_acquire_succeeds_while_a_watch_reports_the_broken_grant() {
    let bench = ZooKeeperBench::plain();
    let (backend, other) = (bench.connect().await.unwrap(), bench.connect().await.unwrap());
    let mut pushes = backend.wakeups();
    let attempts: Vec<_> =
        (0..100).map(|at| attempt_by(Rule::All, &[format!("lock {at}")], LONG_TTL)).collect();
    let mut tokens = Vec::new();
    for attempt in &attempts {
        tokens.push(granted_token(acquire(&*backend, attempt).await.unwrap()));
    }
    let break_lock = async |at: usize| {
        let name = attempts[at].wants[0].name.clone();
        let reply = other.execute(vec![Op::Break { name, token: tokens[at] }]).await.remove(0);
        assert_eq!(reply.unwrap(), Reply::Released);
    };
    // Watches are set in the order of the grants: once the last one reports, all others are set.
    let last = attempts.len() - 1;
    break_lock(last).await;
    let reported = async { while !matches!(pushes.next().await, Some(Wakeup::Lost { .. })) {} };
    wait::within_timeout("the watch of the last grant reports", reported).await;
    for at in 0..last {
        let acquire_again =
            async { while granted_token(acquire(&*backend, &attempts[at]).await.unwrap()) == tokens[at] {} };
        futures_util::join!(break_lock(at), acquire_again);
    }
    backend.close().await;
    other.close().await;
    assert_clean(&bench).await;
}

fn granted_token(reply: Reply) -> FencingToken {
    match reply {
        Reply::Granted(award) => award.token,
        other => panic!("not granted: {other:?}"),
    }
}

/// An attempt that leaves while its session is opened creates no node afterwards.
#[tokio::test]
async fn an_attempt_that_left_before_its_session_opened_makes_no_node() {
    let bench = ZooKeeperBench::plain();
    let (backend, driver) = (bench.connect().await.unwrap(), bench.driver().await);
    let attempt = attempt(&["a".to_owned()]);
    let (acquired, left) = futures_util::join!(acquire(&*backend, &attempt), leave(&*backend, &attempt));
    assert_eq!((acquired.unwrap(), left.unwrap()), (Reply::Busy, Reply::Left));
    assert_eq!(bench.contenders(&driver, "a").await, Vec::<String>::new());
    backend.close().await;
}

/// Polls a future this many times, each time that it is woken, and drops it. Returns whether it completed.
async fn completes_within(polls: usize, future: impl Future) -> bool {
    let (mut future, mut left) = (pin!(future), polls);
    poll_fn(|cx| match left.checked_sub(1) {
        None => Poll::Ready(false),
        Some(rest) => {
            left = rest;
            let is_ready = future.as_mut().poll(cx).is_ready();
            if is_ready || rest == 0 { Poll::Ready(is_ready) } else { Poll::Pending }
        }
    })
    .await
}

/// An acquire is dropped at every await point and sent again: it has one node for each name, and holds. Or the attempt
/// leaves, and has none.
#[tokio::test]
async fn a_dropped_acquire_can_be_sent_again_or_left() {
    let bench = ZooKeeperBench::plain();
    let (backend, driver) = (bench.connect().await.unwrap(), bench.driver().await);
    for names in [&["a"][..], &["a", "b"]] {
        let names: Vec<String> = names.iter().map(ToString::to_string).collect();
        for polls in 0.. {
            let attempts = [attempt(&names), attempt(&names)];
            let dropped = attempts.clone().map(|attempt| {
                let backend = backend.clone();
                async move { completes_within(polls, acquire(&*backend, &attempt)).await }
            });
            let [is_ready, _] = futures_util::future::join_all(dropped).await[..] else { panic!("two") };
            let [again, leaving] = attempts;
            let left = leave(&*backend, &leaving).await.unwrap();
            if let Reply::AlreadyGranted(award) = left {
                let grant = Grant { attempt: leaving, award };
                let released = backend.execute(vec![Op::Release(grant)]).await.remove(0);
                assert_eq!(released.unwrap(), Reply::Released);
            }
            let reply = acquire(&*backend, &again).await.unwrap();
            let Reply::Granted(award) = reply else { panic!("after {polls} polls: {reply:?}") };
            for name in &names {
                assert_eq!(bench.contenders(&driver, name).await.len(), 1, "after {polls} polls");
            }
            let released =
                backend.execute(vec![Op::Release(Grant { attempt: again, award })]).await.remove(0);
            assert_eq!(released.unwrap(), Reply::Released);
            if is_ready {
                break;
            }
        }
    }
    backend.close().await;
    assert_clean(&bench).await;
}

/// A check that chooses one of several locks is dropped at every await point: the next check is granted, and one node
/// is left.
#[tokio::test]
async fn a_dropped_check_does_not_lose_its_turn() {
    let bench = ZooKeeperBench::plain();
    let (backend, driver) = (bench.connect().await.unwrap(), bench.driver().await);
    let names = ["a".to_owned(), "b".to_owned()];
    for polls in 0.. {
        let holder = attempt(&names);
        let Ok(Reply::Granted(award)) = acquire(&*backend, &holder).await else { panic!("it is free") };
        let any = attempt_by(Rule::Any, &names, SHORT_TTL * 4);
        assert!(matches!(acquire(&*backend, &any).await, Ok(Reply::Waiting { .. })));
        let released = backend.execute(vec![Op::Release(Grant { attempt: holder, award })]).await.remove(0);
        assert_eq!(released.unwrap(), Reply::Released);
        let check = || backend.execute(vec![Op::Check(any.clone())]);
        let is_ready = completes_within(polls, check()).await;
        let reply = check().await.remove(0).unwrap();
        let Reply::Granted(award) = reply else { panic!("after {polls} polls: {reply:?}") };
        let left = [bench.contenders(&driver, "a").await.len(), bench.contenders(&driver, "b").await.len()];
        assert_eq!(left, [1, 0], "after {polls} polls");
        let released = backend.execute(vec![Op::Release(Grant { attempt: any, award })]).await.remove(0);
        assert_eq!(released.unwrap(), Reply::Released);
        if is_ready {
            break;
        }
    }
    backend.close().await;
    assert_clean(&bench).await;
}

/// A node that the same owner has in another session is not its own, in whatever state that session is.
#[tokio::test]
async fn a_node_of_another_session_is_not_recovered() {
    let bench = ZooKeeperBench::plain();
    let (former, backend) =
        (fencepost_zookeeper::open(&bench.direct()).await.unwrap(), bench.connect().await.unwrap());
    let attempt = attempt(&["a".to_owned()]);
    assert!(matches!(acquire(&*former, &attempt).await, Ok(Reply::Granted(_))));
    bench.wire().lose_reply_to(bench.acquire_bytes());
    let lost = acquire(&*backend, &attempt).await.unwrap_err();
    assert_eq!(lost.kind(), ErrorKind::OutcomeUnknown);
    let again = acquire(&*backend, &attempt).await.unwrap();
    assert!(matches!(again, Reply::Waiting { .. }), "{again:?}");
    former.close().await;
    wait::until("it is granted", async || {
        matches!(acquire(&*backend, &attempt).await, Ok(Reply::Granted(_)))
    })
    .await;
    backend.close().await;
    assert_clean(&bench).await;
}

/// The node is created, but the queue may not be read.
#[tokio::test]
async fn a_node_whose_queue_cannot_be_read_is_deleted() {
    let bench = ZooKeeperBench::plain();
    let (client, driver) = (connect(&bench.direct()).await, bench.driver().await);
    let lock_node = bench.lock_path("a");
    let no_reading =
        [Acl::new(Permission::CREATE | Permission::DELETE | Permission::ADMIN, AuthId::anyone())];
    let persistent = CreateMode::Persistent.with_acls(Acls::new(&no_reading));
    driver.create(&lock_node, b"", &persistent).await.unwrap();
    let refused = client.lock("a").ttl(LONG_TTL).try_acquire().await.unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Denied, "{refused:?}");
    driver.set_acl(&lock_node, &[Acl::new(Permission::ALL, AuthId::anyone())], None).await.unwrap();
    wait::until("its node is deleted", async || bench.contenders(&driver, "a").await.is_empty()).await;
}

/// More names than fit into one request are rejected, and the connection stays.
#[tokio::test]
async fn too_many_names_in_one_acquire_are_rejected() {
    let bench = ZooKeeperBench::plain();
    let backend = bench.connect().await.unwrap();
    let names = |count: usize| (0..count).map(|at| format!("a lock with number {at:05}")).collect::<Vec<_>>();
    let refused = acquire(&*backend, &attempt(&names(400))).await.unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Unsupported, "{refused:?}");
    let all = attempt(&names(150));
    assert!(matches!(acquire(&*backend, &all).await, Ok(Reply::Granted(_))));
    backend.close().await;
    assert_clean(&bench).await;
}

/// Scenario 63: the cost of a heartbeat does not depend on the number of waiters. It succeeds even if the queue cannot
/// be read.
#[tokio::test]
async fn a_heartbeat_does_not_read_the_queue() {
    let bench = ZooKeeperBench::plain();
    let (backend, driver) = (bench.connect().await.unwrap(), bench.driver().await);
    let [holder, waiter] = [attempt(&["a".to_owned()]), attempt(&["a".to_owned()])];
    let Ok(Reply::Granted(award)) = acquire(&*backend, &holder).await else { panic!("it is free") };
    assert!(matches!(acquire(&*backend, &waiter).await, Ok(Reply::Waiting { .. })));
    let all_but_read = [Permission::CREATE, Permission::DELETE, Permission::ADMIN];
    let acls = all_but_read.map(|permission| Acl::new(permission, AuthId::anyone()));
    driver.set_acl(&bench.lock_path("a"), &acls, None).await.unwrap();

    let renewal = Op::Renew(Grant { attempt: holder.clone(), award });
    let check = || Op::Check(waiter.clone());
    // Soon after a renewal nothing is verified again; later it is.
    for pause in [Duration::ZERO, holder.ttl / 4] {
        wait::elapse(pause).await;
        let reply = backend.execute(vec![check()]).await.remove(0);
        assert!(matches!(reply, Ok(Reply::Waiting { .. })), "{reply:?}");
        let reply = backend.execute(vec![renewal.clone()]).await.remove(0);
        assert!(matches!(reply, Ok(Reply::Renewed { .. })), "{reply:?}");
    }
    driver.set_acl(&bench.lock_path("a"), &Acls::anyone_all(), None).await.unwrap();
    backend.close().await;
}
