//! Scenario 46: peers that poll and ours under never-ending work.

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
