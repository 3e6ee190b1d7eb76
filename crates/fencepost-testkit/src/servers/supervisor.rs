//! A shell that runs a server, and kills it when this process ends.
//!
//! Statics are never dropped, a killed process drops nothing, and the kernel sends its parent-death signal when the thread
//! ends that started the child: a test's thread. The end of a pipe always arrives.

use std::ffi::OsString;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::{Mutex, MutexGuard, PoisonError};

use rustix::process::{Pid, Signal, kill_process};

use crate::wait::block_until;

const SCRIPT: &str = include_str!("supervisor.sh");

/// Runs one server, which may be started and killed repeatedly. Dropping it kills the server with its children, and removes
/// its directory.
#[derive(Debug)]
pub(crate) struct Supervisor {
    folder: PathBuf,
    shell: Mutex<Shell>,
}

#[derive(Debug)]
struct Shell {
    process: Child,
    commands: Option<ChildStdin>,
    replies: BufReader<ChildStdout>,
    server: Option<Pid>,
}

impl Supervisor {
    /// Prepares to run the server that this command starts; owns the directory.
    pub(crate) fn new(folder: PathBuf, command: impl IntoIterator<Item = OsString>) -> Self {
        let mut shell = Command::new("sh");
        shell.args(["-c", SCRIPT, "supervisor"]).arg(&folder).args(command);
        // A process group of its own: signals for the tests, such as that of Ctrl-C, do not reach the shell.
        shell.process_group(0).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
        let mut process = shell.spawn().expect("sh can be started");
        let commands = process.stdin.take();
        let replies = BufReader::new(process.stdout.take().expect("it is piped"));
        Self { folder, shell: Mutex::new(Shell { process, commands, replies, server: None }) }
    }

    pub(crate) fn folder(&self) -> &Path {
        &self.folder
    }

    /// Returns what the server has written to its standard output and standard error since it was started.
    pub(crate) fn output(&self) -> String {
        std::fs::read_to_string(self.folder.join("output")).unwrap_or_default()
    }

    /// Starts the server, which must not be running.
    pub(crate) fn start(&self) {
        let mut shell = self.shell();
        assert!(shell.server.is_none(), "the server is running already");
        let number = shell.request("start").parse().ok();
        shell.server = Some(number.and_then(Pid::from_raw).expect("the shell replies with the process id"));
    }

    /// Returns whether the server runs, paused or not.
    pub(crate) fn is_alive(&self) -> bool {
        self.shell().request("status") == "alive"
    }

    /// Kills the server, if it is running, and waits for its end.
    pub(crate) fn kill(&self) {
        let mut shell = self.shell();
        shell.server = None;
        shell.request("kill");
    }

    pub(crate) fn signal(&self, signal: Signal) {
        kill_process(self.pid(), signal).expect("the server can be signalled");
    }

    /// Stops the server with SIGSTOP, and waits until all its threads are stopped.
    pub(crate) fn pause(&self) {
        self.signal(Signal::STOP);
        let threads = format!("/proc/{}/task", self.pid());
        block_until("every thread is stopped", || {
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

/// Returns whether a thread is stopped, or gone.
fn is_stopped(thread: &Path) -> bool {
    let Ok(status) = std::fs::read_to_string(thread.join("stat")) else { return true };
    status.rsplit_once(") ").is_none_or(|(_, state)| state.starts_with(['T', 'Z', 'X']))
}

impl Shell {
    fn request(&mut self, command: &str) -> String {
        let mut reply = String::new();
        let commands = self.commands.as_mut().expect("the pipe is open until the supervisor is dropped");
        let sent = writeln!(commands, "{command}").and_then(|()| self.replies.read_line(&mut reply));
        sent.expect("the shell replies");
        reply.trim().to_owned()
    }
}

impl Drop for Supervisor {
    fn drop(&mut self) {
        let shell = self.shell.get_mut().unwrap_or_else(PoisonError::into_inner);
        drop(shell.commands.take());
        // Fails only if another thread has waited for the shell; there is nothing to do about that.
        let _ = shell.process.wait();
    }
}
