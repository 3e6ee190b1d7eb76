//! A child process that executes the commands of a test: the test binary, started again.
//!
//! A test crate calls [`scripted_process!`](macro@crate::scripted_process) with the function that connects to a URL. Its tests
//! then start a [`ScriptedProcess`], send it commands and read its replies; they can pause and kill it, which is not possible
//! with a task. A crate with commands of its own defines the test `scripted_process::executes_commands` itself, with
//! [`execute_commands_with`].

mod commands;

use std::ffi::OsStr;
use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::mpsc;

use rustix::process::{Pid, Signal, kill_process};

use crate::wait::{self, TIMEOUT};

pub use commands::{execute_commands, execute_commands_with, reply};

/// The variable with the URL for the child process. Without it, [`execute_commands`] does nothing.
const URL_VARIABLE: &str = "FENCEPOST_TEST_SCRIPTED_PROCESS_URL";
/// Marks the replies: the test runner writes to the same standard output.
const REPLY_MARK: &str = "reply: ";
/// The test that the child process runs.
const TEST: &str = "scripted_process::executes_commands";

/// Defines how a [`ScriptedProcess`] of this test crate connects: `scripted_process!(fencepost_redis::connect);`
///
/// Defines a module `scripted_process` with the test `executes_commands`, which the child process runs.
#[macro_export]
macro_rules! scripted_process {
    ($connect:expr) => {
        mod scripted_process {
            /// Runs in the child process; does nothing in the test run itself.
            #[test]
            fn executes_commands() {
                $crate::scripted_process::execute_commands($connect);
            }
        }
    };
}

/// The child process, as the test sees it. Dropping it kills the process.
#[derive(Debug)]
pub struct ScriptedProcess {
    child: Child,
    stdin: Option<ChildStdin>,
    replies: mpsc::Receiver<String>,
}

impl ScriptedProcess {
    /// Starts a process with a client of its own, connected to this URL or path.
    ///
    /// # Panics
    /// If it does not start.
    pub fn new(url: impl AsRef<OsStr>) -> Self {
        Self::start_with(Self::test_binary(), url)
    }

    /// Like [`ScriptedProcess::new`], by a command that ends with [`ScriptedProcess::test_binary`], such as a wrapper around it.
    ///
    /// # Panics
    /// If it does not start.
    pub fn start_with(mut command: Command, url: impl AsRef<OsStr>) -> Self {
        command.args([TEST, "--exact", "--nocapture", "--test-threads=1"]);
        command.env(URL_VARIABLE, url).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().expect("the process starts");
        let stdin = child.stdin.take();
        let replies = read_replies(child.stdout.take().expect("stdout is piped"));
        Self { child, stdin, replies }
    }

    /// Returns the command that starts this test binary.
    ///
    /// # Panics
    /// If its path is unknown.
    pub fn test_binary() -> Command {
        Command::new(std::env::current_exe().expect("the path of the test binary is known"))
    }

    /// Sends a command; they are listed in `commands.rs`.
    ///
    /// # Panics
    /// If the process has closed its standard input.
    pub fn send(&mut self, command: &str) {
        let stdin = self.stdin.as_mut().expect("the process was not told to finish");
        writeln!(stdin, "{command}").expect("the process reads its commands");
    }

    /// Waits for the next reply, which must start with this word, and returns the rest of it.
    ///
    /// # Panics
    /// If it starts with another word, or if there is no reply in time.
    pub fn receive(&self, word: &str) -> String {
        let reply =
            self.replies.recv_timeout(TIMEOUT).unwrap_or_else(|_| panic!("no reply {word:?} in time"));
        match reply.strip_prefix(word) {
            Some(rest) => rest.trim().to_owned(),
            None => panic!("expected the reply {word:?}, received {reply:?}"),
        }
    }

    /// Returns all replies that have arrived and were not received yet.
    pub fn received(&self) -> Vec<String> {
        self.replies.try_iter().collect()
    }

    /// Kills the process and returns the replies that were not received yet.
    ///
    /// # Panics
    /// If it cannot be killed.
    pub fn kill(&mut self) -> Vec<String> {
        self.child.kill().expect("the process can be killed");
        self.child.wait().expect("the process ends");
        self.replies.iter().collect()
    }

    /// Stops the process with SIGSTOP, and waits until all its threads are stopped.
    ///
    /// # Panics
    /// If they do not stop.
    pub fn pause(&self) {
        kill_process(Pid::from_child(&self.child), Signal::STOP).expect("the process can be stopped");
        let threads = format!("/proc/{}/task", self.child.id());
        wait::block_until("all threads are stopped", || {
            std::fs::read_dir(&threads).expect("the process runs").all(|thread| {
                let stat = std::fs::read_to_string(thread.expect("the thread is listed").path().join("stat"));
                // A thread that ends while it is read does not run any more.
                stat.map_or(true, |stat| stat.rsplit(") ").next().is_some_and(|rest| rest.starts_with('T')))
            })
        });
    }

    /// Continues the process after [`ScriptedProcess::pause`].
    ///
    /// # Panics
    /// If it cannot be continued.
    pub fn resume(&self) {
        kill_process(Pid::from_child(&self.child), Signal::CONT).expect("the process can be continued");
    }

    /// Closes the standard input of the process, which ends it without a release, and waits for its end.
    ///
    /// # Panics
    /// If it fails.
    pub fn finish(&mut self) {
        drop(self.stdin.take());
        assert!(self.child.wait().expect("the process ends").success());
    }
}

impl Drop for ScriptedProcess {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn read_replies(stdout: ChildStdout) -> mpsc::Receiver<String> {
    let (sender, replies) = mpsc::channel();
    std::thread::spawn(move || {
        for line in BufReader::new(stdout).lines().map_while(Result::ok) {
            // The test runner does not end its line before the first reply.
            if let Some((_, reply)) = line.split_once(REPLY_MARK) {
                let _ = sender.send(reply.to_owned());
            }
        }
    });
    replies
}
