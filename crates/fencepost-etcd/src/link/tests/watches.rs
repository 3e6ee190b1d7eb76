//! Watches miss no change.

use fencepost_testkit::servers::etcd::{EtcdServer, EtcdServerConfig, shared};
use fencepost_testkit::wire::Wire;

use super::*;

#[tokio::test]
async fn changes_are_emitted_from_the_start_revision_on() {
    let (mut test, key) = (open(&[shared().port()]).await, new_key());
    let put = test.put(&key, "a").await.unwrap();
    test.delete(&key).await.unwrap();
    let id = test.watch(&key, put);
    let (from, change) = test.event().await;
    assert!(from == id && matches!(&change, Change::Put { value } if value == b"a"), "{change:?}");
    let (from, change) = test.event().await;
    assert!(from == id && matches!(change, Change::Deleted), "{change:?}");
}

#[tokio::test]
async fn a_watch_of_deletions_emits_no_puts() {
    let (mut test, prefix) = (open(&[shared().port()]).await, new_key());
    let (a, b) = (format!("{prefix}/a"), format!("{prefix}/b"));
    let start_revision = test.put(&a, "").await.unwrap();
    let (key, range_end) = (format!("{prefix}/").into(), format!("{prefix}0").into());
    test.link.watch(WatchTarget { key, range_end, start_revision, only_deletes: true });
    test.put(&b, "").await.unwrap();
    test.delete(&b).await.unwrap();
    let (_, change) = test.event().await;
    assert!(matches!(change, Change::Deleted), "{change:?}");
}

#[tokio::test]
async fn an_ended_watch_emits_nothing() {
    let (mut test, keys) = (open(&[shared().port()]).await, [new_key(), new_key()]);
    let start = test.put(&keys[0], "a").await.unwrap();
    test.put(&keys[1], "a").await.unwrap();
    let ended = test.watch(&keys[0], start);
    assert_eq!(test.event().await.0, ended);
    test.link.unwatch(ended);
    // Requests on one stream are executed in order: once the other watch emits an event, the first has ended.
    let other = test.watch(&keys[1], start);
    assert_eq!(test.event().await.0, other);
    test.put(&keys[0], "b").await.unwrap();
    test.put(&keys[1], "b").await.unwrap();
    assert_eq!(test.event().await.0, other);
}

#[tokio::test]
async fn a_watch_survives_a_restart_of_the_server() {
    let server = EtcdServer::start(&EtcdServerConfig::plain());
    let (mut test, keys) = (open(&[server.port()]).await, [new_key(), new_key()]);
    let start = test.put(&keys[0], "a").await.unwrap();
    let first = test.watch(&keys[0], start);
    assert_eq!(test.event().await.0, first);
    server.kill();
    let second = test.watch(&keys[1], start);
    server.restart();
    server.ctl(&["put", &keys[1], ""]);
    server.ctl(&["del", &keys[0]]);
    let mut seen = [test.event().await, test.event().await];
    seen.sort_by_key(|(id, _)| *id);
    assert!(matches!(&seen[0], (id, Change::Deleted) if *id == first), "{seen:?}");
    assert!(matches!(&seen[1], (id, Change::Put { .. }) if *id == second), "{seen:?}");
}

#[tokio::test]
async fn changes_while_the_stream_is_broken_are_emitted_later() {
    let wire = Wire::to(shared().port());
    let (mut test, direct, key) = (open(&[wire.port()]).await, open(&[shared().port()]).await, new_key());
    let start = direct.put(&key, "a").await.unwrap();
    test.watch(&key, start);
    assert!(matches!(test.event().await.1, Change::Put { .. }));
    wire.cut();
    direct.delete(&key).await.unwrap();
    direct.put(&key, "b").await.unwrap();
    wire.heal();
    assert!(matches!(test.event().await.1, Change::Deleted));
    let (_, change) = test.event().await;
    assert!(matches!(&change, Change::Put { value, .. } if value == b"b"), "{change:?}");
}

#[tokio::test]
async fn a_silent_stream_is_closed() {
    let wire = Wire::to(shared().port());
    let (mut test, direct, key) = (open(&[wire.port()]).await, open(&[shared().port()]).await, new_key());
    let start = direct.put(&key, "a").await.unwrap();
    test.watch(&key, start);
    assert!(matches!(test.event().await.1, Change::Put { .. }));
    wire.blackhole();
    direct.delete(&key).await.unwrap();
    test.until_closed().await;
    wire.heal();
    assert!(matches!(test.event().await.1, Change::Deleted));
}

#[tokio::test]
async fn a_compacted_history_is_reported_as_missed() {
    let server = EtcdServer::start(&EtcdServerConfig::plain());
    let (mut test, key) = (open(&[server.port()]).await, new_key());
    let start = test.put(&key, "a").await.unwrap();
    test.delete(&key).await.unwrap();
    let last = test.put(&key, "b").await.unwrap();
    server.ctl(&["compact", &last.to_string()]);
    let id = test.watch(&key, start);
    let (from, change) = test.event().await;
    assert!(from == id && matches!(change, Change::Missed), "{change:?}");
    // The watch continues.
    assert!(matches!(test.event().await.1, Change::Put { .. }));
    test.delete(&key).await.unwrap();
    assert!(matches!(test.event().await.1, Change::Deleted));
}

#[tokio::test]
async fn a_dropped_link_closes_its_connection() {
    let wire = Wire::to(shared().port());
    let (test, key) = (open(&[wire.port()]).await, new_key());
    test.watch(&key, 0);
    test.put(&key, "").await.unwrap();
    assert_eq!(wire.connections(), 1);
    drop(test);
    wait::until("the connection ends", async || wire.connections() == 0).await;
}
