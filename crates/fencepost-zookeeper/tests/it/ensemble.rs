//! Three servers, of which one is hurt: the others serve on, nobody holds what another holds, and nothing is left.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use fencepost_core::{Client, LostReason};
use fencepost_testkit::servers::zookeeper::Ensemble;
use fencepost_testkit::wait;
use zookeeper_client as zk;

use crate::actions::{LONG_TTL, SHORT, connect, enqueue, granted, hold};

/// All nodes of contenders that are left.
pub(crate) async fn left_over(ensemble: &Ensemble) -> Vec<String> {
    let servers = ensemble.url().trim_start_matches("zk://").to_owned();
    let driver = zk::Client::connect(&servers).await.expect("they serve");
    driver.sync("/").await.expect("they serve");
    let mut left = Vec::new();
    for lock in driver.list_children("/fencepost").await.expect("they serve") {
        if lock != "_fencepost" {
            left.extend(driver.list_children(&format!("/fencepost/{lock}")).await.unwrap_or_default());
        }
    }
    left
}

/// Clients take turns at a counter that only the lock protects, while something happens; then nothing is left.
async fn takes_turns_while(ensemble: &Ensemble, happens: impl FnOnce()) {
    let (inside, turns, is_over) =
        (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)), Arc::new(AtomicBool::new(false)));
    let mut workers = Vec::new();
    for _ in 0..4 {
        let client: Client = connect(&ensemble.url()).await;
        let (inside, turns, is_over) = (inside.clone(), turns.clone(), is_over.clone());
        workers.push(tokio::spawn(async move {
            while !is_over.load(Ordering::SeqCst) {
                let Ok(guard) = client.lock("turn").ttl(SHORT * 4).acquire().await else { continue };
                assert!(!inside.swap(true, Ordering::SeqCst), "two are inside");
                tokio::task::yield_now().await;
                let was_valid = guard.is_valid();
                inside.store(false, Ordering::SeqCst);
                turns.fetch_add(u64::from(was_valid), Ordering::SeqCst);
                let _ = guard.release().await;
            }
            client.close().await;
        }));
    }
    let some_more = async |what: &str| {
        let before = turns.load(Ordering::SeqCst);
        wait::until(what, async || turns.load(Ordering::SeqCst) > before + 20).await;
    };
    some_more("they take turns").await;
    tokio::task::block_in_place(happens);
    some_more("they take turns again").await;
    is_over.store(true, Ordering::SeqCst);
    for worker in workers {
        wait::within_timeout("a worker ends", worker).await.expect("nothing went wrong");
    }
    wait::until("no node is left", async || left_over(ensemble).await.is_empty()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_loss_of_one_server_after_the_other_is_survived() {
    let ensemble = Ensemble::start();
    takes_turns_while(&ensemble, || {
        let follower = ensemble.follower();
        ensemble.server(follower).kill();
        ensemble.server(follower).restart();
        ensemble.wait_until_healthy();
    })
    .await;
    takes_turns_while(&ensemble, || {
        let leader = ensemble.leader();
        ensemble.server(leader).kill();
        ensemble.server(leader).restart();
        ensemble.wait_until_healthy();
    })
    .await;
}

/// A holder that renews keeps its lock while a server that is not its own is lost.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_healthy_client_keeps_its_lock_through_the_loss_of_a_leader() {
    let ensemble = Ensemble::start();
    let client = connect(&ensemble.url()).await;
    let guard = hold(&client.lock("a").ttl(SHORT * 10)).await;
    let leader = ensemble.leader();
    tokio::task::block_in_place(|| ensemble.server(leader).kill());
    let known = guard.valid_until();
    let renewed = wait::within_timeout("it is renewed", guard.renewed(known)).await;
    renewed.expect("it is still held");
    guard.release().await.unwrap();
}

/// Scenario 49: a follower is cut off from the leader while we hold through it. It still answers us, but the lock is lost
/// before the leader gives it to another.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_follower_that_is_cut_off_does_not_keep_a_lock() {
    let ensemble = Ensemble::start();
    let (follower, leader) = (ensemble.follower(), ensemble.leader());
    let ours = connect(&ensemble.server(follower).url()).await;
    let theirs = connect(&ensemble.server(leader).url()).await;
    let guard = hold(&ours.lock("a").ttl(SHORT)).await;
    let waiter = enqueue(&theirs, theirs.lock("a").ttl(LONG_TTL), "a", 1).await;
    ensemble.cut_off(follower);
    let next = granted(waiter).await;
    assert!(!guard.is_valid(), "it believes in its lock when the next has it");
    assert_eq!(guard.lost().await, LostReason::Expired);
    ensemble.heal(follower);
    next.release().await.unwrap();
}
