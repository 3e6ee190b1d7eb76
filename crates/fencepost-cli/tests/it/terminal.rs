//! A pseudo-terminal for commands that need one: what is typed on it, and what it shows.

use std::fs::{self, File};
use std::io::Write;
use std::os::fd::OwnedFd;
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

use fencepost::clock::Clock;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{Mode, OFlags, open};
use rustix::process::{Pid, Signal, kill_process};
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use rustix::termios::{Termios, Winsize, tcgetattr, tcgetpgrp, tcsetwinsize};

use crate::sandbox::{Sandbox, TIMEOUT, is_alive, until};

/// The prompt of the shell.
pub(crate) const PROMPT: &str = "ready> ";
pub(crate) const CTRL_C: &str = "\x03";
pub(crate) const CTRL_Z: &str = "\x1a";

/// A command on a new terminal, which is its controlling terminal. Its whole session is killed at the end.
pub(crate) struct Terminal {
    /// The end of the test; none when it was closed.
    ours: Option<Arc<File>>,
    child: Child,
    /// Read by a separate thread so that the command never blocks.
    screen: Arc<Mutex<String>>,
    /// How much of the screen was waited for already.
    seen: usize,
    closing: Arc<AtomicBool>,
    reader: Option<JoinHandle<()>>,
}

impl Terminal {
    /// Starts the command with all three of its streams on the terminal.
    pub(crate) fn start(command: &Command) -> Self {
        Self::start_with(command, |_| ())
    }

    /// The same, with a stream of the command changed: `|command| { command.stdout(…); }`.
    pub(crate) fn start_with(command: &Command, change: impl FnOnce(&mut Command)) -> Self {
        let (ours, theirs) = open_pair();
        let stream = || Stdio::from(theirs.try_clone().unwrap());
        // It creates a session, makes its stdin the controlling terminal, and executes the command.
        let mut on_terminal = Command::new("setsid");
        on_terminal.arg("--ctty").arg(command.get_program()).args(command.get_args());
        on_terminal.stdin(stream()).stdout(stream()).stderr(stream());
        if let Some(folder) = command.get_current_dir() {
            on_terminal.current_dir(folder);
        }
        for (name, value) in command.get_envs() {
            match value {
                Some(value) => on_terminal.env(name, value),
                None => on_terminal.env_remove(name),
            };
        }
        change(&mut on_terminal);
        let child = on_terminal.spawn().expect("setsid must be installed (util-linux)");
        let ours = Arc::new(File::from(ours));
        let (screen, closing) = (Arc::default(), Arc::<AtomicBool>::default());
        let reader = std::thread::spawn({
            let (ours, screen, closing) = (ours.clone(), Arc::clone(&screen), closing.clone());
            move || show(&ours, &screen, &closing)
        });
        Self { ours: Some(ours), child, screen, seen: 0, closing, reader: Some(reader) }
    }

    /// Starts a shell with job control in the sandbox's folder, and waits for its first prompt.
    pub(crate) fn with_shell(sandbox: &Sandbox) -> Self {
        let mut shell = sandbox.on_path("sh");
        shell.arg("-i").env("PS1", PROMPT).env("TERM", "dumb").env_remove("ENV");
        let mut terminal = Self::start(&shell);
        terminal.until_next(PROMPT);
        terminal
    }

    fn ours(&self) -> &File {
        self.ours.as_ref().expect("the terminal is open")
    }

    /// Types this; a line ends with `\n`, and `\x03` is Ctrl-C.
    pub(crate) fn type_text(&mut self, text: &str) {
        self.ours().write_all(text.as_bytes()).unwrap();
    }

    /// Types a line.
    pub(crate) fn type_line(&mut self, line: &str) {
        self.type_text(&format!("{line}\n"));
    }

    /// Returns everything that was shown so far, with `\n` at the end of a line. What is typed is shown too.
    pub(crate) fn screen(&self) -> String {
        self.screen.lock().unwrap().replace("\r\n", "\n")
    }

    /// Returns the lines that a user sees, with carriage returns and erasures applied.
    pub(crate) fn visible(&self) -> Vec<String> {
        let mut lines = vec![String::new()];
        let shown = self.screen.lock().unwrap().replace("\x1b[K", "\x0b");
        let mut column = 0;
        for c in shown.chars() {
            let line = lines.last_mut().unwrap();
            let from_column = line.char_indices().nth(column).map_or(line.len(), |(at, _)| at);
            match c {
                '\r' => column = 0,
                '\n' => {
                    lines.push(String::new());
                    column = 0;
                }
                '\x0b' => line.truncate(from_column),
                other => {
                    let rest: String = line.drain(from_column..).skip(1).collect();
                    line.push(other);
                    line.push_str(&rest);
                    column += 1;
                }
            }
        }
        lines
    }

    /// Waits until the screen contains a text.
    #[track_caller]
    pub(crate) fn until_shown(&self, text: &str) {
        until(&format!("{text:?} is shown"), || self.screen().contains(text));
    }

