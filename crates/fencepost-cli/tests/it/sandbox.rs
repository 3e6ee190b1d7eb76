//! A folder with a database, and the processes that use it.

use std::ffi::OsStr;
use std::fs;
use std::io::{ErrorKind, Read};
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus, Output, Stdio};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

use fencepost::clock::Clock;
use fencepost::{Client, LockState};
use futures_executor::block_on;
use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;

/// Far longer than anything here should take.
pub(crate) const TIMEOUT: Duration = Duration::from_secs(180);

/// Waits until the condition holds.
#[track_caller]
pub(crate) fn until(what: &str, mut condition: impl FnMut() -> bool) {
    let clock = Clock::system();
    let end = clock.now() + TIMEOUT;
    while !condition() {
        assert!(clock.now() < end, "still waiting until {what}");
        std::thread::park_timeout(Duration::from_millis(5));
    }
}

pub(crate) struct Sandbox {
    folder: TempDir,
}

impl Sandbox {
    pub(crate) fn new() -> Self {
        Self { folder: tempfile::tempdir().unwrap() }
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    pub(crate) fn url(&self) -> String {
        format!("sqlite:{}", self.path("locks.db").display())
    }

    pub(crate) fn write(&self, name: &str, text: &str) {
        fs::write(self.path(name), text).unwrap();
    }

    /// Returns the content of a file, or nothing if there is none.
    pub(crate) fn read(&self, name: &str) -> String {
        fs::read_to_string(self.path(name)).unwrap_or_default()
    }

    /// Waits until a file has a complete line, and returns it.
    pub(crate) fn line(&self, name: &str) -> String {
        until(&format!("{name} is written"), || self.read(name).ends_with('\n'));
        self.read(name).trim().to_owned()
    }

    /// Returns the binary with these arguments, in this folder, without the settings of the environment.
    pub(crate) fn fencepost<S: AsRef<OsStr>>(&self, args: impl IntoIterator<Item = S>) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_fencepost"));
        for (name, _) in std::env::vars().filter(|(name, _)| name.starts_with("FENCEPOST_")) {
            command.env_remove(name);
        }
        command
            .args(args)
            .current_dir(self.folder.path())
            .env("FENCEPOST_URL", self.url())
            // No colours, even on a terminal.
            .env("NO_COLOR", "1")
            .stdin(Stdio::null());
        command
    }

    /// Returns another program in this folder, with the binary on its path.
    pub(crate) fn on_path(&self, program: &str) -> Command {
        let fencepost = self.fencepost::<&str>([]);
        let folder = PathBuf::from(fencepost.get_program());
        let path = std::env::var("PATH").unwrap_or_default();
        let mut command = Command::new(program);
        for (name, value) in fencepost.get_envs() {
            match value {
                Some(value) => command.env(name, value),
                None => command.env_remove(name),
            };
        }
        command.current_dir(self.folder.path()).stdin(Stdio::null());
        command.env("PATH", format!("{}:{path}", folder.parent().unwrap().display()));
        command
    }

    /// Runs it to its end.
    pub(crate) fn run(&self, args: &[&str]) -> Ran {
        Ran(self.fencepost(args).output().unwrap())
    }

    /// Starts it. Scripts that loop must end when the database is gone: nothing may outlive a test that has failed.
    pub(crate) fn start(&self, args: &[&str]) -> Running {
        Running::start(&mut self.fencepost(args))
    }

    /// Starts a holder of the lock that ends when [`Sandbox::let_go`] is called, and waits until it holds.
    pub(crate) fn hold(&self, name: &str, options: &[&str]) -> Running {
        let script = "echo $$ > held; while [ -e locks.db ] && ! [ -e go ]; do sleep 0.02; done";
        let args: Vec<&str> =
            ["run"].iter().chain(options).chain(&[name, "--", "sh", "-c", script]).copied().collect();
        let running = self.start(&args);
        self.line("held");
        running
    }

    /// Lets the holder end.
    pub(crate) fn let_go(&self) {
        self.write("go", "");
    }

    pub(crate) fn client(&self) -> Client {
        block_on(fencepost::connect(self.url())).unwrap()
    }

    /// Returns the state of the lock.
    pub(crate) fn inspect(&self, name: &str) -> LockState {
        block_on(self.client().inspect(name)).unwrap()
    }

    /// Waits until the lock has this many waiters.
    pub(crate) fn until_waiting(&self, name: &str, waiters: usize) {
        let client = self.client();
        until("there are that many waiters", || {
            block_on(client.inspect(name)).unwrap().waiter_count == waiters
        });
    }

    pub(crate) fn assert_free(&self, name: &str) {
        let state = self.inspect(name);
        assert!(state.is_idle(), "{state:?}");
    }
}

/// The output and the exit code of a process that has ended.
pub(crate) struct Ran(pub(crate) Output);

