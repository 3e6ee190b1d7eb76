//! Operations of one flight fail independently.

use std::sync::Arc;
use std::time::Duration;

use fencepost_core::backend::{OnBusy, Op, Reply};
use fencepost_core::{Attempt, Backend, ErrorKind, Grant, LockName, Mode, Owner, Result, Rule, Want};
use fencepost_testkit::TestBench;
use fencepost_testkit::servers::etcd::{EtcdServer, EtcdServerConfig};
use fencepost_testkit::suite::assert_clean;

use crate::bench::{EtcdBench, Server};
use crate::configurations::give_rights;

fn attempt(name: &str, seconds: u64) -> Arc<Attempt> {
    Arc::new(Attempt {
        owner: Owner::random(),
        wants: vec![Want { name: LockName::new(name).unwrap(), mode: Mode::Exclusive }],
        rule: Rule::All,
        ttl: Duration::from_secs(seconds),
        label: "bare".into(),
        meta: [].into(),
    })
}

fn acquire(attempt: &Arc<Attempt>) -> Op {
    Op::Acquire { attempt: attempt.clone(), on_busy: OnBusy::Wait }
}

fn grant(attempt: &Arc<Attempt>, reply: Result<Reply>) -> Grant {
    match reply {
        Ok(Reply::Granted(award)) => Grant { attempt: attempt.clone(), award },
        other => panic!("{other:?}"),
    }
}

async fn acquired(backend: &dyn Backend, attempt: &Arc<Attempt>) -> Grant {
    grant(attempt, backend.execute(vec![acquire(attempt)]).await.remove(0))
}

/// Scenario 48: one lease of a flight is revoked. Grants on it are lost, new acquires get another lease, and all other
/// operations succeed.
#[tokio::test]
async fn a_missing_lease_fails_only_its_own_operations() {
    let bench = EtcdBench::plain();
    let backend = bench.connect().await.unwrap();
    let (dead, live) = (attempt("dead", 60), attempt("live", 90));
    let (dead, live) = (acquired(&*backend, &dead).await, acquired(&*backend, &live).await);
    bench.revoke_lease_of(&bench.queue("dead")[0]);
    let (one, two, three) = (attempt("one", 60), attempt("two", 90), attempt("three", 60));
    let flight = vec![
        acquire(&one),
        acquire(&two),
        Op::Release(live),
        acquire(&three),
        Op::Renew(dead.clone()),
        Op::Release(dead.clone()),
    ];
    let mut replies = backend.execute(flight).await.into_iter();
    let one = grant(&one, replies.next().unwrap());
    let two = grant(&two, replies.next().unwrap());
    assert_eq!(replies.next().unwrap().unwrap(), Reply::Released);
    let three = grant(&three, replies.next().unwrap());
    assert_eq!(replies.next().unwrap().unwrap(), Reply::NotHeld);
    assert_eq!(replies.next().unwrap().unwrap(), Reply::NotHeld);
    let renewals = [&one, &two, &three].map(|grant| Op::Renew(grant.clone()));
    for reply in backend.execute(renewals.into()).await {
        assert!(matches!(reply, Ok(Reply::Renewed { .. })), "{reply:?}");
    }
    let releases = [one, two, three].map(Op::Release);
    for reply in backend.execute(releases.into()).await {
        assert_eq!(reply.unwrap(), Reply::Released);
    }
    backend.close().await;
    assert_clean(&bench).await;
}

