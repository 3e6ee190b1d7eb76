//! A server that compacts its history, runs full, pauses or restarts.

use std::sync::Arc;
use std::time::Duration;

use fencepost_core::{ErrorKind, LostReason, Mode};
use fencepost_testkit::TestBench;
use fencepost_testkit::servers::etcd::{EtcdServer, EtcdServerConfig, TlsClients};
use fencepost_testkit::suite::assert_clean;
use fencepost_testkit::wait;
use fencepost_testkit::wire::Wire;

use crate::actions::{
    LONG_TTL, SHORT, connect, enqueue, granted, hold, spawn_waiter, until_queued, until_renewed,
    until_renewed_since,
};
use crate::bench::{EtcdBench, Server};

/// Compacts the history up to the present revision.
fn compact(bench: &EtcdBench) {
    let status = bench.ctl(&["get", "nothing", "--write-out=json"]);
    let (_, revision) = status.split_once("\"revision\":").expect("the header has a revision");
    let revision: String = revision.chars().take_while(char::is_ascii_digit).collect();
    bench.ctl(&["compact", &revision]);
}

/// Waiters and holders notice changes in spite of a compaction, whether the watch stream is open or broken meanwhile.
#[tokio::test]
async fn waiters_are_granted_after_a_compaction() {
    let (bench, server) = EtcdBench::on(&EtcdServerConfig::plain());
    let wire = Wire::to(server.port());
    let remote = connect(&format!("etcd://127.0.0.1:{}?namespace={}", wire.port(), bench.namespace())).await;
    let client = bench.client().await;
    for mode in [Mode::Exclusive, Mode::Shared] {
        let guard = hold(&client.lock("a").ttl(LONG_TTL)).await;
        let own = hold(&remote.lock("own").ttl(LONG_TTL)).await;
        let first = enqueue(&client, remote.lock("a").mode(mode).ttl(LONG_TTL), "a", 1).await;
        let second = enqueue(&client, remote.lock("a").ttl(LONG_TTL), "a", 2).await;
        compact(&bench);
        until_queued(&client, "a", 2).await;
        wire.cut();
        guard.release().await.unwrap();
        bench.ctl(&["del", "--prefix", &format!("{}/lock/own/", bench.namespace())]);
        for _ in 0..3 {
            hold(&client.lock("b").ttl(LONG_TTL)).await.release().await.unwrap();
        }
        compact(&bench);
        wire.heal();
        let first = granted(first).await;
        assert_eq!(wait::within_timeout("it is lost", own.lost()).await, LostReason::NotHeld);
        first.release().await.unwrap();
        granted(second).await.release().await.unwrap();
    }
    assert_clean(&bench).await;
}

/// A full server rejects acquires with a hint, and accepts renewals and releases.
#[tokio::test]
async fn a_full_server_accepts_releases_and_rejects_acquires() {
    let (bench, server) =
        EtcdBench::on(&EtcdServerConfig::plain().with_option("--quota-backend-bytes=1048576"));
    let (client_a, client_b) = (bench.client().await, bench.client().await);
    let guard = hold(&client_a.lock("a").ttl(SHORT)).await;
    let next = enqueue(&client_a, client_b.lock("a").ttl(LONG_TTL), "a", 1).await;
    let mut many = Vec::new();
    for number in 0..8 {
        many.push(hold(&client_a.lock(format!("many/{number}")).ttl(LONG_TTL)).await);
    }
    let big = "x".repeat(100 << 10);
    wait::until("it is full", async || server.try_ctl(&["put", "big", &big]).is_err()).await;
    until_renewed(&guard).await;
    for lock in [
        client_a.lock("b"),
        client_a.lock("c").mode(Mode::Semaphore { permits: 2 }),
        client_a.lock_all(["b", "c"]),
    ] {
        let error = lock.ttl(LONG_TTL).try_acquire().await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Backend, "{error}");
        assert!(error.hint().is_some_and(|hint| hint.contains("defrag")), "{error}");
    }
    // Releases succeed although acquires of the same flight are rejected.
    let acquires: Vec<_> = (0..8).map(|_| spawn_waiter(client_a.lock("d").ttl(LONG_TTL))).collect();
    let releases: Vec<_> = many.into_iter().map(|guard| tokio::spawn(guard.release())).collect();
    for release in releases {
        wait::within_timeout("it is released", release).await.unwrap().unwrap();
    }
    for acquire in acquires {
        // Servers up to 3.4 do not check the quota for nested transactions.
        match wait::within_timeout("the acquire has a reply", acquire).await.unwrap() {
            Ok(guard) => guard.release().await.unwrap(),
            Err(error) => assert_eq!(error.kind(), ErrorKind::Backend, "{error}"),
        }
    }
    guard.release().await.unwrap();
    granted(next).await.release().await.unwrap();
    assert!(client_a.inspect("b").await.unwrap().is_idle());
    bench.ctl(&["del", "big"]);
    compact(&bench);
    bench.ctl(&["defrag"]);
    bench.ctl(&["alarm", "disarm"]);
    hold(&client_a.lock("b").ttl(LONG_TTL)).await.release().await.unwrap();
    assert_clean(&bench).await;
}