impl Ran {
    pub(crate) fn code(&self) -> i32 {
        self.0.status.code().unwrap_or(-1)
    }

    pub(crate) fn stdout(&self) -> String {
        String::from_utf8_lossy(&self.0.stdout).into_owned()
    }

    pub(crate) fn stderr(&self) -> String {
        String::from_utf8_lossy(&self.0.stderr).into_owned()
    }

    /// Checks the exit code; fails with the output if it is another.
    #[track_caller]
    pub(crate) fn expect(self, code: i32) -> Self {
        assert_eq!(self.code(), code, "stdout: {}\nstderr: {}", self.stdout(), self.stderr());
        self
    }
}

/// A process that runs; killed if a test fails before its end.
pub(crate) struct Running {
    child: Child,
    /// The content of stderr, read by a separate thread so that the process never blocks.
    said: Arc<Mutex<String>>,
    reader: JoinHandle<()>,
}

impl Running {
    pub(crate) fn start(command: &mut Command) -> Self {
        Self::start_into(command, Stdio::null())
    }

    /// Starts it with this stdout.
    pub(crate) fn start_into(command: &mut Command, stdout: Stdio) -> Self {
        let mut child = command.stdout(stdout).stderr(Stdio::piped()).spawn().unwrap();
        let said = Arc::<Mutex<String>>::default();
        let (mut stderr, read) = (child.stderr.take().unwrap(), said.clone());
        let reader = std::thread::spawn(move || {
            let mut buffer = [0; 1024];
            loop {
                match stderr.read(&mut buffer) {
                    Ok(0) => break,
                    Ok(count) => read.lock().unwrap().push_str(&String::from_utf8_lossy(&buffer[..count])),
                    Err(error) => assert_eq!(error.kind(), ErrorKind::Interrupted, "{error}"),
                }
            }
        });
        Self { child, said, reader }
    }

    pub(crate) fn id(&self) -> u32 {
        self.child.id()
    }

    pub(crate) fn send(&self, signal: Signal) {
        let id = i32::try_from(self.child.id()).ok().and_then(Pid::from_raw).unwrap();
        kill_process(id, signal).unwrap();
    }

    /// Returns what it has written to stderr so far.
    pub(crate) fn said(&self) -> String {
        self.said.lock().unwrap().clone()
    }

    /// Waits until it has written this to stderr; fails if it ends before.
    #[track_caller]
    pub(crate) fn until_said(&mut self, text: &str) {
        let said = || self.said.lock().unwrap().clone();
        until(text, || {
            let ended = self.child.try_wait().unwrap().is_some() && self.reader.is_finished();
            let is_written = said().contains(text);
            assert!(is_written || !ended, "it has ended without {text:?}: {}", said());
            is_written
        });
    }

    pub(crate) fn has_ended(&mut self) -> bool {
        self.child.try_wait().unwrap().is_some()
    }

    /// Waits for its end, and until all of its stderr is read. Other processes may have its stderr open for longer; they
    /// are not waited for.
    pub(crate) fn wait(&mut self) -> ExitStatus {
        until("a process ends", || self.has_ended());
        for _ in 0..200 {
            if self.reader.is_finished() {
                break;
            }
            std::thread::park_timeout(Duration::from_millis(5));
        }
        self.child.wait().unwrap()
    }

    /// Waits for its end and checks the exit code.
    #[track_caller]
    pub(crate) fn expect(&mut self, code: i32) {
        let found = self.wait();
        assert_eq!(found.code(), Some(code), "{found}; stderr: {}", self.said());
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // It has ended already, unless a test has failed.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Returns whether a process is alive: it exists, and is not a zombie.
pub(crate) fn is_alive(id: &str) -> bool {
    !matches!(state(id), None | Some('Z' | 'X'))
}

/// Returns whether a process can still do something. One with a pending KILL cannot, but on a busy machine it exists until
/// it is scheduled, although it was killed in time.
pub(crate) fn can_act(id: &str) -> bool {
    is_alive(id) && !has(id, "SigPnd", Signal::KILL) && !has(id, "ShdPnd", Signal::KILL)
}

/// Returns the state letter of a process: `S` sleeping, `T` stopped.
pub(crate) fn state(id: &str) -> Option<char> {
    let status = fs::read_to_string(format!("/proc/{id}/stat")).ok()?;
    status.rsplit_once(") ")?.1.chars().next()
}

/// Returns whether a signal is in one of a process's masks: `SigIgn`, `SigCgt`.
pub(crate) fn has(id: &str, mask: &str, signal: Signal) -> bool {
    let status = fs::read_to_string(format!("/proc/{id}/status")).unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix(mask)?.strip_prefix(':'));
    let mask = u64::from_str_radix(mask.unwrap_or("0").trim(), 16).unwrap();
    mask >> (signal.as_raw() - 1) & 1 == 1
}
