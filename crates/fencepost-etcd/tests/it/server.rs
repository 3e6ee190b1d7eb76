//! A server that forgets its history, runs full, stands still or starts again.

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

/// Compacts everything that has happened so far.
fn compact(bench: &EtcdBench) {
    let status = bench.ctl(&["get", "nothing", "--write-out=json"]);
    let (_, revision) = status.split_once("\"revision\":").expect("it says its revision");
    let revision: String = revision.chars().take_while(char::is_ascii_digit).collect();
    bench.ctl(&["compact", &revision]);
}

/// History that is compacted away is missed by nobody, whether the stream stands or is lost meanwhile.
#[tokio::test]
async fn compaction_costs_nobody_its_turn() {
    let (bench, server) = EtcdBench::on(&EtcdServerConfig::plain());
    let wire = Wire::to(server.port());
    let away = connect(&format!("etcd://127.0.0.1:{}?namespace={}", wire.port(), bench.namespace())).await;
    let client = bench.client().await;
    for mode in [Mode::Exclusive, Mode::Shared] {
        let guard = hold(&client.lock("a").ttl(LONG_TTL)).await;
        let own = hold(&away.lock("own").ttl(LONG_TTL)).await;
        let first = enqueue(&client, away.lock("a").mode(mode).ttl(LONG_TTL), "a", 1).await;
        let second = enqueue(&client, away.lock("a").ttl(LONG_TTL), "a", 2).await;
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

/// A full storage takes nothing new, says so with a hint, and lets everybody give back what they hold.
#[tokio::test]
async fn a_full_storage_takes_locks_back_and_gives_none() {
    let (bench, server) =
        EtcdBench::on(&EtcdServerConfig::plain().with_option("--quota-backend-bytes=1048576"));
    let (ours, theirs) = (bench.client().await, bench.client().await);
    let guard = hold(&ours.lock("a").ttl(SHORT)).await;
    let next = enqueue(&ours, theirs.lock("a").ttl(LONG_TTL), "a", 1).await;
    let mut many = Vec::new();
    for number in 0..8 {
        many.push(hold(&ours.lock(format!("many/{number}")).ttl(LONG_TTL)).await);
    }
    let big = "x".repeat(100 << 10);
    wait::until("it is full", async || server.try_ctl(&["put", "big", &big]).is_err()).await;
    until_renewed(&guard).await;
    for lock in
        [ours.lock("b"), ours.lock("c").mode(Mode::Semaphore { permits: 2 }), ours.lock_all(["b", "c"])]
    {
        let error = lock.ttl(LONG_TTL).try_acquire().await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Backend, "{error}");
        assert!(error.hint().is_some_and(|hint| hint.contains("defrag")), "{error}");
    }
    // Whoever gives back is not kept from it by those who come with the same flight.
    let tries: Vec<_> = (0..8).map(|_| spawn_waiter(ours.lock("d").ttl(LONG_TTL))).collect();
    let releases: Vec<_> = many.into_iter().map(|guard| tokio::spawn(guard.release())).collect();
    for release in releases {
        wait::within_timeout("it is given back", release).await.unwrap().unwrap();
    }
    for tried in tries {
        // Servers up to 3.4 do not look into transactions within transactions, and find room for them.
        match wait::within_timeout("it is answered", tried).await.unwrap() {
            Ok(guard) => guard.release().await.unwrap(),
            Err(error) => assert_eq!(error.kind(), ErrorKind::Backend, "{error}"),
        }
    }
    guard.release().await.unwrap();
    granted(next).await.release().await.unwrap();
    assert!(ours.inspect("b").await.unwrap().is_idle());
    bench.ctl(&["del", "big"]);
    compact(&bench);
    bench.ctl(&["defrag"]);
    bench.ctl(&["alarm", "disarm"]);
    hold(&ours.lock("b").ttl(LONG_TTL)).await.release().await.unwrap();
    assert_clean(&bench).await;
}

/// A server that starts again has everything it had: holders and waiters go on.
async fn restarts_unnoticed(bench: EtcdBench, server: Arc<EtcdServer>) {
    let (ours, theirs) = (bench.client().await, bench.client().await);
    let guard = hold(&ours.lock("a").ttl(SHORT * 5)).await;
    let first = enqueue(&ours, theirs.lock("a").ttl(LONG_TTL), "a", 1).await;
    let second = enqueue(&ours, ours.lock("a").ttl(LONG_TTL), "a", 2).await;
    let known = guard.valid_until();
    tokio::task::spawn_blocking(move || server.restart()).await.unwrap();
    until_renewed_since(&guard, known).await;
    until_queued(&ours, "a", 2).await;
    let token = guard.token();
    guard.release().await.unwrap();
    let first = granted(first).await;
    assert!(first.token() > token && !second.is_finished());
    first.release().await.unwrap();
    granted(second).await.release().await.unwrap();
    assert_clean(&bench).await;
}

#[tokio::test]
async fn a_restart_costs_nobody_anything() {
    let (bench, server) = EtcdBench::on(&EtcdServerConfig::plain());
    restarts_unnoticed(bench, server).await;
}

#[tokio::test]
async fn a_restart_with_encryption_costs_nobody_anything() {
    let server = Arc::new(EtcdServer::start(&EtcdServerConfig::plain().with_tls(TlsClients::All)));
    let ca = format!("&tls_ca={}", server.certificates().ca.display());
    let bench = EtcdBench::at(&server.tls_url(), &ca, Server::Own(server.clone()));
    restarts_unnoticed(bench, server).await;
}

/// A server stands still for longer than a lease: the holder stops in time, and what reached the server late is undone.
#[tokio::test]
async fn a_server_that_stands_still_loses_the_lock_and_keeps_no_ghost() {
    let (bench, server) = EtcdBench::on(&EtcdServerConfig::plain());
    let client = bench.client().await;
    let guard = hold(&client.lock("a").ttl(SHORT)).await;
    server.pause();
    let late = spawn_waiter(client.lock("b").ttl(SHORT * 2).wait(Duration::from_millis(300)));
    // Held while others are waited for: it must not end on a busy machine.
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

/// Somebody deletes the line behind our back: those who stood in it stand in it again.
#[tokio::test]
async fn a_line_that_was_taken_away_is_made_again() {
    let bench = Arc::new(EtcdBench::plain());
    let client = bench.client().await;
    let guard = hold(&client.lock("a").ttl(LONG_TTL)).await;
    let first = enqueue(&client, client.lock("a").ttl(LONG_TTL), "a", 1).await;
    let second = enqueue(&client, client.lock("a").ttl(LONG_TTL), "a", 2).await;
    for key in &bench.line("a")[1..] {
        bench.ctl(&["del", key]);
    }
    wait::until("they stand in line again", async || bench.line("a").len() == 3).await;
    guard.release().await.unwrap();
    // Whichever was first to come again.
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
