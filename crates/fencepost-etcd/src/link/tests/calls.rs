//! The calls, on servers without failures.

use fencepost_testkit::servers::etcd;

use super::*;
use crate::proto::response_op::Response;

async fn shared() -> TestLink {
    open(&[etcd::shared().port()]).await
}

#[tokio::test]
async fn a_key_is_created_once() {
    let (test, key) = (shared().await, new_key());
    let create = txn(vec![absent(&key)], vec![Request::RequestPut(put(&key, "first", 0))]);
    assert!(test.link.txn(create.clone(), TIMEOUT).await.unwrap().succeeded);
    assert!(!test.link.txn(create, TIMEOUT).await.unwrap().succeeded);
    assert_eq!(test.value(&key).await.unwrap().as_deref(), Some("first"));
}

#[tokio::test]
async fn nested_transactions_succeed_independently() {
    let (test, taken, free) = (shared().await, new_key(), new_key());
    test.put(&taken, "before").await.unwrap();
    let create = |key: &str| {
        Request::RequestTxn(txn(vec![absent(key)], vec![Request::RequestPut(put(key, "new", 0))]))
    };
    let both = txn(vec![], vec![create(&taken), create(&free)]);
    let response = test.link.txn(both, TIMEOUT).await.unwrap();
    let succeeded = response.responses.into_iter().map(|nested| match nested.response {
        Some(Response::ResponseTxn(nested)) => nested.succeeded,
        other => panic!("{other:?}"),
    });
    assert_eq!(succeeded.collect::<Vec<_>>(), [false, true]);
}

#[tokio::test]
async fn a_lease_is_kept_alive_until_it_is_revoked() {
    let (test, key) = (shared().await, new_key());
    let granted = test.link.lease_grant(60, 0, TIMEOUT).await.unwrap();
    assert_eq!(granted.ttl, 60);
    let leased = txn(vec![], vec![Request::RequestPut(put(&key, "", granted.id))]);
    test.link.txn(leased.clone(), TIMEOUT).await.unwrap();
    let kept = test.link.keep_alive(granted.id, TIMEOUT).await.unwrap();
    let read = test.link.range(range(&key), TIMEOUT).await.unwrap();
    assert_eq!((kept.ttl_secs, Some(kept.raft_term)), (60, read.header.map(|header| header.raft_term)));
    let left = test.link.lease_time_to_live(granted.id, TIMEOUT).await.unwrap();
    assert_eq!((left.id, left.granted_ttl), (granted.id, 60));

    test.link.lease_revoke(granted.id, TIMEOUT).await.unwrap();
    assert_eq!(test.value(&key).await.unwrap(), None);
    assert!(matches!(test.link.keep_alive(granted.id, TIMEOUT).await, Err(Failure::NoLease)));
    assert!(matches!(test.link.lease_time_to_live(granted.id, TIMEOUT).await, Err(Failure::NoLease)));
    assert!(matches!(test.link.lease_revoke(granted.id, TIMEOUT).await, Err(Failure::NoLease)));
    let gone = test.link.txn(leased, TIMEOUT).await.unwrap_err();
    assert!(matches!(gone, Failure::NoLease));
    assert_eq!(gone.into_error(test.link.location()).kind(), ErrorKind::Backend);
}

#[tokio::test]
async fn the_server_reports_its_status() {
    let test = shared().await;
    let mut statuses = test.link.member_statuses().await;
    let status = statuses.remove(0).1.unwrap();
    assert!(status.version.starts_with("3.") && status.leader != 0, "{status:?}");
    assert_eq!(test.link.members(TIMEOUT).await.unwrap().members.len(), 1);
    assert_eq!(test.link.alarms(TIMEOUT).await.unwrap().alarms, []);
}

#[tokio::test]
async fn an_invalid_request_is_rejected() {
    let (test, key) = (shared().await, new_key());
    let twice = [put(&key, "a", 0), put(&key, "b", 0)].map(Request::RequestPut);
    assert_eq!(kind(test.link.txn(txn(vec![], twice.into()), TIMEOUT).await), ErrorKind::BadConfig);
    assert_eq!(test.value(&key).await.unwrap(), None);
}

#[tokio::test]
async fn calls_work_on_any_thread() {
    let (test, key) = (shared().await, new_key());
    let link = test.link.clone();
    let read =
        tokio::spawn(async move { link.range(range(&key), TIMEOUT).await.map(|response| response.count) });
    assert_eq!(read.await.unwrap().unwrap(), 0);
}