    /// Waits until the screen shows something after what was waited for last.
    #[track_caller]
    pub(crate) fn until_next(&mut self, text: &str) {
        let clock = Clock::system();
        let end = clock.now() + TIMEOUT;
        loop {
            let screen = self.screen();
            if let Some(at) = screen.get(self.seen..).and_then(|rest| rest.find(text)) {
                self.seen += at + text.len();
                return;
            }
            assert!(clock.now() < end, "{text:?} is not shown next; screen:\n{screen}");
            std::thread::park_timeout(Duration::from_millis(5));
        }
    }

    /// Waits for the shell's prompt, and checks the exit code of what it ran last.
    #[track_caller]
    pub(crate) fn expect_code(&mut self, code: i32) {
        self.until_next(PROMPT);
        self.type_line("echo code=$?.");
        self.until_next("code=$?.");
        self.until_next("code=");
        self.until_next(".");
        let screen = self.screen();
        assert!(screen[..self.seen].ends_with(&format!("code={code}.")), "not {code}; screen: {screen}");
        self.until_next(PROMPT);
    }

    /// Changes the size of the window.
    pub(crate) fn resize(&self, rows: u16, columns: u16) {
        let size = Winsize { ws_row: rows, ws_col: columns, ws_xpixel: 0, ws_ypixel: 0 };
        tcsetwinsize(self.ours(), size).unwrap();
    }

    pub(crate) fn modes(&self) -> Termios {
        tcgetattr(self.ours()).unwrap()
    }

    /// Returns the process group that gets what is typed.
    pub(crate) fn foreground(&self) -> Option<i32> {
        tcgetpgrp(self.ours()).ok().map(Pid::as_raw_pid)
    }

    /// Closes it, as when a window is closed or a connection breaks.
    pub(crate) fn hang_up(&mut self) {
        self.closing.store(true, Ordering::Relaxed);
        if let Some(reader) = self.reader.take() {
            reader.join().unwrap();
        }
        self.ours = None;
    }

    /// Returns the processes of the session that are alive.
    pub(crate) fn session(&self) -> Vec<String> {
        let session = self.child.id().to_string();
        let names = fs::read_dir("/proc").unwrap().flatten().map(|entry| entry.file_name());
        let ids = names.filter_map(|name| name.into_string().ok());
        ids.filter(|id| session_of(id).as_ref() == Some(&session) && is_alive(id)).collect()
    }

    /// Waits for the command's end.
    pub(crate) fn wait(&mut self) -> ExitStatus {
        until("the command on the terminal ends", || self.child.try_wait().unwrap().is_some());
        self.child.wait().unwrap()
    }

    /// Waits for the command's end and checks the exit code, as a shell would show it.
    #[track_caller]
    pub(crate) fn expect(&mut self, code: i32) {
        let found = self.wait();
        let shown = found.code().or(found.signal().map(|signal| 128 + signal));
        assert_eq!(shown, Some(code), "{found}; screen: {}", self.screen());
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("the screen:\n{}", self.screen());
        }
        for id in self.session().iter().filter_map(|id| id.parse().ok().and_then(Pid::from_raw)) {
            let _ = kill_process(id, Signal::KILL);
        }
        let _ = self.child.wait();
        self.hang_up();
    }
}

fn session_of(id: &str) -> Option<String> {
    let stat = fs::read_to_string(format!("/proc/{id}/stat")).ok()?;
    // The name is in parentheses; state, parent, group and session follow it.
    stat.rsplit_once(") ")?.1.split(' ').nth(3).map(str::to_owned)
}

/// Opens a new terminal; returns the end of the test and that of the command.
fn open_pair() -> (OwnedFd, OwnedFd) {
    let ours = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC).unwrap();
    grantpt(&ours).unwrap();
    unlockpt(&ours).unwrap();
    let name = ptsname(&ours, Vec::new()).unwrap();
    let theirs =
        open(name.as_c_str(), OFlags::RDWR | OFlags::NOCTTY | OFlags::CLOEXEC, Mode::empty()).unwrap();
    (ours, theirs)
}

/// Collects what is shown until the other end is closed, or until this end is to be closed.
fn show(ours: &File, screen: &Mutex<String>, closing: &AtomicBool) {
    let moment = Timespec { tv_sec: 0, tv_nsec: 20_000_000 };
    let mut buffer = [0; 1024];
    while !closing.load(Ordering::Relaxed) {
        if poll(&mut [PollFd::new(ours, PollFlags::IN)], Some(&moment)) == Ok(0) {
            continue;
        }
        match rustix::io::read(ours, &mut buffer) {
            Ok(count @ 1..) => {
                screen.lock().unwrap().push_str(&String::from_utf8_lossy(&buffer[..count]));
            }
            _ => return,
        }
    }
}

#[test]
fn a_command_on_a_terminal_reads_writes_and_is_interrupted() {
    let mut command = Command::new("sh");
    command.args(["-c", "test -t 0 -a -t 1 -a -t 2 && : </dev/tty && printf 'who? ' && read who && echo \"hello $who\" && cat"]);
    let mut terminal = Terminal::start(&command);
    terminal.until_shown("who? ");
    terminal.type_text("me\n");
    terminal.until_shown("hello me\n");
    // Some shells lose an interrupt while they start a program: `cat` runs when it has written.
    terminal.type_text("again\n");
    terminal.until_shown("again\nagain\n");
    terminal.type_text("\x03");
    assert!(!terminal.wait().success());
}
