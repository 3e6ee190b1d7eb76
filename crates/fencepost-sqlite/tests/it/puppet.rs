//! Another process that does as it is told: this test binary, executed again.

use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::mpsc;
use std::time::Duration;

use fencepost_core::{Client, Error, Guard, Keep};
use fencepost_testkit::wait::{self, PATIENCE};
use rustix::process::{Pid, Signal, kill_process};

use crate::bench::SqliteBench;

const STRINGS: &str = "FENCEPOST_TEST_PUPPET";

/// The other process, as the test sees it.
pub(crate) struct Puppet {
    child: Child,
    strings: Option<ChildStdin>,
    words: mpsc::Receiver<String>,
}

impl Puppet {
    pub(crate) fn new(bench: &SqliteBench) -> Self {
        Self::start(Command::new(std::env::current_exe().unwrap()), &bench.path())
    }

    /// With a file system of one megabyte over the bench's folder, which only it sees.
    pub(crate) fn on_a_small_disk(bench: &SqliteBench) -> Self {
        Self::behind_a_mount("mount -t tmpfs -o size=1m none \"$1\"", bench.folder(), &bench.path())
    }

    /// With the bench's database mounted under another name, alone, as containers do with a file of their host.
    pub(crate) fn with_the_file_mounted_at(bench: &SqliteBench, other: &Path) -> Self {
        let mount = format!("mount --bind '{}' \"$1\"", bench.path().display());
        Self::behind_a_mount(&mount, other, other)
    }

    fn behind_a_mount(mount: &str, point: &Path, path: &Path) -> Self {
        let mut command = Command::new("unshare");
        if !rustix::process::geteuid().is_root() {
            command.args(["--user", "--map-root-user"]);
        }
        let script = format!("{mount} && shift && exec \"$@\"");
        command.args(["--mount", "sh", "-c", &script, "sh"]).arg(point);
        command.arg(std::env::current_exe().unwrap());
        Self::start(command, path)
    }

    fn start(mut command: Command, path: &Path) -> Self {
        command.args(["puppet::dances", "--exact", "--nocapture", "--test-threads=1"]).env(STRINGS, path);
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("it starts");
        let strings = child.stdin.take();
        let words = listen(child.stdout.take().unwrap());
        Self { child, strings, words }
    }

    pub(crate) fn say(&mut self, command: &str) {
        writeln!(self.strings.as_mut().unwrap(), "{command}").expect("it listens");
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

    /// Whether it has said anything.
    pub(crate) fn is_silent(&self) -> bool {
        self.words.try_recv().is_err()
    }

    pub(crate) fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    /// Stops it, and waits until it stands still.
    pub(crate) async fn stop(&self) {
        kill_process(Pid::from_child(&self.child), Signal::STOP).unwrap();
        let threads = format!("/proc/{}/task", self.child.id());
        wait::until("all its threads to stand still", async || {
            std::fs::read_dir(&threads).unwrap().all(|thread| {
                let stat = std::fs::read_to_string(thread.unwrap().path().join("stat")).unwrap();
                stat.rsplit(") ").next().is_some_and(|rest| rest.starts_with('T'))
            })
        })
        .await;
    }

    /// The same, but not while it has the turn to write: nobody else could until it goes on. What it has written can be
    /// seen a moment before it gives the turn back.
    pub(crate) async fn stop_between_writes(&self, bench: &SqliteBench) {
        let turn = bench.turnstile("turn");
        loop {
            self.stop().await;
            if turn.try_lock().is_ok() {
                return turn.unlock().unwrap();
            }
            self.go_on();
        }
    }

    pub(crate) fn go_on(&self) {
        kill_process(Pid::from_child(&self.child), Signal::CONT).unwrap();
    }

    /// Lets it end by itself, without being told to release.
    pub(crate) fn let_go(&mut self) {
        drop(self.strings.take());
        assert!(self.child.wait().unwrap().success());
    }
}

impl Drop for Puppet {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn listen(stdout: ChildStdout) -> mpsc::Receiver<String> {
    let (tell, words) = mpsc::channel();
    std::thread::spawn(move || {
        for line in BufReader::new(stdout).lines().map_while(Result::ok) {
            // The test runner writes a line of its own before the first word.
            if let Some((_, word)) = line.split_once("puppet: ") {
                let _ = tell.send(word.to_owned());
            }
        }
    });
    words
}

/// Not a test by itself: what the other process does. Without strings it hangs still.
#[test]
fn dances() {
    let Ok(path) = std::env::var(STRINGS) else { return };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let client = match fencepost_sqlite::connect(&path).await {
            Ok(client) => client,
            Err(error) => return tell(&format!("refused {error}")),
        };
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
        ["release"] => match guards.pop().unwrap().release().await {
            Ok(()) => tell("released"),
            Err(error) => tell(&format!("failed {error}")),
        },
        ["valid"] => tell(&format!("valid {}", guards[0].is_valid())),
        ["holder", name] => {
            let state = client.inspect(name).await.unwrap();
            tell(&format!("holder {}", state.holders[0].token));
        }
        ["switches"] => tell(&format!("switches {}", writer_switches())),
        ["fill"] => {
            let error = fill(client).await;
            tell(&format!("full {:?} {error}", error.kind()));
        }
        ["count", name, rounds, file] => {
            for _ in 0..rounds.parse().unwrap() {
                let guard = client.lock(name).acquire().await.unwrap();
                let number: u64 = std::fs::read_to_string(file).unwrap().trim().parse().unwrap();
                std::fs::write(file, (number + 1).to_string()).unwrap();
                guard.release().await.unwrap();
            }
            tell("counted");
        }
        _ => panic!("what is {words:?}?"),
    }
}

/// How often the thread that writes has gone to sleep so far.
fn writer_switches() -> u64 {
    let threads = std::fs::read_dir("/proc/self/task").unwrap().flatten();
    let read =
        |thread: &std::path::Path, file: &str| std::fs::read_to_string(thread.join(file)).unwrap_or_default();
    let writers = threads.filter(|thread| read(&thread.path(), "comm").starts_with("fencepost-sqlit"));
    let count = |status: String| {
        let line =
            status.lines().find_map(|line| line.strip_prefix("voluntary_ctxt_switches:"))?.trim().to_owned();
        line.parse::<u64>().ok()
    };
    writers.filter_map(|thread| count(read(&thread.path(), "status"))).sum()
}

/// Cells of 64 KiB until there is no room.
async fn fill(client: &Client) -> Error {
    let mut guards = Vec::new();
    for number in 0..1000 {
        let guard = match client.lock(format!("filler/{number}")).acquire().await {
            Ok(guard) => guard,
            Err(error) => return error,
        };
        let written = guard.write_cell(vec![7; 64 * 1024], Keep::WhileHeld).await;
        guards.push(guard);
        if let Err(error) = written {
            return error;
        }
    }
    panic!("the disk is never full");
}

fn millis(text: &str) -> Duration {
    Duration::from_millis(text.parse().unwrap())
}

fn tell(word: &str) {
    println!("puppet: {word}");
}
