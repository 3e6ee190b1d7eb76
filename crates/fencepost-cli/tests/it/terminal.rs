//! A terminal of our own, for commands that ask: a pseudo-terminal, what was shown on it, and what is typed.

use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Arc, Mutex};

use rustix::fs::{Mode, OFlags, open};
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};

use crate::sandbox::until;

/// A command on a terminal of its own, which is its controlling terminal; killed if a test fails before its end.
pub(crate) struct Terminal {
    keyboard: File,
    child: Child,
    /// Read by a thread of its own, so that the command never waits for us.
    screen: Arc<Mutex<String>>,
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
        // It makes a session, takes the terminal that is its stdin, and becomes the command.
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
        let screen = shown_on(ours.as_fd().try_clone_to_owned().unwrap().into());
        Self { keyboard: ours.into(), child, screen }
    }

    /// Types this; a line ends with `\n`, and `\x03` is Ctrl-C.
    pub(crate) fn type_text(&mut self, text: &str) {
        self.keyboard.write_all(text.as_bytes()).unwrap();
    }

    /// Everything that was shown so far, with `\n` at the end of a line. What is typed is shown too.
    pub(crate) fn screen(&self) -> String {
        self.screen.lock().unwrap().replace("\r\n", "\n")
    }

    /// Waits until the screen contains a text.
    #[track_caller]
    pub(crate) fn until_shown(&self, text: &str) {
        until(&format!("{text:?} is shown"), || self.screen().contains(text));
    }

    /// Waits for the command's end.
    pub(crate) fn wait(&mut self) -> ExitStatus {
        until("the command on the terminal ends", || self.child.try_wait().unwrap().is_some());
        self.child.wait().unwrap()
    }

    /// Waits for the command's end and checks the exit code.
    #[track_caller]
    pub(crate) fn expect(&mut self, code: i32) {
        let found = self.wait();
        assert_eq!(found.code(), Some(code), "{found}; screen: {}", self.screen());
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        // It has ended already, unless a test has failed.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Our end of a new terminal, and the command's.
fn open_pair() -> (OwnedFd, OwnedFd) {
    let ours = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC).unwrap();
    grantpt(&ours).unwrap();
    unlockpt(&ours).unwrap();
    let name = ptsname(&ours, Vec::new()).unwrap();
    let theirs =
        open(name.as_c_str(), OFlags::RDWR | OFlags::NOCTTY | OFlags::CLOEXEC, Mode::empty()).unwrap();
    (ours, theirs)
}

fn shown_on(mut terminal: File) -> Arc<Mutex<String>> {
    let screen = Arc::<Mutex<String>>::default();
    let shown = screen.clone();
    std::thread::spawn(move || {
        let mut buffer = [0; 1024];
        // An error means that nobody has the other end any more.
        while let Ok(count @ 1..) = terminal.read(&mut buffer) {
            shown.lock().unwrap().push_str(&String::from_utf8_lossy(&buffer[..count]));
        }
    });
    screen
}

#[test]
fn a_command_on_a_terminal_is_asked_shown_and_interrupted() {
    let mut command = Command::new("sh");
    command.args(["-c", "test -t 0 -a -t 1 -a -t 2 && : </dev/tty && printf 'who? ' && read who && echo \"hello $who\" && cat"]);
    let mut terminal = Terminal::start(&command);
    terminal.until_shown("who? ");
    terminal.type_text("me\n");
    terminal.until_shown("hello me\n");
    terminal.type_text("\x03");
    assert!(!terminal.wait().success());
}
