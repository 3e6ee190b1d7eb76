//! The shell between us and a server, which outlives us just long enough to take the server with us.
//!
//! Statics are never dropped, a killed process drops nothing, and the kernel's signal at the death of a parent comes when
//! the thread ends that started the child: a test's thread. The end of a pipe is what always arrives.

use std::ffi::OsString;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::{Mutex, MutexGuard, PoisonError};

use rustix::process::{Pid, Signal, kill_process};

use crate::wait::block_until;

const SCRIPT: &str = include_str!("supervisor.sh");

/// Keeps one server, which may be started and killed again and again. Dropping it kills the server and removes its folder.
#[derive(Debug)]
pub(crate) struct Supervisor {
    folder: PathBuf,
    shell: Mutex<Shell>,
}

#[derive(Debug)]
struct Shell {
    process: Child,
    words: Option<ChildStdin>,
    answers: BufReader<ChildStdout>,
    server: Option<Pid>,
}

impl Supervisor {
    /// Keeps the server that this command starts; takes the folder over.
    pub(crate) fn new(folder: PathBuf, command: impl IntoIterator<Item = OsString>) -> Self {
        let mut shell = Command::new("sh");
        shell.args(["-c", SCRIPT, "supervisor"]).arg(&folder).args(command);
        // A group of its own: what is meant for the tests, such as Ctrl-C, does not hit the supervisor.
        shell.process_group(0).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
        let mut process = shell.spawn().expect("sh can be started");
        let words = process.stdin.take();
        let answers = BufReader::new(process.stdout.take().expect("it is piped"));
        Self { folder, shell: Mutex::new(Shell { process, words, answers, server: None }) }
    }

    /// What the server has said on its standard output and standard error since it was started.
    pub(crate) fn output(&self) -> String {
        std::fs::read_to_string(self.folder.join("output")).unwrap_or_default()
    }

    /// Starts the server, which must not be running.
    pub(crate) fn start(&self) {
        let mut shell = self.shell();
        assert!(shell.server.is_none(), "it is running already");
        let number = shell.ask("start").parse().ok();
        shell.server =
            Some(number.and_then(Pid::from_raw).expect("the supervisor says the number of the process"));
    }

    /// Whether the server runs, be it stopped.
    pub(crate) fn is_alive(&self) -> bool {
        self.shell().ask("look") == "alive"
    }

    /// Kills the server, if it is running. It is gone when this returns.
    pub(crate) fn kill(&self) {
        let mut shell = self.shell();
        shell.server = None;
        shell.ask("kill");
    }

    pub(crate) fn signal(&self, signal: Signal) {
        kill_process(self.pid(), signal).expect("our server can be sent a signal");
    }

    /// Stops the server. All its threads stand still when this returns: a signal is sent before they do.
    pub(crate) fn pause(&self) {
        self.signal(Signal::STOP);
        let threads = format!("/proc/{}/task", self.pid());
        block_until("every thread stands still", || {
            let mut threads = std::fs::read_dir(&threads).into_iter().flatten().flatten();
            threads.all(|thread| is_stopped(&thread.path()))
        });
    }

    pub(crate) fn pid(&self) -> Pid {
        self.shell().server.expect("the server was started")
    }

    fn shell(&self) -> MutexGuard<'_, Shell> {
        self.shell.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Returns whether a thread stands still, or is gone.
fn is_stopped(thread: &Path) -> bool {
    let Ok(status) = std::fs::read_to_string(thread.join("stat")) else { return true };
    status.rsplit_once(") ").is_none_or(|(_, state)| state.starts_with(['T', 'Z', 'X']))
}

impl Shell {
    fn ask(&mut self, word: &str) -> String {
        let mut answer = String::new();
        let words = self.words.as_mut().expect("it is open until the supervisor is dropped");
        let asked = writeln!(words, "{word}").and_then(|()| self.answers.read_line(&mut answer));
        asked.expect("the supervisor answers");
        answer.trim().to_owned()
    }
}

impl Drop for Supervisor {
    fn drop(&mut self) {
        let shell = self.shell.get_mut().unwrap_or_else(PoisonError::into_inner);
        drop(shell.words.take());
        // It only fails if somebody else has waited for the supervisor; there is nothing to do about that.
        let _ = shell.process.wait();
    }
}
