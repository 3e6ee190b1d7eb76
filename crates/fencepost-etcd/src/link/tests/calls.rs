//! What the calls do when nothing is wrong with the servers.

use fencepost_testkit::servers::etcd;

use super::*;
use crate::proto::response_op::Response;

async fn shared() -> Opened {
    open(&[etcd::shared().port()]).await
}

#[tokio::test]
async fn a_key_is_created_once() {
    let (opened, key) = (shared().await, new_key());
    let create = txn(vec![absent(&key)], vec![Request::RequestPut(put(&key, "first", 0))]);
    assert!(opened.link.txn(create.clone(), PATIENCE).await.unwrap().succeeded);
    assert!(!opened.link.txn(create, PATIENCE).await.unwrap().succeeded);
    assert_eq!(opened.value(&key).await.unwrap().as_deref(), Some("first"));
}

#[tokio::test]
async fn nested_transactions_are_decided_each_by_itself() {
    let (opened, taken, free) = (shared().await, new_key(), new_key());
    opened.put(&taken, "before").await.unwrap();
    let create = |key: &str| {
        Request::RequestTxn(txn(vec![absent(key)], vec![Request::RequestPut(put(key, "new", 0))]))
    };
    let both = txn(vec![], vec![create(&taken), create(&free)]);
    let answer = opened.link.txn(both, PATIENCE).await.unwrap();
    let succeeded = answer.responses.into_iter().map(|answer| match answer.response {
        Some(Response::ResponseTxn(answer)) => answer.succeeded,
        other => panic!("{other:?}"),
    });
    assert_eq!(succeeded.collect::<Vec<_>>(), [false, true]);
}

#[tokio::test]
async fn a_lease_is_kept_alive_until_it_is_revoked() {
    let (opened, key) = (shared().await, new_key());
    let granted = opened.link.lease_grant(60, 0, PATIENCE).await.unwrap();
    assert_eq!(granted.ttl, 60);
    let leased = txn(vec![], vec![Request::RequestPut(put(&key, "", granted.id))]);
    opened.link.txn(leased.clone(), PATIENCE).await.unwrap();
    let kept = opened.link.keep_alive(granted.id, PATIENCE).await.unwrap();
    let read = opened.link.range(range(&key), PATIENCE).await.unwrap();
    assert_eq!((kept.ttl_secs, Some(kept.raft_term)), (60, read.header.map(|header| header.raft_term)));
    let left = opened.link.lease_time_to_live(granted.id, PATIENCE).await.unwrap();
    assert_eq!((left.id, left.granted_ttl), (granted.id, 60));

    opened.link.lease_revoke(granted.id, PATIENCE).await.unwrap();
    assert_eq!(opened.value(&key).await.unwrap(), None);
    assert!(matches!(opened.link.keep_alive(granted.id, PATIENCE).await, Err(Failure::NoLease)));
    assert!(matches!(opened.link.lease_time_to_live(granted.id, PATIENCE).await, Err(Failure::NoLease)));
    assert!(matches!(opened.link.lease_revoke(granted.id, PATIENCE).await, Err(Failure::NoLease)));
    let gone = opened.link.txn(leased, PATIENCE).await.unwrap_err();
    assert!(matches!(gone, Failure::NoLease));
    assert_eq!(gone.into_error(opened.link.location()).kind(), ErrorKind::Backend);
}

#[tokio::test]
async fn the_server_tells_about_itself() {
    let opened = shared().await;
    let mut asked = opened.link.each().await;
    let status = asked.remove(0).1.unwrap();
    assert!(status.version.starts_with("3.") && status.leader != 0, "{status:?}");
    assert_eq!(opened.link.members(PATIENCE).await.unwrap().members.len(), 1);
    assert_eq!(opened.link.alarms(PATIENCE).await.unwrap().alarms, []);
}

#[tokio::test]
async fn nonsense_is_refused_as_such() {
    let (opened, key) = (shared().await, new_key());
    let twice = [put(&key, "a", 0), put(&key, "b", 0)].map(Request::RequestPut);
    assert_eq!(kind(opened.link.txn(txn(vec![], twice.into()), PATIENCE).await), ErrorKind::BadConfig);
    assert_eq!(opened.value(&key).await.unwrap(), None);
}

#[tokio::test]
async fn calls_can_be_made_on_any_thread() {
    let (opened, key) = (shared().await, new_key());
    let link = opened.link.clone();
    let read =
        tokio::spawn(async move { link.range(range(&key), PATIENCE).await.map(|answer| answer.count) });
    assert_eq!(read.await.unwrap().unwrap(), 0);
}
