//! Scenario 46: peers and ours under constant load, those that poll and those that share one queue with ours.

mod kazoo;

use fencepost_interop::{Peer, Run, run};

fn no_side_starves(peer: Peer) {
    let shares = run(peer, Run::SHORT_TURNS);
    println!("{}: {shares}", peer.name());
    assert!(shares.is_fair(), "one side starves: {shares}");
}

#[test]
fn no_side_starves_beside_redis_py() {
    no_side_starves(Peer::RedisPy);
}

#[test]
fn no_side_starves_beside_python_redis_lock() {
    no_side_starves(Peer::PythonRedisLock);
}

#[test]
fn no_side_starves_beside_rslock() {
    no_side_starves(Peer::Rslock);
}

/// Scenario 71: turns that take longer than redis-py pauses. The shares depend on the machine; each side has some.
#[test]
fn long_turns_beside_redis_py_are_shared() {
    let shares = run(Peer::RedisPy, Run::LONG_TURNS.until_both_had(5));
    println!("redis-py, long turns: {shares}");
}

/// No increment is lost, and both sides have turns: the names and options in the guide are right.
fn exclude_each_other(peer: Peer) {
    let shares = run(peer, Run::SHORT_TURNS.until_both_had(20));
    println!("{}: {shares}", peer.name());
}

#[test]
fn tooz_and_ours_exclude_each_other() {
    exclude_each_other(Peer::Tooz);
}

/// The queue of the server is that of both sides.
#[test]
fn no_side_starves_beside_advisory_locks_of_tooz() {
    no_side_starves(Peer::ToozPostgres);
}

#[test]
fn pottery_and_ours_exclude_each_other() {
    exclude_each_other(Peer::Pottery);
}

#[test]
fn etcdctl_shares_one_queue_with_ours() {
    no_side_starves(Peer::Etcdctl);
}

#[test]
fn kazoo_shares_one_queue_with_ours() {
    no_side_starves(Peer::Kazoo);
}

#[test]
fn kazoo_shares_one_queue_with_nodes_of_curator() {
    no_side_starves(Peer::KazooAlso);
}
