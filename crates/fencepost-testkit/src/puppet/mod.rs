//! Another process that does as it is told: the test binary, executed again.
//!
//! A test crate says [`puppet!`](macro@crate::puppet) with what makes a client of a URL. Its tests then start a [`Puppet`], say
//! to it what to do, and hear what came of it; they can stop and kill it, as no task of their own can be. A crate with
//! words of its own has a test `puppet::dances` instead, which calls [`dances_with`].

mod dance;

use std::ffi::OsStr;
use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::mpsc;

use rustix::process::{Pid, Signal, kill_process};

use crate::wait::{self, TIMEOUT};

pub use dance::{dances, dances_with, tell};

/// Where the other process finds its storage; in a process without it, nobody dances.
const STRINGS: &str = "FENCEPOST_TEST_PUPPET";
/// What stands before every word: the test runner writes lines of its own to the same place.
const VOICE: &str = "puppet: ";

/// Says how a puppet of this test crate gets its client: `puppet!(fencepost_redis::connect);`
///
/// Makes a module `puppet` with a test `dances`, which is what the other process runs.
#[macro_export]
macro_rules! puppet {
    ($connect:expr) => {
        mod puppet {
            /// Not a test by itself: what the other process does. Without strings it hangs still.
            #[test]
            fn dances() {
                $crate::puppet::dances($connect);
            }
        }
    };
}

/// The other process, as the test sees it. It does not outlive this.
#[derive(Debug)]
pub struct Puppet {
    child: Child,
    strings: Option<ChildStdin>,
    words: mpsc::Receiver<String>,
}

impl Puppet {
    /// A process with a client of its own, on the storage at this URL or path.
    ///
    /// # Panics
    /// If it does not start.
    pub fn new(storage: impl AsRef<OsStr>) -> Self {
        Self::start_with(Self::binary(), storage)
    }

    /// Like [`Puppet::new`], by a command that ends with [`Puppet::binary`] and surrounds it with something.
    ///
    /// # Panics
    /// If it does not start.
    pub fn start_with(mut command: Command, storage: impl AsRef<OsStr>) -> Self {
        command.args(["puppet::dances", "--exact", "--nocapture", "--test-threads=1"]);
        command.env(STRINGS, storage).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().expect("it starts");
        let strings = child.stdin.take();
        let words = listen(child.stdout.take().expect("it is piped"));
        Self { child, strings, words }
    }

    /// What is executed again.
    ///
    /// # Panics
    /// If nobody knows what is executed now.
    pub fn binary() -> Command {
        Command::new(std::env::current_exe().expect("it is executed"))
    }

    /// Tells it what to do: the words are in `dance.rs`.
    ///
    /// # Panics
    /// If it does not listen any more.
    pub fn say(&mut self, command: &str) {
        let strings = self.strings.as_mut().expect("it was not let go");
        writeln!(strings, "{command}").expect("it listens");
    }

    /// What it says next, which begins with this word; the rest of it.
    ///
    /// # Panics
    /// If it says something else, or nothing.
    pub fn hear(&self, word: &str) -> String {
        let said = self.words.recv_timeout(TIMEOUT).unwrap_or_else(|_| panic!("waited in vain for {word:?}"));
        match said.strip_prefix(word) {
            Some(rest) => rest.trim().to_owned(),
            None => panic!("waited for {word:?}, heard {said:?}"),
        }
    }

    /// Everything that it has said and that nobody has heard yet.
    pub fn heard(&self) -> Vec<String> {
        self.words.try_iter().collect()
    }

    /// Kills it, and waits until everything that it has said has arrived.
    ///
    /// # Panics
    /// If it cannot be killed.
    pub fn kill(&mut self) -> Vec<String> {
        self.child.kill().expect("it can be killed");
        self.child.wait().expect("it ends");
        self.words.iter().collect()
    }

    /// Stops it, and waits until all its threads stand still.
    ///
    /// # Panics
    /// If they do not.
    pub fn stop(&self) {
        kill_process(Pid::from_child(&self.child), Signal::STOP).expect("it can be stopped");
        let threads = format!("/proc/{}/task", self.child.id());
        wait::block_until("all its threads stand still", || {
            std::fs::read_dir(&threads).expect("it lives").all(|thread| {
                let stat = std::fs::read_to_string(thread.expect("it is listed").path().join("stat"));
                // A thread that ends while it is looked at does not run on.
                stat.map_or(true, |stat| stat.rsplit(") ").next().is_some_and(|rest| rest.starts_with('T')))
            })
        });
    }

    /// Lets it go on after [`Puppet::stop`].
    ///
    /// # Panics
    /// If it cannot.
    pub fn go_on(&self) {
        kill_process(Pid::from_child(&self.child), Signal::CONT).expect("it can go on");
    }

    /// Lets it end by itself, without being told to release.
    ///
    /// # Panics
    /// If it does not end well.
    pub fn let_go(&mut self) {
        drop(self.strings.take());
        assert!(self.child.wait().expect("it ends").success());
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
            // The test runner ends no line before the first word.
            if let Some((_, word)) = line.split_once(VOICE) {
                let _ = tell.send(word.to_owned());
            }
        }
    });
    words
}
