//! Scenario 46: peers and ours under never-ending work, those that poll and those that wait in one line with us.

mod kazoo;

use fencepost_interop::{Peer, run};

fn nobody_starves(peer: Peer) {
    let shares = run(peer);
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
