//! Kills, pauses and restarts servers one after the other while several processes increment a number in a plain file: no
//! increment is lost or doubled, and no lease of a running process is lost.

use std::path::Path;
use std::time::Duration;

use fencepost_core::clock::Clock;

use crate::rng::Rng;
use crate::scripted_process::ScriptedProcess;
use crate::wait;

/// The number of processes. Each of them holds another lock the whole time.
pub const PROCESSES: usize = 4;
/// In milliseconds, longer than any of the outages.
const TTL: u64 = 10_000;
const DURATION: Duration = Duration::from_secs(20);

/// Three servers of one cluster: while one of them is down, the others serve.
pub trait ServerGroup {
    /// Returns the index of the leader.
    fn leader(&self) -> usize;

    /// Takes one server down for a while; it is up again when this returns.
    fn take_down(&self, server: usize, outage: Outage);

    /// Waits until all three serve.
    fn wait_until_healthy(&self);
}

/// The kind and duration of an outage.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outage {
    /// The server is killed, and started again.
    Killed(Duration),
    /// The server is paused, and resumed.
    Stopped(Duration),
}

/// Runs processes that lock at this URL while the servers have outages. Afterwards the processes still hold their locks
/// `kept/0`, `kept/1` and so on, and the lock `a` is idle.
///
/// # Panics
/// If an increment is lost or doubled, if a process has lost a lock, or if there is no progress.
pub fn run(servers: &impl ServerGroup, url: &str) -> Vec<ScriptedProcess> {
    let folder = tempfile::tempdir().expect("a directory can be created");
    let folder = folder.path();
    std::fs::write(folder.join("count"), "0 0").expect("it can be written");
    let mut processes: Vec<ScriptedProcess> = (0..PROCESSES).map(|_| ScriptedProcess::new(url)).collect();
    for (number, process) in processes.iter_mut().enumerate() {
        process.send(&format!("acquire kept/{number} {TTL}"));
        process.receive("granted");
        process.send(&format!("count a {TTL} {}", folder.display()));
    }
    let (clock, mut rng) = (Clock::system(), Rng::new(11));
    let over = clock.now() + DURATION;
    let mut outages = 0;
    while clock.now() < over {
        wait_for_progress(folder);
        take_one_down(servers, &mut rng);
        outages += 1;
    }
    wait_for_progress(folder);
    std::fs::write(folder.join("stop"), "").expect("it can be written");
    let mut sum = 0;
    for process in &mut processes {
        sum += process.receive("counted").parse::<u64>().expect("a whole number");
        process.send("kept");
        process.receive("kept");
    }
    assert_eq!(counted(folder), sum, "after {outages} outages");
    processes
}

/// Takes one of the servers down, and waits until all serve again.
fn take_one_down(servers: &impl ServerGroup, rng: &mut Rng) {
    let victim = if rng.percent(50) { servers.leader() } else { rng.index(3) };
    let outage = if rng.percent(50) {
        Outage::Killed(rng.time(Duration::from_millis(1500)))
    } else {
        Outage::Stopped(rng.time(Duration::from_secs(3)))
    };
    servers.take_down(victim, outage);
    servers.wait_until_healthy();
}

/// Returns the number in the file.
fn counted(folder: &Path) -> u64 {
    let text = std::fs::read_to_string(folder.join("count")).expect("it can be read");
    text.split(' ').next().and_then(|number| number.parse().ok()).unwrap_or(0)
}

/// Waits until the number grows: locks are granted.
fn wait_for_progress(folder: &Path) {
    let known = loop {
        // The file is empty while it is being written.
        match counted(folder) {
            0 => std::thread::yield_now(),
            known => break known,
        }
    };
    wait::block_until("the number grows", || counted(folder) > known + 5);
}
