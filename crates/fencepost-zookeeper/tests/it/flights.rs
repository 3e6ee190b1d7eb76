//! Requests that overtake each other, and nodes that are nearly somebody's: there is one node for one attempt, and none for
//! one that has left.

use std::future::poll_fn;
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use fencepost_core::backend::{OnBusy, Op, Reply};
use fencepost_core::{Attempt, Backend, ErrorKind, Grant, LockName, Mode, Owner, Result, Rule, Want};
use fencepost_testkit::suite::assert_clean;
use fencepost_testkit::wait;
use fencepost_testkit::{TestBench, WireBench};
use zookeeper_client::{Acl, Acls, AuthId, CreateMode, Permission};

use crate::actions::{LONG_TTL, SHORT, connect};
use crate::bench::ZooKeeperBench;

fn attempt(names: &[String]) -> Arc<Attempt> {
    attempt_by(Rule::All, names)
}

fn attempt_by(rule: Rule, names: &[String]) -> Arc<Attempt> {
    let want = |name: &String| Want { name: LockName::new(name).unwrap(), mode: Mode::Exclusive };
    Arc::new(Attempt {
        owner: Owner::random(),
        wants: names.iter().map(want).collect(),
        rule,
        ttl: SHORT * 4,
        label: "bare".into(),
        meta: [].into(),
    })
}

async fn come(backend: &dyn Backend, attempt: &Arc<Attempt>) -> Result<Reply> {
    backend.execute(vec![Op::Acquire { attempt: attempt.clone(), on_busy: OnBusy::Wait }]).await.remove(0)
}

async fn leave(backend: &dyn Backend, attempt: &Arc<Attempt>) -> Result<Reply> {
    backend.execute(vec![Op::Leave(attempt.clone())]).await.remove(0)
}

/// Two sends of one attempt wait for a session, and have it at once.
#[tokio::test]
async fn two_sends_of_one_attempt_make_one_node() {
    let bench = ZooKeeperBench::plain();
    let (backend, driver) = (bench.connect().await.unwrap(), bench.driver().await);
    let attempt = attempt(&["a".to_owned()]);
    let (first, second) = futures_util::join!(come(&*backend, &attempt), come(&*backend, &attempt));
    for reply in [first, second] {
        match reply {
            Ok(reply) => assert!(matches!(reply, Reply::Granted(_)), "{reply:?}"),
            Err(error) => assert_eq!(error.kind(), ErrorKind::OutcomeUnknown),
        }
    }
    assert_eq!(bench.contenders(&driver, "a").await.len(), 1);
    assert!(matches!(come(&*backend, &attempt).await, Ok(Reply::Granted(_))));
    backend.close().await;
    assert_clean(&bench).await;
}

/// Whoever leaves while it waits for a session does not come when there is one.
#[tokio::test]
async fn one_that_left_before_there_was_a_session_does_not_come() {
    let bench = ZooKeeperBench::plain();
    let (backend, driver) = (bench.connect().await.unwrap(), bench.driver().await);
    let attempt = attempt(&["a".to_owned()]);
    let (came, left) = futures_util::join!(come(&*backend, &attempt), leave(&*backend, &attempt));
    assert_eq!((came.unwrap(), left.unwrap()), (Reply::Busy, Reply::Left));
    assert_eq!(bench.contenders(&driver, "a").await, Vec::<String>::new());
    backend.close().await;
}

/// Polls a future so many times, each time that it is woken, and drops it. Returns whether it was ready before.
async fn is_ready_after(polls: usize, future: impl Future) -> bool {
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

/// An acquire is dropped at every point and sent again: it has one node for each name, and holds. Or it leaves, and has none.
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
                async move { is_ready_after(polls, come(&*backend, &attempt)).await }
            });
            let [is_ready, _] = futures_util::future::join_all(dropped).await[..] else { panic!("two") };
            let [again, leaving] = attempts;
            let left = leave(&*backend, &leaving).await.unwrap();
            if let Reply::AlreadyGranted(award) = left {
                let grant = Grant { attempt: leaving, award };
                let released = backend.execute(vec![Op::Release(grant)]).await.remove(0);
                assert_eq!(released.unwrap(), Reply::Released);
            }
            let reply = come(&*backend, &again).await.unwrap();
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

