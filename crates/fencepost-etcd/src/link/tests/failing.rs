//! Servers that fail, and what is said about it.

use fencepost_testkit::servers::etcd::{EtcdCluster, EtcdServer, EtcdServerConfig, shared};
use fencepost_testkit::servers::free_port;
use fencepost_testkit::wire::Wire;

use super::*;

#[tokio::test]
async fn nobody_there_is_unreachable() {
    let Err(error) = open_with(setup(&[free_port()], Account::default())).await else { panic!("who?") };
    assert_eq!(error.kind(), ErrorKind::Unreachable);
}

#[tokio::test]
async fn a_write_without_an_answer_may_have_been_done_and_a_read_is_only_a_read() {
    let server = EtcdServer::start(&EtcdServerConfig::plain());
    let (opened, key) = (open(&[server.port()]).await, new_key());
    server.pause();
    let write = txn(vec![], vec![Request::RequestPut(put(&key, "", 0))]);
    let short = Duration::from_millis(200);
    assert_eq!(kind(opened.link.txn(write.clone(), short).await), ErrorKind::OutcomeUnknown);
    // The connection has been given up, and there is no other.
    assert_eq!(kind(opened.link.txn(write, short).await), ErrorKind::Unreachable);
    assert_eq!(kind(opened.link.range(range(&key), short).await), ErrorKind::Unreachable);
    server.resume();
    wait::until("the server is back", async || opened.put(&key, "").await.is_ok()).await;
}

#[tokio::test]
async fn a_connection_that_has_ended_while_nobody_asked_does_no_harm() {
    let wire = Wire::to(shared().port());
    let (opened, key) = (open(&[wire.port()]).await, new_key());
    wire.cut();
    wait::until("the connection has ended", async || wire.connections() == 0).await;
    wire.heal();
    opened.is_noticed().await;
    opened.put(&key, "").await.unwrap();
}

#[tokio::test]
async fn a_member_that_is_gone_is_left_for_the_next() {
    let cluster = EtcdCluster::start();
    let (mut opened, key) = (open(&cluster.ports()).await, new_key());
    let start = opened.put(&key, "a").await.unwrap();
    opened.watch(&key, start);
    assert!(matches!(opened.event().await.1, Change::Put { .. }));
    cluster.member(0).kill();
    wait::until("another member serves", async || opened.put(&key, "b").await.is_ok()).await;
    assert!(matches!(opened.event().await.1, Change::Put { .. }));
    assert_eq!(opened.value(&key).await.unwrap().as_deref(), Some("b"));
}

#[tokio::test]
async fn a_member_that_stands_still_is_left_for_the_next() {
    let cluster = EtcdCluster::start();
    let (mut opened, key) = (open(&cluster.ports()).await, new_key());
    let start = opened.put(&key, "a").await.unwrap();
    opened.watch(&key, start);
    assert!(matches!(opened.event().await.1, Change::Put { .. }));
    cluster.member(0).pause();
    let write = txn(vec![], vec![Request::RequestPut(put(&key, "b", 0))]);
    let short = Duration::from_millis(500);
    assert_eq!(kind(opened.link.txn(write.clone(), short).await), ErrorKind::OutcomeUnknown);
    wait::until("another member serves", async || opened.put(&key, "b").await.is_ok()).await;
    assert!(matches!(opened.event().await.1, Change::Put { .. }));
    cluster.member(0).resume();
}

#[tokio::test]
async fn members_without_a_leader_surely_do_nothing() {
    let cluster = EtcdCluster::start();
    let (opened, key) = (open(&cluster.ports()).await, new_key());
    opened.put(&key, "a").await.unwrap();
    cluster.member(1).kill();
    cluster.member(2).kill();
    wait::until("the last member has no leader", async || {
        matches!(opened.put(&key, "b").await, Err(Failure::Failed(error)) if error.kind() == ErrorKind::Unreachable)
    })
    .await;
}

#[tokio::test]
async fn another_cluster_is_not_ours() {
    let (ours, theirs) = (EtcdServer::start(&EtcdServerConfig::plain()), shared());
    let (opened, key) = (open(&[ours.port(), theirs.port()]).await, new_key());
    opened.put(&key, "a").await.unwrap();
    ours.kill();
    let mut found = None;
    wait::until("the other is asked", async || {
        let Err(Failure::Failed(error)) = opened.value(&key).await else { panic!("it answered") };
        let is_it = error.kind() == ErrorKind::Backend;
        found = Some(error);
        is_it
    })
    .await;
    assert!(found.unwrap().to_string().starts_with("another cluster answers"));
    ours.restart();
    assert_eq!(opened.value(&key).await.unwrap().as_deref(), Some("a"));
}

#[tokio::test]
async fn a_full_storage_says_so() {
    let server = EtcdServer::start(&EtcdServerConfig::plain().with_option("--quota-backend-bytes=1048576"));
    let (opened, key) = (open(&[server.port()]).await, new_key());
    let big = "x".repeat(256 << 10);
    let mut failed = Ok(0);
    // The server looks at the size of what it has written to the disk, which it does now and then.
    wait::until("the storage is full", async || {
        failed = opened.put(&key, &big).await;
        failed.is_err()
    })
    .await;
    assert_eq!(kind(failed), ErrorKind::Backend);
    assert_eq!(opened.link.alarms(PATIENCE).await.unwrap().alarms.len(), 1);
}
