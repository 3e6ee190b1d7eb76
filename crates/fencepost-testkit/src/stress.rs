//! Servers of which one after the other is killed, stopped and started again, while several processes count in a plain file:
//! nothing is lost, nobody counts twice, and no lease of a process that is well ends.

use std::path::Path;
use std::time::Duration;

use fencepost_core::clock::Clock;

use crate::rng::Rng;
use crate::scripted_process::ScriptedProcess;
use crate::wait;

/// How many processes count. Each of them holds one more lock, the whole time.
pub const PROCESSES: usize = 4;
/// In milliseconds, longer than any of the outages.
const TTL: u64 = 10_000;
const STORM: Duration = Duration::from_secs(20);

/// Three servers that hold together: while one of them is away, the others serve.
pub trait Trio {
    /// Which of them leads.
    fn leader(&self) -> usize;

    /// One of them is away for a while, and has come back when this returns.
    fn suffer(&self, server: usize, outage: Outage);

    /// Waits until all three serve.
    fn wait_until_healthy(&self);
}

/// How a server is away, and for how long.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outage {
    /// It is killed, and started again.
    Killed(Duration),
    /// It stands still, and goes on.
    Stopped(Duration),
}

/// Lets the storm pass over the servers and over processes that lock at this URL. Afterwards the processes still hold
/// their locks `kept/0`, `kept/1` and so on, and nobody wants the lock `a` any more.
///
/// # Panics
/// If something was counted twice or not at all, if a process has lost a lock, or if nobody goes on.
pub fn run(servers: &impl Trio, url: &str) -> Vec<ScriptedProcess> {
    let folder = tempfile::tempdir().expect("there is room for a folder");
    let folder = folder.path();
    std::fs::write(folder.join("count"), "0 0").expect("it can be written");
    let mut processes: Vec<ScriptedProcess> = (0..PROCESSES).map(|_| ScriptedProcess::new(url)).collect();
    for (number, process) in processes.iter_mut().enumerate() {
        process.send(&format!("acquire kept/{number} {TTL}"));
        process.receive("granted");
        process.send(&format!("count a {TTL} {}", folder.display()));
    }
    let (clock, mut rng) = (Clock::system(), Rng::new(11));
    let over = clock.now() + STORM;
    let mut outages = 0;
    while clock.now() < over {
        goes_on(folder);
        hurt_one(servers, &mut rng);
        outages += 1;
    }
    goes_on(folder);
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

/// Hurts one of the servers, and waits until it has come back.
fn hurt_one(servers: &impl Trio, rng: &mut Rng) {
    let victim = if rng.percent(50) { servers.leader() } else { rng.index(3) };
    let outage = if rng.percent(50) {
        Outage::Killed(rng.time(Duration::from_millis(1500)))
    } else {
        Outage::Stopped(rng.time(Duration::from_secs(3)))
    };
    servers.suffer(victim, outage);
    servers.wait_until_healthy();
}

/// How far they have counted.
fn counted(folder: &Path) -> u64 {
    let text = std::fs::read_to_string(folder.join("count")).expect("it can be read");
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