/// A check that chooses one of several locks is dropped at every point: the next one is granted, and one node is left.
#[tokio::test]
async fn a_dropped_check_does_not_lose_its_turn() {
    let bench = ZooKeeperBench::plain();
    let (backend, driver) = (bench.connect().await.unwrap(), bench.driver().await);
    let names = ["a".to_owned(), "b".to_owned()];
    for polls in 0.. {
        let holder = attempt(&names);
        let Ok(Reply::Granted(award)) = come(&*backend, &holder).await else { panic!("it is free") };
        let any = attempt_by(Rule::Any, &names);
        assert!(matches!(come(&*backend, &any).await, Ok(Reply::Waiting { .. })));
        let released = backend.execute(vec![Op::Release(Grant { attempt: holder, award })]).await.remove(0);
        assert_eq!(released.unwrap(), Reply::Released);
        let check = || backend.execute(vec![Op::Check(any.clone())]);
        let is_ready = is_ready_after(polls, check()).await;
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

/// A node of the same owner that another session has is not its own, whatever became of that session.
#[tokio::test]
async fn a_node_of_another_session_is_not_found_again() {
    let bench = ZooKeeperBench::plain();
    let (gone, backend) =
        (fencepost_zookeeper::open(&bench.direct()).await.unwrap(), bench.connect().await.unwrap());
    let attempt = attempt(&["a".to_owned()]);
    assert!(matches!(come(&*gone, &attempt).await, Ok(Reply::Granted(_))));
    bench.wire().lose_reply_to(bench.acquire_bytes());
    let lost = come(&*backend, &attempt).await.unwrap_err();
    assert_eq!(lost.kind(), ErrorKind::OutcomeUnknown);
    let again = come(&*backend, &attempt).await.unwrap();
    assert!(matches!(again, Reply::Waiting { .. }), "{again:?}");
    gone.close().await;
    wait::until("it has come to its turn", async || {
        matches!(come(&*backend, &attempt).await, Ok(Reply::Granted(_)))
    })
    .await;
    backend.close().await;
    assert_clean(&bench).await;
}

/// A node is made, and who else is there may not be read.
#[tokio::test]
async fn a_node_whose_line_cannot_be_read_does_not_stay() {
    let bench = ZooKeeperBench::plain();
    let (client, driver) = (connect(&bench.direct()).await, bench.driver().await);
    let line = bench.line("a");
    let no_reading =
        [Acl::new(Permission::CREATE | Permission::DELETE | Permission::ADMIN, AuthId::anyone())];
    let persistent = CreateMode::Persistent.with_acls(Acls::new(&no_reading));
    driver.create(&line, b"", &persistent).await.unwrap();
    let refused = client.lock("a").ttl(LONG_TTL).try_acquire().await.unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Denied, "{refused:?}");
    driver.set_acl(&line, &[Acl::new(Permission::ALL, AuthId::anyone())], None).await.unwrap();
    wait::until("its node is gone", async || bench.contenders(&driver, "a").await.is_empty()).await;
}

/// More names than fit into a request are refused, and the connection stays.
#[tokio::test]
async fn too_many_names_at_once_are_refused() {
    let bench = ZooKeeperBench::plain();
    let backend = bench.connect().await.unwrap();
    let names = |count: usize| (0..count).map(|at| format!("a lock with number {at:05}")).collect::<Vec<_>>();
    let refused = come(&*backend, &attempt(&names(400))).await.unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Unsupported, "{refused:?}");
    let all = attempt(&names(150));
    assert!(matches!(come(&*backend, &all).await, Ok(Reply::Granted(_))));
    backend.close().await;
    assert_clean(&bench).await;
}

/// Scenario 63: what a heartbeat costs does not depend on how many others wait. It works where the line cannot be read at all.
#[tokio::test]
async fn a_heartbeat_does_not_read_the_line() {
    let bench = ZooKeeperBench::plain();
    let (backend, driver) = (bench.connect().await.unwrap(), bench.driver().await);
    let [holder, waiter] = [attempt(&["a".to_owned()]), attempt(&["a".to_owned()])];
    let Ok(Reply::Granted(award)) = come(&*backend, &holder).await else { panic!("it is free") };
    assert!(matches!(come(&*backend, &waiter).await, Ok(Reply::Waiting { .. })));
    let all_but_read = [Permission::CREATE, Permission::DELETE, Permission::ADMIN];
    let acls = all_but_read.map(|permission| Acl::new(permission, AuthId::anyone()));
    driver.set_acl(&bench.line("a"), &acls, None).await.unwrap();

    let renewal = Op::Renew(Grant { attempt: holder.clone(), award });
    let check = || Op::Check(waiter.clone());
    // Soon after a renewal nothing is proven again; later it is.
    for pause in [Duration::ZERO, holder.ttl / 4] {
        wait::elapse(pause).await;
        let reply = backend.execute(vec![check()]).await.remove(0);
        assert!(matches!(reply, Ok(Reply::Waiting { .. })), "{reply:?}");
        let reply = backend.execute(vec![renewal.clone()]).await.remove(0);
        assert!(matches!(reply, Ok(Reply::Renewed { .. })), "{reply:?}");
    }
    driver.set_acl(&bench.line("a"), &Acls::anyone_all(), None).await.unwrap();
    backend.close().await;
}
