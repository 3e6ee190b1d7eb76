//! Another process that does as it is told: this test binary, executed again.

use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc;
use std::time::Duration;

use fencepost_core::{Client, Guard, Lock};
use fencepost_testkit::wait::PATIENCE;

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
        let client = fencepost_zookeeper::connect(&url).await.unwrap();
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
        // Holds a lock until it is asked about it.
        ["kept"] => {
            let lost = guards.iter().find_map(Guard::lost_reason);
            tell(&lost.map_or_else(|| "kept".to_owned(), |why| format!("lost {why:?}")));
        }
        ["count", name, ttl, folder] => count(&client.lock(name).ttl(millis(ttl)), Path::new(folder)).await,
        _ => panic!("what is {words:?}?"),
    }
}

/// Counts in a plain file under the lock, until there is a file that says to stop.
async fn count(lock: &Lock, folder: &Path) {
    let (file, stop) = (folder.join("count"), folder.join("stop"));
    let mut counted = 0;
    while !stop.exists() {
        let guard = match lock.acquire().await {
            Ok(guard) => guard,
            Err(error) => {
                tell(&format!("refused {error}"));
                continue;
            }
        };
        let text = std::fs::read_to_string(&file).unwrap();
        let (number, token) = text.split_once(' ').unwrap();
        let (number, token): (u64, u64) = (number.parse().unwrap(), token.parse().unwrap());
        if guard.token().get() <= token {
            tell(&format!("stale {} after {token}", guard.token()));
        }
        std::fs::write(&file, format!("{} {}", number + 1, guard.token())).unwrap();
        counted += 1;
        if let Some(why) = guard.lost_reason() {
            tell(&format!("lost {why:?}"));
        }
        // Whether a release arrived may be unknown when a member is killed.
        let _ = guard.release().await;
    }
    tell(&format!("counted {counted}"));
}

fn millis(text: &str) -> Duration {
    Duration::from_millis(text.parse().unwrap())
}

fn tell(word: &str) {
    println!("puppet: {word}");
}
