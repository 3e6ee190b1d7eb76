//! Crashed processes: when their locks are released.

use std::time::Duration;

use fencepost_core::clock::Clock;
use fencepost_testkit::scripted_process::ScriptedProcess;
use fencepost_testkit::servers::zookeeper::{Ensemble, ZooKeeperServer, ZooKeeperServerConfig};

use crate::actions::{LONG_TTL, connect, enqueue, granted};

const TTL: Duration = Duration::from_secs(2);
/// What is guaranteed beyond the ttl: a tick, which is 100 ms here, and a second of tolerance.
const TOLERANCE: Duration = Duration::from_millis(1100);

async fn is_released_in_time(holder_url: &str, waiter_url: &str) {
    let mut crashing = ScriptedProcess::new(holder_url);
    crashing.send(&format!("acquire a {}", TTL.as_millis()));
    crashing.receive("granted");
    let client = connect(waiter_url).await;
    let waiter = enqueue(&client, client.lock("a").ttl(LONG_TTL), "a", 1).await;
    let clock = Clock::system();
    let crashed_at = clock.now();
    drop(crashing);
    let next = granted(waiter).await;
    let took = clock.now().since(crashed_at);
    assert!(took <= TTL + TOLERANCE, "the lock of a process that was killed was free after {took:?}");
    next.release().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_lock_of_a_crashed_process_is_released_after_ttl_and_tick() {
    let server = ZooKeeperServer::start(&ZooKeeperServerConfig::plain());
    is_released_in_time(&server.url(), &server.url()).await;
}

/// A follower reports later to the leader, and sessions are a little longer for that.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_lock_of_a_crashed_process_behind_a_follower_is_released_in_time() {
    let ensemble = Ensemble::start();
    let (follower, leader) = (ensemble.follower(), ensemble.leader());
    is_released_in_time(&ensemble.server(follower).url(), &ensemble.server(leader).url()).await;
}
