//! Three members, of which one after the other is killed, stopped and started again, and several processes that count in a
//! plain file: nothing is lost, nobody counts twice, and no key is left.

use std::sync::Arc;
use std::time::Duration;

use fencepost_core::clock::Clock;
use fencepost_testkit::TestBench;
use fencepost_testkit::dice::Dice;
use fencepost_testkit::servers::etcd::EtcdCluster;
use fencepost_testkit::suite::assert_clean;
use fencepost_testkit::wait;

use crate::bench::{EtcdBench, Server};
use crate::puppet::Puppet;

const PROCESSES: u64 = 4;
/// Longer than any of the outages.
const TTL: &str = "10000";
const STORM: Duration = Duration::from_secs(20);

/// How far they have counted.
fn counted(folder: &std::path::Path) -> u64 {
    let text = std::fs::read_to_string(folder.join("count")).unwrap();
    text.split(' ').next().and_then(|number| number.parse().ok()).unwrap_or(0)
}

/// Waits until somebody has counted further: the locks are served.
fn goes_on(folder: &std::path::Path) {
    let known = loop {
        // A file that is just being written is empty.
        match counted(folder) {
            0 => std::thread::yield_now(),
            known => break known,
        }
    };
    wait::block_until("they go on counting", || counted(folder) > known + 5);
}

#[test]
fn nothing_is_lost_while_members_come_and_go() {
    let cluster = Arc::new(EtcdCluster::start());
    let bench = EtcdBench::at(&cluster.url(), "", Server::Cluster(cluster.clone()));
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("count"), "0 0").unwrap();
    let mut puppets: Vec<Puppet> = (0..PROCESSES).map(|_| Puppet::new(bench.url())).collect();
    for (number, puppet) in puppets.iter_mut().enumerate() {
        puppet.say(&format!("acquire kept/{number} {TTL}"));
        puppet.hear("granted");
        puppet.say(&format!("count a {TTL} {}", folder.path().display()));
    }
    let (clock, mut dice) = (Clock::system(), Dice::new(11));
    let over = clock.now() + STORM;
    let mut outages = 0;
    while clock.now() < over {
        goes_on(folder.path());
        let victim = match dice.below(2) {
            0 => cluster.leader(),
            _ => usize::try_from(dice.below(3)).unwrap(),
        };
        let member = cluster.member(victim);
        if dice.percent(50) {
            member.kill();
            wait::block_thread_for(dice.time(Duration::from_millis(1500)));
            member.restart();
        } else {
            member.pause();
            wait::block_thread_for(dice.time(Duration::from_secs(3)));
            member.resume();
        }
        cluster.wait_until_whole();
        outages += 1;
    }
    goes_on(folder.path());
    std::fs::write(folder.path().join("stop"), "").unwrap();
    let mut sum = 0;
    for puppet in &mut puppets {
        sum += puppet.hear("counted").parse::<u64>().unwrap();
        puppet.say("kept");
        puppet.hear("kept");
    }
    assert_eq!(counted(folder.path()), sum, "after {outages} outages");
    // While their leases live: whatever nobody remembers would stay.
    wait::block_until("nobody is left in line", || bench.line("a").is_empty());
    drop(puppets);
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    runtime.block_on(async {
        // What the processes held ends with their leases.
        assert_clean(&bench).await;
        bench.client().await.close().await;
    });
}
