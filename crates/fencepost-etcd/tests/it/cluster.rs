//! Three members: one is lost, or stands still and comes back in the belief that it leads.

use std::sync::Arc;
use std::time::Duration;

use fencepost_core::LostReason;
use fencepost_testkit::TestBench;
use fencepost_testkit::servers::etcd::{EtcdCluster, EtcdServer, EtcdServerConfig};
use fencepost_testkit::suite::assert_clean;
use fencepost_testkit::wait;

use crate::actions::{LONG_TTL, connect, enqueue, granted, hold, spawn_waiter, until_renewed_since};
use crate::bench::{EtcdBench, Server};

/// Longer than it takes to find another member and for that one to have a leader.
const TTL: Duration = Duration::from_secs(9);

/// Does what blocks, while the clients go on.
async fn meanwhile(cluster: &Arc<EtcdCluster>, hurt: impl FnOnce(&EtcdCluster) + Send + 'static) {
    let cluster = cluster.clone();
    tokio::task::spawn_blocking(move || hurt(&cluster)).await.unwrap();
}

fn urls(cluster: &EtcdCluster, first: usize) -> String {
    let ports = cluster.ports();
    let members: Vec<String> = (0..3).map(|at| format!("127.0.0.1:{}", ports[(first + at) % 3])).collect();
    format!("etcd://{}", members.join(","))
}

/// The member that all ask, the leader and a follower die, one after the other, with kill -9: a holder keeps its lock, a waiter
/// its place, and no key is left.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_loss_of_any_member_costs_nobody_anything() {
    let cluster = Arc::new(EtcdCluster::start());
    for what in ["the leader that all ask", "the follower that all ask", "the leader that nobody asks"] {
        let leader = cluster.leader();
        let follower = (leader + 1) % 3;
        let (asked, victim) = match what {
            "the leader that all ask" => (leader, leader),
            "the follower that all ask" => (follower, follower),
            _ => (follower, leader),
        };
        let bench = EtcdBench::at(&urls(&cluster, asked), "", Server::Cluster(cluster.clone()));
        let (ours, theirs) = (bench.client().await, bench.client().await);
        let guard = hold(&ours.lock("a").ttl(TTL)).await;
        let waiter = enqueue(&ours, theirs.lock("a").ttl(TTL), "a", 1).await;
        let known = guard.valid_until();
        meanwhile(&cluster, move |cluster| cluster.member(victim).kill()).await;
        until_renewed_since(&guard, known).await;
        let token = guard.token();
        wait::within_timeout("it is given back", guard.release()).await.unwrap();
        let next = granted(waiter).await;
        assert!(next.token() > token, "{what}");
        next.release().await.unwrap();
        meanwhile(&cluster, move |cluster| {
            cluster.member(victim).restart();
            cluster.wait_until_healthy();
        })
        .await;
        assert_clean(&bench).await;
    }
}

/// Scenario 3: the leader is stopped for five seconds and goes on in the belief that it leads. Whoever asked only it, and whose
/// key is gone meanwhile, learns of it as soon as it goes on; whoever can ask the others notices nothing.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_leader_that_was_stopped_tells_nobody_that_it_holds() {
    let cluster = Arc::new(EtcdCluster::start());
    let leader = cluster.leader();
    let all = EtcdBench::at(&urls(&cluster, leader), "", Server::Cluster(cluster.clone()));
    let one = format!("etcd://127.0.0.1:{}?namespace={}", cluster.ports()[leader], all.namespace());
    let (stuck, healthy) = (connect(&one).await, all.client().await);
    let lost = hold(&stuck.lock("a").ttl(LONG_TTL)).await;
    let kept = hold(&healthy.lock("b").ttl(TTL)).await;
    let known = kept.valid_until();
    cluster.member(leader).pause();
    let line = format!("{}/lock/a/", all.namespace());
    let others = [(leader + 1) % 3, (leader + 2) % 3];
    meanwhile(&cluster, move |cluster| {
        let next: &EtcdServer = cluster.member(cluster.leader_among(&others));
        next.ctl(&["del", "--prefix", &line]);
        wait::block_thread_for(Duration::from_secs(4));
    })
    .await;
    let next = hold(&healthy.lock("a").ttl(TTL)).await;
    assert!(next.token() > lost.token());
    cluster.member(leader).resume();
    assert_eq!(wait::within_timeout("it is lost", lost.lost()).await, LostReason::NotHeld);
    until_renewed_since(&kept, known).await;
    assert_eq!((kept.lost_reason(), next.lost_reason()), (None, None));
    next.release().await.unwrap();
    kept.release().await.unwrap();
    drop(lost);
    assert_clean(&all).await;
}

/// Scenario 60: the disk of the leader hangs for longer than the ttl, and another leader renews. When the disk is back, the old
/// leader revokes the leases that it knows: they are not those that guards and waiters depend on by then.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_leader_whose_disk_has_hung_ends_no_lock() {
    const GUARDS: usize = 24;
    let cluster = Arc::new(EtcdCluster::start_with(&EtcdServerConfig::plain().with_hanging_disk()));
    let old = cluster.leader();
    let others = [(old + 1) % 3, (old + 2) % 3];
    let bench = EtcdBench::at(&urls(&cluster, others[0]), "", Server::Cluster(cluster.clone()));
    let (ours, theirs) = (bench.client().await, bench.client().await);
    let mut guards = Vec::new();
    for number in 0..GUARDS {
        guards.push(hold(&ours.lock(format!("{number}")).ttl(TTL)).await);
    }
    let line = bench.line("0");
    let made = bench.made(&line[0]);
    let waiter = enqueue(&ours, theirs.lock("0").ttl(TTL), "0", 1).await;
    cluster.member(old).hang_disk();
    // A leader that has nothing to write does not notice.
    let write = spawn_waiter(ours.lock("write").ttl(TTL));
    meanwhile(&cluster, move |cluster| {
        cluster.leader_among(&others);
    })
    .await;
    // The old leader has found the leases to be over by then.
    wait::elapse(TTL * 3 / 2).await;
    let before: Vec<_> = guards.iter().map(fencepost_core::Guard::valid_until).collect();
    cluster.member(old).resume_disk();
    meanwhile(&cluster, EtcdCluster::wait_until_healthy).await;
    for (guard, known) in guards.iter().zip(before) {
        if guard.lost_reason().is_none() {
            let _ = wait::within_timeout("it is renewed or lost", guard.renewed(known)).await;
        }
    }
    let lost = guards.iter().filter(|guard| guard.lost_reason().is_some()).count();
    assert_eq!(lost, 0, "of {GUARDS} guards");
    assert_eq!(bench.made(&bench.line("0")[0]), made, "a token has changed");
    let token = guards[0].token();
    for guard in guards {
        guard.release().await.unwrap();
    }
    let next = granted(waiter).await;
    assert!(next.token() > token);
    next.release().await.unwrap();
    granted(write).await.release().await.unwrap();
    assert_clean(&bench).await;
}