/// With `layout=raw` a user may have permission for some of the locks only: the others are denied, and no other operation
/// fails.
#[tokio::test]
async fn a_denied_name_fails_only_its_own_operations() {
    let server = Arc::new(EtcdServer::start(&EtcdServerConfig::plain().with_user("guest", "word")));
    let url = format!("etcd://app:secret@127.0.0.1:{}", server.port());
    let bench = EtcdBench::at(&url, "&layout=raw", Server::Own(server.clone()));
    give_rights(&server, bench.url(), "app", "secret", "allowed");
    let role = format!("fencepost-{}", bench.namespace());
    server.ctl(&["role", "grant-permission", &role, "--prefix=true", "readwrite", "lent/"]);
    let backend = bench.connect().await.unwrap();
    let (allowed, denied_name, lent) = (attempt("allowed", 60), attempt("denied", 60), attempt("lent", 60));
    let denied = backend.execute(vec![acquire(&denied_name)]).await.remove(0);
    assert_eq!(denied.unwrap_err().kind(), ErrorKind::Denied);
    let mut replies =
        backend.execute(vec![acquire(&denied_name), acquire(&allowed), acquire(&lent)]).await.into_iter();
    // Servers up to 3.4 do not check permissions in nested transactions.
    let _ = replies.next().unwrap();
    let held = grant(&allowed, replies.next().unwrap());
    let lent = grant(&lent, replies.next().unwrap());
    let waiter = attempt("allowed", 60);
    let reply = backend.execute(vec![acquire(&waiter)]).await.remove(0).unwrap();
    assert!(matches!(reply, Reply::Waiting { .. }), "{reply:?}");
    server.ctl(&["role", "revoke-permission", &role, "--prefix=true", "lent/"]);
    let flight = vec![Op::Renew(lent.clone()), Op::Renew(held.clone()), Op::Check(waiter.clone())];
    let mut replies = backend.execute(flight).await.into_iter();
    assert_eq!(replies.next().unwrap().unwrap_err().kind(), ErrorKind::Denied);
    let reply = replies.next().unwrap().unwrap();
    assert!(matches!(reply, Reply::Renewed { .. }), "{reply:?}");
    let reply = replies.next().unwrap().unwrap();
    assert!(matches!(reply, Reply::Waiting { .. }), "{reply:?}");
    let mut replies = backend.execute(vec![Op::Release(lent), Op::Release(held)]).await.into_iter();
    let _ = replies.next().unwrap();
    assert_eq!(replies.next().unwrap().unwrap(), Reply::Released);
    let reply = backend.execute(vec![Op::Leave(waiter)]).await.remove(0).unwrap();
    assert!(matches!(reply, Reply::AlreadyGranted(_)), "{reply:?}");
}

/// With `layout=raw` one name may be below another. Keys created by the same transaction have the same revision, and must
/// not hide older ones.
#[tokio::test]
async fn an_acquire_sent_together_with_names_below_its_own_still_waits() {
    let bench = EtcdBench::raw();
    let (backend, other) = (bench.connect().await.unwrap(), bench.connect().await.unwrap());
    let held = acquired(&*other, &attempt("a", 60)).await;
    let (upper, lower, third) = (attempt("a", 60), attempt("a/b", 60), attempt("a/c", 60));
    let mut replies =
        backend.execute(vec![acquire(&lower), acquire(&upper), acquire(&third)]).await.into_iter();
    let lower = grant(&lower, replies.next().unwrap());
    let reply = replies.next().unwrap().unwrap();
    assert!(matches!(reply, Reply::Waiting { .. }), "{reply:?}");
    let third = grant(&third, replies.next().unwrap());
    let mut both = attempt("a", 60).with_new_owner();
    both.wants.push(Want { name: LockName::new("a/d").unwrap(), mode: Mode::Exclusive });
    let both = Arc::new(both);
    let reply = backend.execute(vec![acquire(&both)]).await.remove(0).unwrap();
    assert!(matches!(reply, Reply::Waiting { .. }), "{reply:?}");
    let last_ops = vec![Op::Leave(upper), Op::Leave(both), Op::Release(lower), Op::Release(third)];
    for reply in backend.execute(last_ops).await {
        assert!(matches!(reply, Ok(Reply::Left | Reply::Released)), "{reply:?}");
    }
    other.execute(vec![Op::Release(held)]).await.remove(0).unwrap();
    assert_clean(&bench).await;
}
