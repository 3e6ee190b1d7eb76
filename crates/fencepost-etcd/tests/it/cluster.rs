//! Clusters of three members: one is killed, or is paused and resumes as a former leader.

use std::sync::Arc;
use std::time::Duration;

use fencepost_core::LostReason;
use fencepost_testkit::TestBench;
use fencepost_testkit::servers::etcd::{EtcdCluster, EtcdServer, EtcdServerConfig};
use fencepost_testkit::suite::assert_clean;
use fencepost_testkit::wait;

use crate::actions::{LONG_TTL, connect, enqueue, granted, hold, spawn_waiter, until_renewed_since};
use crate::bench::{EtcdBench, Server};

/// Longer than a failover to another member and an election.
const TTL: Duration = Duration::from_secs(9);

/// Runs a blocking function on the cluster while the clients continue.
async fn blocking(cluster: &Arc<EtcdCluster>, function: impl FnOnce(&EtcdCluster) + Send + 'static) {
    let cluster = cluster.clone();
    tokio::task::spawn_blocking(move || function(&cluster)).await.unwrap();
}

fn urls(cluster: &EtcdCluster, first: usize) -> String {
    let ports = cluster.ports();
    let members: Vec<String> =
        (0..3).map(|offset| format!("127.0.0.1:{}", ports[(first + offset) % 3])).collect();
    format!("etcd://{}", members.join(","))
}

/// The member that the clients use, the leader and a follower are killed, one after the other: the holder keeps its lock,
/// the waiter its position, and no key is left.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn locks_and_waiters_survive_the_loss_of_any_member() {
    let cluster = Arc::new(EtcdCluster::start());
    for case in ["the leader, in use", "a follower, in use", "the leader, not in use"] {
        let leader = cluster.leader();
        let follower = (leader + 1) % 3;
        let (used, victim) = match case {
            "the leader, in use" => (leader, leader),
            "a follower, in use" => (follower, follower),
            _ => (follower, leader),
        };
        let bench = EtcdBench::at(&urls(&cluster, used), "", Server::Cluster(cluster.clone()));
        let (client_a, client_b) = (bench.client().await, bench.client().await);
        let guard = hold(&client_a.lock("a").ttl(TTL)).await;
        let waiter = enqueue(&client_a, client_b.lock("a").ttl(TTL), "a", 1).await;
        let known = guard.valid_until();
        blocking(&cluster, move |cluster| cluster.member(victim).kill()).await;
        until_renewed_since(&guard, known).await;
        let token = guard.token();
        wait::within_timeout("it is released", guard.release()).await.unwrap();
        let next = granted(waiter).await;
        assert!(next.token() > token, "{case}");
        next.release().await.unwrap();
        blocking(&cluster, move |cluster| {
            cluster.member(victim).restart();
            cluster.wait_until_healthy();
        })
        .await;
        assert_clean(&bench).await;
    }
}

/// Scenario 3: the leader is paused for five seconds and resumes as a former leader. A client that uses only this member,
/// and whose key was deleted meanwhile, loses its lock when the member resumes; a client that can use the others is not
/// affected.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_former_leader_renews_no_lock() {
    let cluster = Arc::new(EtcdCluster::start());
    let leader = cluster.leader();
    let all = EtcdBench::at(&urls(&cluster, leader), "", Server::Cluster(cluster.clone()));
    let one = format!("etcd://127.0.0.1:{}?namespace={}", cluster.ports()[leader], all.namespace());
    let (stuck, healthy) = (connect(&one).await, all.client().await);
    let lost = hold(&stuck.lock("a").ttl(LONG_TTL)).await;
    let kept = hold(&healthy.lock("b").ttl(TTL)).await;
    let known = kept.valid_until();
    cluster.member(leader).pause();
    let prefix = format!("{}/lock/a/", all.namespace());
    let others = [(leader + 1) % 3, (leader + 2) % 3];
    blocking(&cluster, move |cluster| {
        let next: &EtcdServer = cluster.member(cluster.leader_among(&others));
        next.ctl(&["del", "--prefix", &prefix]);
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

/// Scenario 60: the disk of the leader hangs for longer than the ttl, and another leader renews. When the disk recovers,
/// the former leader revokes the leases that it knows: guards and waiters no longer depend on those.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_former_leader_whose_disk_hung_ends_no_lock() {
    const GUARDS: usize = 24;
    let cluster = Arc::new(EtcdCluster::start_with(&EtcdServerConfig::plain().with_hanging_disk()));
    let old = cluster.leader();
    let others = [(old + 1) % 3, (old + 2) % 3];
    let bench = EtcdBench::at(&urls(&cluster, others[0]), "", Server::Cluster(cluster.clone()));
    let (client_a, client_b) = (bench.client().await, bench.client().await);
    let mut guards = Vec::new();
    for number in 0..GUARDS {
        guards.push(hold(&client_a.lock(format!("{number}")).ttl(TTL)).await);
    }
    let queue = bench.queue("0");
    let revision = bench.create_revision(&queue[0]);
    let waiter = enqueue(&client_a, client_b.lock("0").ttl(TTL), "0", 1).await;
    cluster.member(old).hang_disk();
    // A leader without writes does not notice.
    let write = spawn_waiter(client_a.lock("write").ttl(TTL));
    blocking(&cluster, move |cluster| {
        cluster.leader_among(&others);
    })
    .await;
    // By then the leases have expired on the former leader.
    wait::elapse(TTL * 3 / 2).await;
    let validities: Vec<_> = guards.iter().map(fencepost_core::Guard::valid_until).collect();
    cluster.member(old).resume_disk();
    blocking(&cluster, EtcdCluster::wait_until_healthy).await;
    for (guard, known) in guards.iter().zip(validities) {
        if guard.lost_reason().is_none() {
            let _ = wait::within_timeout("it is renewed or lost", guard.renewed(known)).await;
        }
    }
    let lost = guards.iter().filter(|guard| guard.lost_reason().is_some()).count();
    assert_eq!(lost, 0, "of {GUARDS} guards");
    assert_eq!(bench.create_revision(&bench.queue("0")[0]), revision, "a token has changed");
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
