//! Requests that overtake each other, and nodes that are nearly somebody's: there is one node for one attempt, and none for
//! one that has left.

use std::sync::Arc;
use std::time::Duration;

use fencepost_core::backend::{Op, Queue, Reply};
use fencepost_core::{Attempt, Backend, ErrorKind, Grant, LockName, Mode, Owner, Result, Rule, Want};
use fencepost_testkit::suite::assert_clean;
use fencepost_testkit::wait;
use fencepost_testkit::{TestBench, WireBench};
use zookeeper_client::{Acl, Acls, AuthId, CreateMode, Permission};

use crate::actors::{LONG, SHORT, connect};
use crate::bench::ZooKeeperBench;

fn attempt(names: &[String]) -> Arc<Attempt> {
    let want = |name: &String| Want { name: LockName::new(name).unwrap(), mode: Mode::Exclusive };
    Arc::new(Attempt {
        owner: Owner::random(),
        wants: names.iter().map(want).collect(),
        rule: Rule::All,
        ttl: SHORT * 4,
        label: "bare".into(),
        meta: [].into(),
    })
}

async fn come(backend: &dyn Backend, attempt: &Arc<Attempt>) -> Result<Reply> {
    backend.execute(vec![Op::Acquire { attempt: attempt.clone(), queue: Queue::Join }]).await.remove(0)
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

/// A node of the same owner that another session has is not its own, whatever became of that session.
#[tokio::test]
async fn a_node_of_another_session_is_not_found_again() {
    let bench = ZooKeeperBench::plain();
    let (gone, backend) =
        (fencepost_zookeeper::open(&bench.direct()).await.unwrap(), bench.connect().await.unwrap());
    let attempt = attempt(&["a".to_owned()]);
    assert!(matches!(come(&*gone, &attempt).await, Ok(Reply::Granted(_))));
    bench.wire().lose_answer_to(bench.coming());
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
    let refused = client.lock("a").ttl(LONG).try_acquire().await.unwrap_err();
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
        wait::passes(pause).await;
        let reply = backend.execute(vec![check()]).await.remove(0);
        assert!(matches!(reply, Ok(Reply::Waiting { .. })), "{reply:?}");
        let reply = backend.execute(vec![renewal.clone()]).await.remove(0);
        assert!(matches!(reply, Ok(Reply::Renewed { .. })), "{reply:?}");
    }
    driver.set_acl(&bench.line("a"), &Acls::anyone_all(), None).await.unwrap();
    backend.close().await;
}
