//! Sessions of other programs that use the same keys.

use std::time::Duration;

use fencepost_core::{HolderState, Mode, Page};
use fencepost_testkit::TestBench;
use fencepost_testkit::actions::{LONG_TTL, enqueue, granted, hold, until_queued};
use fencepost_testkit::servers::postgres::shared;
use fencepost_testkit::wait;

use super::AdvisoryBench;

/// How others lock `name`: by keys that the tests of the derivations show, or by the server's functions.
fn peers(name: &str) -> [(&'static str, &'static str, String); 7] {
    [
        ("raw", "4711000042", "4711000042".into()),
        ("raw", "4711,-1", "4711, -1".into()),
        ("madelson", "MyLockName", "4062898426641073528::bigint".into()),
        ("madelson", "MyLock", "-1679399172, 2061500415".into()),
        ("crc32", "mylock", "1470200715".into()),
        ("tooz", "mylock", "200, 223".into()),
        ("hashtext", "job", format!("hashtext('{name}')")),
    ]
}

#[tokio::test(flavor = "multi_thread")]
async fn our_locks_and_those_of_others_exclude_each_other() {
    let more = ("hashtextextended", "job", "hashtextextended('job', 0)".to_owned());
    for (rule, name, key) in peers("job").into_iter().chain([more]) {
        let bench = AdvisoryBench::on(shared(), &format!("&key={rule}"));
        let (client, peer) = (bench.client().await, bench.driver().await);
        let try_lock = format!("SELECT pg_try_advisory_lock({key})");
        let unlock = format!("SELECT pg_advisory_unlock({key})");
        let ask = async |sql: &str| peer.query_one(sql, &[]).await.unwrap().get::<_, bool>(0);

        let guard = hold(&client.lock(name).ttl(LONG_TTL)).await;
        assert!(!ask(&try_lock).await, "{rule} {name}: they do not see ours");
        guard.release().await.unwrap();
        assert!(ask(&try_lock).await, "{rule} {name}");
        assert!(
            client.lock(name).try_acquire().await.unwrap().is_none(),
            "{rule} {name}: we do not see theirs"
        );

        let state = client.inspect(name).await.unwrap();
        let holder = &state.holders[0];
        assert_eq!((state.holders.len(), holder.token, holder.mode), (1, None, Mode::Exclusive));
        assert_eq!(holder.expires_in, Some(HolderState::NO_EXPIRY));
        assert!(holder.label.contains("postgres@127.0.0.1 pid "), "{}", holder.label);

        let waiter = enqueue(&client, client.lock(name).ttl(LONG_TTL), name, 1).await;
        assert!(ask(&unlock).await);
        granted(waiter).await.release().await.unwrap();
    }
}

/// Where keys are names, foreign locks are listed too.
#[tokio::test(flavor = "multi_thread")]
async fn foreign_raw_keys_are_listed() {
    let bench = AdvisoryBench::on(shared(), "&key=raw");
    let (client, peer) = (bench.client().await, bench.driver().await);
    peer.batch_execute("SELECT pg_advisory_lock(4712000001), pg_advisory_lock_shared(4712, 2)")
        .await
        .unwrap();
    let ours = hold(&client.lock("4712000003").ttl(LONG_TTL)).await;
    let page = client.list("4712", Page::new(10)).await.unwrap();
    let names: Vec<_> = page.locks.iter().map(|lock| (lock.name.as_str(), lock.holders[0].mode)).collect();
    let expected =
        [("4712,2", Mode::Shared), ("4712000001", Mode::Exclusive), ("4712000003", Mode::Exclusive)];
    assert_eq!(names, expected);
    assert_eq!(page.locks[2].holders[0].token, Some(ours.token()));
    assert!(client.list("471200000", Page::new(10)).await.unwrap().locks.len() == 2);
    ours.release().await.unwrap();
}

/// A foreign session that waits is in the same queue, and readers share.
#[tokio::test(flavor = "multi_thread")]
async fn the_queue_of_the_server_is_shared() {
    let bench = AdvisoryBench::on(shared(), "&key=raw");
    let client = bench.client().await;
    let name = "4713000001";
    let guard = hold(&client.lock(name).ttl(LONG_TTL)).await;
    let peer = bench.driver().await;
    let foreign = tokio::spawn(async move {
        peer.batch_execute(&format!("SELECT pg_advisory_lock({name})")).await.unwrap();
        peer
    });
    until_queued(&client, name, 1).await;
    let waiter = enqueue(&client, client.lock(name).ttl(Duration::from_secs(2)), name, 2).await;
    guard.release().await.unwrap();
    let peer = wait::within_timeout("the other program is granted the lock", foreign).await.unwrap();
    assert!(!waiter.is_finished());
    assert_eq!(client.inspect(name).await.unwrap().holders[0].token, None);
    drop(peer);
    granted(waiter).await.release().await.unwrap();

    let peer = bench.driver().await;
    peer.batch_execute(&format!("SELECT pg_advisory_lock_shared({name})")).await.unwrap();
    let reader = client.lock(name).mode(Mode::Shared).try_acquire().await.unwrap();
    assert!(reader.is_some() && client.lock(name).try_acquire().await.unwrap().is_none());
}
