//! Failing servers and the errors that they cause.

use fencepost_testkit::servers::etcd::{EtcdCluster, EtcdServer, EtcdServerConfig, shared};
use fencepost_testkit::servers::free_port;
use fencepost_testkit::wire::Wire;

use super::*;

#[tokio::test]
async fn a_closed_port_is_unreachable() {
    let Err(error) = open_with(config(&[free_port()], Account::default())).await else {
        panic!("it connected")
    };
    assert_eq!(error.kind(), ErrorKind::Unreachable);
    assert!(error.hint().is_some_and(|hint| hint.contains("2379")), "{error:?}");
}

#[tokio::test]
async fn without_a_response_a_write_has_an_unknown_outcome_and_a_read_has_none() {
    let server = EtcdServer::start(&EtcdServerConfig::plain());
    let (test, key) = (open(&[server.port()]).await, new_key());
    server.pause();
    let write = txn(vec![], vec![Request::RequestPut(put(&key, "", 0))]);
    let short = Duration::from_millis(200);
    assert_eq!(kind(test.link.txn(write.clone(), short).await), ErrorKind::OutcomeUnknown);
    // The connection is closed, and there is no other member.
    assert_eq!(kind(test.link.txn(write, short).await), ErrorKind::Unreachable);
    assert_eq!(kind(test.link.range(range(&key), short).await), ErrorKind::Unreachable);
    server.resume();
    wait::until("the server is back", async || test.put(&key, "").await.is_ok()).await;
}

#[tokio::test]
async fn a_connection_that_was_closed_while_idle_is_replaced() {
    let wire = Wire::to(shared().port());
    let (test, key) = (open(&[wire.port()]).await, new_key());
    wire.cut();
    wait::until("the connection has ended", async || wire.connections() == 0).await;
    wire.heal();
    test.until_closed().await;
    test.put(&key, "").await.unwrap();
}

#[tokio::test]
async fn a_killed_member_is_replaced_by_the_next() {
    let cluster = EtcdCluster::start();
    let (mut test, key) = (open(&cluster.ports()).await, new_key());
    let start = test.put(&key, "a").await.unwrap();
    test.watch(&key, start);
    assert!(matches!(test.event().await.1, Change::Put { .. }));
    cluster.member(0).kill();
    wait::until("another member serves", async || test.put(&key, "b").await.is_ok()).await;
    assert!(matches!(test.event().await.1, Change::Put { .. }));
    assert_eq!(test.value(&key).await.unwrap().as_deref(), Some("b"));
}

#[tokio::test]
async fn a_paused_member_is_replaced_by_the_next() {
    let cluster = EtcdCluster::start();
    let (mut test, key) = (open(&cluster.ports()).await, new_key());
    let start = test.put(&key, "a").await.unwrap();
    test.watch(&key, start);
    assert!(matches!(test.event().await.1, Change::Put { .. }));
    cluster.member(0).pause();
    let write = txn(vec![], vec![Request::RequestPut(put(&key, "b", 0))]);
    let short = Duration::from_millis(500);
    assert_eq!(kind(test.link.txn(write.clone(), short).await), ErrorKind::OutcomeUnknown);
    wait::until("another member serves", async || test.put(&key, "b").await.is_ok()).await;
    assert!(matches!(test.event().await.1, Change::Put { .. }));
    cluster.member(0).resume();
}

#[tokio::test]
async fn members_without_a_leader_apply_nothing() {
    let cluster = EtcdCluster::start();
    let (test, key) = (open(&cluster.ports()).await, new_key());
    test.put(&key, "a").await.unwrap();
    cluster.member(1).kill();
    cluster.member(2).kill();
    wait::until("the last member has no leader", async || {
        matches!(test.put(&key, "b").await, Err(Failure::Failed(error)) if error.kind() == ErrorKind::Unreachable)
    })
    .await;
}

#[tokio::test]
async fn another_cluster_is_rejected() {
    let (first, other) = (EtcdServer::start(&EtcdServerConfig::plain()), shared());
    let (test, key) = (open(&[first.port(), other.port()]).await, new_key());
    test.put(&key, "a").await.unwrap();
    first.kill();
    let mut found = None;
    wait::until("the other cluster responds", async || {
        let Err(Failure::Failed(error)) = test.value(&key).await else { panic!("it was accepted") };
        let is_rejected = error.kind() == ErrorKind::Backend;
        found = Some(error);
        is_rejected
    })
    .await;
    assert!(found.unwrap().to_string().starts_with("another cluster responds"));
    first.restart();
    assert_eq!(test.value(&key).await.unwrap().as_deref(), Some("a"));
}

#[tokio::test]
async fn a_full_database_is_reported() {
    let server = EtcdServer::start(&EtcdServerConfig::plain().with_option("--quota-backend-bytes=1048576"));
    let (test, key) = (open(&[server.port()]).await, new_key());
    let big = "x".repeat(256 << 10);
    let mut failed = Ok(0);
    // The server compares the quota with what it has written to the disk, which it does at intervals.
    wait::until("the database is full", async || {
        failed = test.put(&key, &big).await;
        failed.is_err()
    })
    .await;
    assert_eq!(kind(failed), ErrorKind::Backend);
    assert_eq!(test.link.alarms(TIMEOUT).await.unwrap().alarms.len(), 1);
}
