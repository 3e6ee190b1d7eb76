//! Another process that does as it is told: this test binary, executed again.

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc;
use std::time::Duration;

use fencepost_core::clock::Clock;
use fencepost_core::{Client, Guard};
use fencepost_testkit::wait::{self, PATIENCE};
use rustix::process::{Pid, Signal, kill_process};

const STRINGS: &str = "FENCEPOST_TEST_PUPPET";

/// The other process, as the test sees it.
pub(crate) struct Puppet {
    child: Child,
    strings: ChildStdin,
    words: mpsc::Receiver<String>,
}

impl Puppet {
    /// A process with a client of its own.
    pub(crate) fn new(url: &str) -> Self {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["puppet::dances", "--exact", "--nocapture", "--test-threads=1"]).env(STRINGS, url);
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("it starts");
        let strings = child.stdin.take().expect("it is piped");
        let output = BufReader::new(child.stdout.take().expect("it is piped"));
        let (tell, words) = mpsc::channel();
        std::thread::spawn(move || {
            for line in output.lines().map_while(Result::ok) {
                // The test runner writes a line of its own before the first word.
                if let Some((_, word)) = line.split_once("puppet: ") {
                    let _ = tell.send(word.to_owned());
                }
            }
        });
        Self { child, strings, words }
    }

    pub(crate) fn say(&mut self, command: &str) {
        writeln!(self.strings, "{command}").expect("it listens");
    }

    /// What it says next, which begins with this word.
    pub(crate) fn hear(&self, word: &str) -> String {
        let said =
            self.words.recv_timeout(PATIENCE).unwrap_or_else(|_| panic!("waited in vain for {word:?}"));
        match said.strip_prefix(word) {
            Some(rest) => rest.trim().to_owned(),
            None => panic!("waited for {word:?}, heard {said:?}"),
        }
    }

    /// Everything that it has said and that nobody has heard yet.
    pub(crate) fn heard(&self) -> Vec<String> {
        self.words.try_iter().collect()
    }

    /// Kills it, and waits until everything that it has said has arrived.
    pub(crate) fn kill(&mut self) -> Vec<String> {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
        self.words.iter().collect()
    }

    pub(crate) fn stop(&self) {
        kill_process(Pid::from_child(&self.child), Signal::STOP).unwrap();
        let stat = format!("/proc/{}/stat", self.child.id());
        wait::block_until("it stands still", || {
            let stat = std::fs::read_to_string(&stat).unwrap();
            stat.rsplit(") ").next().is_some_and(|rest| rest.starts_with('T'))
        });
    }

    pub(crate) fn go_on(&self) {
        kill_process(Pid::from_child(&self.child), Signal::CONT).unwrap();
    }
}

impl Drop for Puppet {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Not a test by itself: what the other process does. Without strings it hangs still.
#[test]
fn dances() {
    let Ok(url) = std::env::var(STRINGS) else { return };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let client = fencepost_redis::connect(&url).await.unwrap();
        let mut guards = Vec::new();
        for line in std::io::stdin().lines().map_while(Result::ok) {
            let words: Vec<&str> = line.split_whitespace().collect();
            dance(&client, &mut guards, &words).await;
        }
    });
}

async fn dance(client: &Client, guards: &mut Vec<Guard>, words: &[&str]) {
    match words {
        ["acquire", name, ttl] => match client.lock(name).ttl(millis(ttl)).acquire().await {
            Ok(guard) => {
                tell(&format!("granted {}", guard.token()));
                guards.push(guard);
            }
            Err(error) => tell(&format!("failed {error}")),
        },
        // Takes turns until it is killed, and says of each when it began and until when it was seen to last.
        ["turns", name, ttl] => loop {
            let clock = Clock::system();
            let Ok(guard) = client.lock(name).ttl(millis(ttl)).acquire().await else {
                continue;
            };
            let from = clock.now();
            if !guard.is_valid() {
                continue;
            }
            tokio::task::yield_now().await;
            let to = clock.now();
            if guard.is_valid() {
                tell(&format!("turn {} {} {}", guard.token(), from.as_nanos(), to.as_nanos()));
            }
            // Of a lock that is lost there is nothing to give back.
            let _ = guard.release().await;
        },
        _ => panic!("what is {words:?}?"),
    }
}

fn millis(text: &str) -> Duration {
    Duration::from_millis(text.parse().unwrap())
}

fn tell(word: &str) {
    println!("puppet: {word}");
}
