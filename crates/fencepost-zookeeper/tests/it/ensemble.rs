//! An ensemble of three servers with one failure: the others serve, exclusion holds, and no node remains.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use fencepost_core::{Client, LostReason};
use fencepost_testkit::servers::zookeeper::Ensemble;
use fencepost_testkit::wait;
use zookeeper_client as zk;

use crate::actions::{LONG_TTL, SHORT_TTL, connect, enqueue, granted, hold};

/// Returns all contenders' nodes that remain.
pub(crate) async fn remaining_nodes(ensemble: &Ensemble) -> Vec<String> {
    let servers = ensemble.url().trim_start_matches("zk://").to_owned();
    let driver = zk::Client::connect(&servers).await.expect("the ensemble serves");
    driver.sync("/").await.expect("the ensemble serves");
    let mut nodes = Vec::new();
    for lock in driver.list_children("/fencepost").await.expect("the ensemble serves") {
        if lock != "_fencepost" {
            nodes.extend(driver.list_children(&format!("/fencepost/{lock}")).await.unwrap_or_default());
        }
    }
    nodes
}

/// Clients take turns in a critical section while `disturb` runs; no node remains afterwards.
async fn takes_turns_while(ensemble: &Ensemble, disturb: impl FnOnce()) {
    let (held, turns, is_done) =
        (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)), Arc::new(AtomicBool::new(false)));
    let mut workers = Vec::new();
    for _ in 0..4 {
        let client: Client = connect(&ensemble.url()).await;
        let (held, turns, is_done) = (held.clone(), turns.clone(), is_done.clone());
        workers.push(tokio::spawn(async move {
            while !is_done.load(Ordering::SeqCst) {
                let Ok(guard) = client.lock("turn").ttl(SHORT_TTL * 4).acquire().await else { continue };
                assert!(!held.swap(true, Ordering::SeqCst), "two clients hold the lock");
                tokio::task::yield_now().await;
                let was_valid = guard.is_valid();
                held.store(false, Ordering::SeqCst);
                turns.fetch_add(u64::from(was_valid), Ordering::SeqCst);
                let _ = guard.release().await;
            }
            client.close().await;
        }));
    }
    let more_turns = async |what: &str| {
        let before = turns.load(Ordering::SeqCst);
        wait::until(what, async || turns.load(Ordering::SeqCst) > before + 20).await;
    };
    more_turns("clients take turns").await;
    tokio::task::block_in_place(disturb);
    more_turns("clients take turns again").await;
    is_done.store(true, Ordering::SeqCst);
    for worker in workers {
        wait::within_timeout("a worker ends", worker).await.expect("no assertion failed");
    }
    wait::until("no node is left", async || remaining_nodes(ensemble).await.is_empty()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_loss_of_each_server_in_turn_is_survived() {
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

/// A holder that renews keeps its lock while a server that it is not connected to fails.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_healthy_client_keeps_its_lock_through_the_loss_of_a_leader() {
    let ensemble = Ensemble::start();
    let client = connect(&ensemble.url()).await;
    let guard = hold(&client.lock("a").ttl(SHORT_TTL * 10)).await;
    let leader = ensemble.leader();
    tokio::task::block_in_place(|| ensemble.server(leader).kill());
    let known = guard.valid_until();
    let renewed = wait::within_timeout("it is renewed", guard.renewed(known)).await;
    renewed.expect("it is still held");
    guard.release().await.unwrap();
}

/// Scenario 49: a follower is cut off from the leader while a client holds a lock through it. It still answers the
/// client, but the lock is lost before the leader grants it to another client.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_follower_that_is_cut_off_does_not_keep_a_lock() {
    let ensemble = Ensemble::start();
    let (follower, leader) = (ensemble.follower(), ensemble.leader());
    let client = connect(&ensemble.server(follower).url()).await;
    let other = connect(&ensemble.server(leader).url()).await;
    let guard = hold(&client.lock("a").ttl(SHORT_TTL)).await;
    let waiter = enqueue(&other, other.lock("a").ttl(LONG_TTL), "a", 1).await;
    ensemble.cut_off(follower);
    let next = granted(waiter).await;
    assert!(!guard.is_valid(), "it is valid although the next client holds the lock");
    assert_eq!(guard.lost().await, LostReason::Expired);
    ensemble.heal(follower);
    next.release().await.unwrap();
}
