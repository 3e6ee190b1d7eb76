//! Scenario 46: peers and ours under never-ending work, those that poll and those that wait in one line with us.

mod kazoo;

use fencepost_interop::{Peer, Run, run};

fn nobody_starves(peer: Peer) {
    let shares = run(peer, Run::SHORT_TURNS);
    println!("{}: {shares}", peer.name());
    assert!(shares.is_fair(), "one side starves: {shares}");
}

#[test]
fn nobody_starves_beside_redis_py() {
    nobody_starves(Peer::RedisPy);
}

#[test]
fn nobody_starves_beside_python_redis_lock() {
    nobody_starves(Peer::PythonRedisLock);
}

#[test]
fn nobody_starves_beside_rslock() {
    nobody_starves(Peer::Rslock);
}

/// Scenario 71: turns that take longer than redis-py pauses. How many each side has is up to the machine; neither goes without.
#[test]
fn long_turns_beside_redis_py_are_shared() {
    let shares = run(Peer::RedisPy, Run::LONG_TURNS.until_both_had(5));
    println!("redis-py, long turns: {shares}");
}

/// Nothing is lost, and both sides have turns: the names and options that the guide gives are right.
fn exclude_each_other(peer: Peer) {
    let shares = run(peer, Run::SHORT_TURNS.until_both_had(20));
    println!("{}: {shares}", peer.name());
}

#[test]
fn tooz_and_ours_exclude_each_other() {
    exclude_each_other(Peer::Tooz);
}

#[test]
fn pottery_and_ours_exclude_each_other() {
    exclude_each_other(Peer::Pottery);
}

#[test]
fn etcdctl_waits_in_one_line_with_us() {
    nobody_starves(Peer::Etcdctl);
}

#[test]
fn kazoo_waits_in_one_line_with_us() {
    nobody_starves(Peer::Kazoo);
}

#[test]
fn kazoo_waits_in_one_line_with_nodes_of_curator() {
    nobody_starves(Peer::KazooAlso);
}