/// A restarted server has kept all data: holders and waiters continue.
async fn survives_a_restart(bench: EtcdBench, server: Arc<EtcdServer>) {
    let (client_a, client_b) = (bench.client().await, bench.client().await);
    let guard = hold(&client_a.lock("a").ttl(SHORT * 5)).await;
    let first = enqueue(&client_a, client_b.lock("a").ttl(LONG_TTL), "a", 1).await;
    let second = enqueue(&client_a, client_a.lock("a").ttl(LONG_TTL), "a", 2).await;
    let known = guard.valid_until();
    tokio::task::spawn_blocking(move || server.restart()).await.unwrap();
    until_renewed_since(&guard, known).await;
    until_queued(&client_a, "a", 2).await;
    let token = guard.token();
    guard.release().await.unwrap();
    let first = granted(first).await;
    assert!(first.token() > token && !second.is_finished());
    first.release().await.unwrap();
    granted(second).await.release().await.unwrap();
    assert_clean(&bench).await;
}

#[tokio::test]
async fn locks_and_waiters_survive_a_restart() {
    let (bench, server) = EtcdBench::on(&EtcdServerConfig::plain());
    survives_a_restart(bench, server).await;
}

#[tokio::test]
async fn locks_and_waiters_survive_a_restart_with_tls() {
    let server = Arc::new(EtcdServer::start(&EtcdServerConfig::plain().with_tls(TlsClients::All)));
    let ca = format!("&tls_ca={}", server.certificates().ca.display());
    let bench = EtcdBench::at(&server.tls_url(), &ca, Server::Own(server.clone()));
    survives_a_restart(bench, server).await;
}

/// A server is paused for longer than a lease: the holder loses the lock in time, and late requests are undone.
#[tokio::test]
async fn a_lock_expires_while_the_server_is_paused_and_no_orphan_is_left() {
    let (bench, server) = EtcdBench::on(&EtcdServerConfig::plain());
    let client = bench.client().await;
    let guard = hold(&client.lock("a").ttl(SHORT)).await;
    server.pause();
    let late = spawn_waiter(client.lock("b").ttl(SHORT * 2).wait(Duration::from_millis(300)));
    // Held while the test waits for others: it must not expire on a busy machine.
    let other = spawn_waiter(client.lock("c").ttl(SHORT * 3));
    assert_eq!(wait::within_timeout("the lock is lost", guard.lost()).await, LostReason::Expired);
    assert_eq!(late.await.unwrap().unwrap_err().kind(), ErrorKind::WaitTimeout);
    server.resume();
    let again = hold(&client.lock("a").ttl(SHORT)).await;
    assert!(again.token() > guard.token());
    granted(other).await.release().await.unwrap();
    again.release().await.unwrap();
    drop(guard);
    assert_clean(&bench).await;
}

/// An operator deletes the keys of waiters: the waiters join the queue again.
#[tokio::test]
async fn waiters_whose_keys_are_deleted_join_again() {
    let bench = Arc::new(EtcdBench::plain());
    let client = bench.client().await;
    let guard = hold(&client.lock("a").ttl(LONG_TTL)).await;
    let first = enqueue(&client, client.lock("a").ttl(LONG_TTL), "a", 1).await;
    let second = enqueue(&client, client.lock("a").ttl(LONG_TTL), "a", 2).await;
    for key in &bench.queue("a")[1..] {
        bench.ctl(&["del", key]);
    }
    wait::until("they are in the queue again", async || bench.queue("a").len() == 3).await;
    guard.release().await.unwrap();
    // Either may have enqueue first.
    let (mut first, mut second) = (Some(first), Some(second));
    wait::until("one is granted the lock", async || {
        [&first, &second]
            .iter()
            .any(|waiter| waiter.as_ref().is_some_and(tokio::task::JoinHandle::is_finished))
    })
    .await;
    if second.as_ref().is_some_and(tokio::task::JoinHandle::is_finished) {
        std::mem::swap(&mut first, &mut second);
    }
    for waiter in [first, second].into_iter().flatten() {
        granted(waiter).await.release().await.unwrap();
    }
    assert_clean(&*bench).await;
}
