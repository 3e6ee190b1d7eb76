//! Three servers, of which one after the other is killed, stopped and started again, and several processes that count in a
//! plain file: nothing is lost, nobody counts twice, no lease of a process that is well ends, and no node is left.

use std::path::Path;
use std::time::Duration;

use fencepost_core::clock::Clock;
use fencepost_testkit::dice::Dice;
use fencepost_testkit::servers::zookeeper::Ensemble;
use fencepost_testkit::wait;

use crate::ensemble::left_over;
use crate::puppet::Puppet;

const PROCESSES: usize = 4;
/// Longer than any of the outages.
const TTL: &str = "10000";
const STORM: Duration = Duration::from_secs(18);

/// How far they have counted.
fn counted(folder: &Path) -> u64 {
    let text = std::fs::read_to_string(folder.join("count")).unwrap();
    text.split(' ').next().and_then(|number| number.parse().ok()).unwrap_or(0)
}

/// Waits until somebody has counted further: the locks are served.
fn goes_on(folder: &Path) {
    let known = loop {
        // A file that is just being written is empty.
        match counted(folder) {
            0 => std::thread::yield_now(),
            known => break known,
        }
    };
    wait::block_until("they go on counting", || counted(folder) > known + 5);
}

/// Hurts one of the servers, and waits until it has come back.
fn hurt_one(ensemble: &Ensemble, dice: &mut Dice) {
    let victim = match dice.below(2) {
        0 => ensemble.leader(),
        _ => usize::try_from(dice.below(3)).unwrap(),
    };
    let server = ensemble.server(victim);
    if dice.percent(50) {
        server.kill();
        wait::block_thread_for(dice.time(Duration::from_millis(1500)));
        server.restart();
    } else {
        server.pause();
        wait::block_thread_for(dice.time(Duration::from_secs(3)));
        server.resume();
    }
    ensemble.wait_until_whole();
}

#[test]
fn nothing_is_lost_while_servers_come_and_go() {
    let ensemble = Ensemble::start();
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("count"), "0 0").unwrap();
    let mut puppets: Vec<Puppet> = (0..PROCESSES).map(|_| Puppet::new(&ensemble.url())).collect();
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
        hurt_one(&ensemble, &mut dice);
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
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    runtime.block_on(async {
        // Their sessions live, so that nothing but they themselves has removed what they had.
        let left = async || left_over(&ensemble).await.len();
        wait::until("only what is held is left", async || left().await == PROCESSES).await;
        drop(puppets);
        wait::until("no node is left", async || left().await == 0).await;
    });
}
