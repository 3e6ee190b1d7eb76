//! Watches, and that they miss nothing.

use fencepost_testkit::servers::etcd::{EtcdServer, EtcdServerConfig, shared};
use fencepost_testkit::wire::Wire;

use super::*;

#[tokio::test]
async fn changes_are_told_from_the_first_revision_on() {
    let (mut opened, key) = (open(&[shared().port()]).await, new_key());
    let put = opened.put(&key, "a").await.unwrap();
    opened.delete(&key).await.unwrap();
    let id = opened.watch(&key, put);
    let (of, what) = opened.event().await;
    assert!(of == id && matches!(&what, Change::Put { value } if value == b"a"), "{what:?}");
    let (of, what) = opened.event().await;
    assert!(of == id && matches!(what, Change::Deleted), "{what:?}");
}

#[tokio::test]
async fn a_watch_of_deletions_tells_no_puts() {
    let (mut opened, prefix) = (open(&[shared().port()]).await, new_key());
    let (a, b) = (format!("{prefix}/a"), format!("{prefix}/b"));
    let start_revision = opened.put(&a, "").await.unwrap();
    let (key, range_end) = (format!("{prefix}/").into(), format!("{prefix}0").into());
    opened.link.watch(Watched { key, range_end, start_revision, only_deletes: true });
    opened.put(&b, "").await.unwrap();
    opened.delete(&b).await.unwrap();
    let (_, what) = opened.event().await;
    assert!(matches!(what, Change::Deleted), "{what:?}");
}

#[tokio::test]
async fn a_watch_that_is_ended_tells_nothing_more() {
    let (mut opened, keys) = (open(&[shared().port()]).await, [new_key(), new_key()]);
    let start = opened.put(&keys[0], "a").await.unwrap();
    opened.put(&keys[1], "a").await.unwrap();
    let ended = opened.watch(&keys[0], start);
    assert_eq!(opened.event().await.0, ended);
    opened.link.unwatch(ended);
    // What is asked on one stream is done in this order: once the other watch tells, the first has ended.
    let other = opened.watch(&keys[1], start);
    assert_eq!(opened.event().await.0, other);
    opened.put(&keys[0], "b").await.unwrap();
    opened.put(&keys[1], "b").await.unwrap();
    assert_eq!(opened.event().await.0, other);
}

#[tokio::test]
async fn a_watch_outlives_the_server() {
    let server = EtcdServer::start(&EtcdServerConfig::plain());
    let (mut opened, keys) = (open(&[server.port()]).await, [new_key(), new_key()]);
    let start = opened.put(&keys[0], "a").await.unwrap();
    let first = opened.watch(&keys[0], start);
    assert_eq!(opened.event().await.0, first);
    server.kill();
    let second = opened.watch(&keys[1], start);
    server.restart();
    server.ctl(&["put", &keys[1], ""]);
    server.ctl(&["del", &keys[0]]);
    let mut seen = [opened.event().await, opened.event().await];
    seen.sort_by_key(|(id, _)| *id);
    assert!(matches!(&seen[0], (id, Change::Deleted) if *id == first), "{seen:?}");
    assert!(matches!(&seen[1], (id, Change::Put { .. }) if *id == second), "{seen:?}");
}

#[tokio::test]
async fn what_happens_while_the_stream_is_lost_is_told_later() {
    let wire = Wire::to(shared().port());
    let (mut opened, direct, key) = (open(&[wire.port()]).await, open(&[shared().port()]).await, new_key());
    let start = direct.put(&key, "a").await.unwrap();
    opened.watch(&key, start);
    assert!(matches!(opened.event().await.1, Change::Put { .. }));
    wire.cut();
    direct.delete(&key).await.unwrap();
    direct.put(&key, "b").await.unwrap();
    wire.heal();
    assert!(matches!(opened.event().await.1, Change::Deleted));
    let (_, what) = opened.event().await;
    assert!(matches!(&what, Change::Put { value, .. } if value == b"b"), "{what:?}");
}

#[tokio::test]
async fn a_stream_that_has_fallen_silent_is_noticed() {
    let wire = Wire::to(shared().port());
    let (mut opened, direct, key) = (open(&[wire.port()]).await, open(&[shared().port()]).await, new_key());
    let start = direct.put(&key, "a").await.unwrap();
    opened.watch(&key, start);
    assert!(matches!(opened.event().await.1, Change::Put { .. }));
    wire.blackhole();
    direct.delete(&key).await.unwrap();
    opened.is_noticed().await;
    wire.heal();
    assert!(matches!(opened.event().await.1, Change::Deleted));
}

#[tokio::test]
async fn a_compacted_history_is_said_to_be_one() {
    let server = EtcdServer::start(&EtcdServerConfig::plain());
    let (mut opened, key) = (open(&[server.port()]).await, new_key());
    let start = opened.put(&key, "a").await.unwrap();
    opened.delete(&key).await.unwrap();
    let last = opened.put(&key, "b").await.unwrap();
    server.ctl(&["compact", &last.to_string()]);
    let id = opened.watch(&key, start);
    let (of, what) = opened.event().await;
    assert!(of == id && matches!(what, Change::Missed), "{what:?}");
    // It goes on.
    assert!(matches!(opened.event().await.1, Change::Put { .. }));
    opened.delete(&key).await.unwrap();
    assert!(matches!(opened.event().await.1, Change::Deleted));
}

#[tokio::test]
async fn nothing_is_left_of_a_link_that_was_dropped() {
    let wire = Wire::to(shared().port());
    let (opened, key) = (open(&[wire.port()]).await, new_key());
    opened.watch(&key, 0);
    opened.put(&key, "").await.unwrap();
    assert_eq!(wire.connections(), 1);
    drop(opened);
    wait::until("the connection ends", async || wire.connections() == 0).await;
}
