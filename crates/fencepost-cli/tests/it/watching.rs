//! `fencepost watch`: a line for every change.

use std::fs::File;
use std::io::{BufRead, BufReader};
use std::process::Stdio;

use fencepost::{Client, Guard, Keep};
use futures_executor::block_on;
use rustix::io::ioctl_fionread;
use rustix::process::Signal;
use serde_json::Value;

use crate::sandbox::{Running, Sandbox, until};
use crate::terminal::{CTRL_C, Terminal};

/// A `fencepost watch` that writes to a file.
struct Watching<'a> {
    sandbox: &'a Sandbox,
    process: Running,
}

impl<'a> Watching<'a> {
    fn start(sandbox: &'a Sandbox, prefix: &str) -> Self {
        let changes = File::create(sandbox.path("changes")).unwrap();
        let mut command = sandbox.fencepost(["watch", prefix, "--every", "100ms"]);
        Self { sandbox, process: Running::start_into(&mut command, changes.into()) }
    }

    fn changes(&self) -> Vec<Value> {
        let text = self.sandbox.read("changes");
        let whole = text.rsplit_once('\n').map_or("", |(whole, _)| whole);
        whole.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    }

    /// Waits until a change is printed, and returns it.
    fn until_printed(&self, event: &str, name: &str) -> Value {
        let find =
            || self.changes().into_iter().find(|change| change["event"] == event && change["lock"] == name);
        until(&format!("{event} of {name} is printed"), || find().is_some());
        find().unwrap()
    }
}

fn hold(client: &Client, name: &str) -> Guard {
    block_on(client.lock(name).label("web-3").meta("build", "42").acquire()).unwrap()
}

#[test]
fn existing_holders_and_changes_are_printed_line_by_line() {
    let sandbox = Sandbox::new();
    let client = sandbox.client();
    let guard = hold(&client, "jobs/a");
    let _other = hold(&client, "other");
    let mut watching = Watching::start(&sandbox, "jobs/");
    let held = watching.until_printed("held", "jobs/a");
    assert_eq!(held["holder"]["token"], guard.token().get());
    assert_eq!((&held["holder"]["label"], &held["holder"]["meta"]["build"]), (&"web-3".into(), &"42".into()));
    assert!(held["time"].as_str().unwrap().ends_with('Z'));

    block_on(guard.write_cell(*b"half done", Keep::Always)).unwrap();
    assert_eq!(watching.until_printed("cell", "jobs/a")["cell"]["text"], "half done");
    let mut waiter = sandbox.start(&["run", "-q", "jobs/a", "true"]);
    assert_eq!(watching.until_printed("line", "jobs/a")["waiters"], 1);
    block_on(guard.release()).unwrap();
    let ended = watching.until_printed("ended", "jobs/a");
    assert_eq!(ended["holder"]["token"], held["holder"]["token"]);
    assert!(ended["lease_left_ms"].as_u64().unwrap() > 0, "{ended}");
    waiter.expect(0);

    assert!(watching.changes().iter().all(|change| change["lock"] == "jobs/a"));
    watching.process.send(Signal::TERM);
    watching.process.expect(128 + 15);
    assert_eq!(watching.process.said(), "");
}

#[test]
fn an_interrupt_ends_it() {
    let sandbox = Sandbox::new();
    let _guard = hold(&sandbox.client(), "a");
    let mut watching = Watching::start(&sandbox, "");
    watching.until_printed("held", "a");
    watching.process.send(Signal::INT);
    watching.process.expect(128 + 2);
}

/// As after `| head -1`: no further change is needed for it to end.
#[test]
fn it_ends_without_a_message_when_its_reader_is_gone() {
    let sandbox = Sandbox::new();
    let _guard = hold(&sandbox.client(), "a");
    let (reader, writer) = std::io::pipe().unwrap();
    let mut command = sandbox.fencepost(["watch"]);
    let mut watching = Running::start_into(&mut command, writer.into());
    // The `Command` keeps the writing end of the pipe until it gets another stdout.
    command.stdout(Stdio::null());
    let mut line = String::new();
    BufReader::new(reader).read_line(&mut line).unwrap();
    assert!(line.contains("\"held\""), "{line}");
    watching.expect(0);
    assert_eq!(watching.said(), "");
}

#[test]
fn a_reader_that_does_not_read_does_not_delay_a_signal() {
    let sandbox = Sandbox::new();
    let client = sandbox.client();
    let _guards: Vec<Guard> = (0..1000).map(|number| hold(&client, &format!("lock/{number}"))).collect();
    let (reader, writer) = std::io::pipe().unwrap();
    let mut watching = Running::start_into(&mut sandbox.fencepost(["watch"]), writer.into());
    until("the pipe is full", || ioctl_fionread(&reader).unwrap() > 60_000);
    watching.send(Signal::TERM);
    watching.expect(128 + 15);
}

#[test]
fn a_database_that_is_replaced_is_warned_of_and_watched_again() {
    let sandbox = Sandbox::new();
    let old = sandbox.client();
    let _guard = hold(&old, "a");
    let mut watching = Watching::start(&sandbox, "");
    watching.until_printed("held", "a");
    std::fs::create_dir(sandbox.path("away")).unwrap();
    for name in ["locks.db", "locks.db-wal", "locks.db-shm", "locks.db-peers"] {
        std::fs::rename(sandbox.path(name), sandbox.path(&format!("away/{name}"))).unwrap();
    }
    watching.process.until_said("warning: ");
    assert!(watching.process.said().contains("was removed or replaced"), "{}", watching.process.said());

    let _later = hold(&sandbox.client(), "b");
    watching.until_printed("ended", "a");
    watching.until_printed("held", "b");
}

#[test]
fn a_label_cannot_write_to_the_terminal() {
    let sandbox = Sandbox::new();
    let lock = sandbox.client().lock("a").label("evil\u{1b}[2J\u{9b}31m\u{202e}");
    let _guard = block_on(lock.acquire()).unwrap();
    let watching = Watching::start(&sandbox, "");
    let held = watching.until_printed("held", "a");
    assert_eq!(held["holder"]["label"], "evil\u{1b}[2J\u{9b}31m\u{202e}");
    assert!(!sandbox.read("changes").contains(['\u{1b}', '\u{9b}', '\u{202e}']));
}

#[test]
fn a_poll_interval_below_100ms_is_rejected() {
    let sandbox = Sandbox::new();
    let ran = sandbox.run(&["watch", "--every", "99ms"]).expect(125);
    assert!(ran.stderr().contains("less than 100ms"), "{}", ran.stderr());
}

#[test]
fn a_terminal_gets_text_and_json_only_if_asked_for() {
    let sandbox = Sandbox::new();
    let client = sandbox.client();
    let lock = client.lock("a").label("web\u{1b}[2J").meta("command", "./backup.sh");
    let guard = block_on(lock.acquire()).unwrap();
    let token = guard.token();
    let mut json = Terminal::start(&sandbox.fencepost(["watch", "--json", "--every", "100ms"]));
    json.until_shown("\"event\":\"held\"");
    let mut text = Terminal::start(&sandbox.fencepost(["watch", "--every", "100ms"]));
    text.until_shown(&format!("  held   a  web\\u{{1b}}[2J, token {token}, exclusive: ./backup.sh\n"));
    block_on(guard.write_cell(*b"half done", Keep::Always)).unwrap();
    text.until_shown(&format!("  cell   a  9 bytes, written with token {token}: half done\n"));
    let mut waiter = sandbox.start(&["run", "-q", "a", "true"]);
    text.until_shown("  queue  a  1 waiting\n");
    block_on(guard.release()).unwrap();
    text.until_shown(&format!("  ended  a  web\\u{{1b}}[2J, token {token}, held for "));
    text.until_shown(": released or broken\n");
    waiter.expect(0);
    for terminal in [&mut json, &mut text] {
        terminal.type_text(CTRL_C);
        terminal.expect(128 + 2);
        assert!(!terminal.screen().contains('\u{1b}'), "{}", terminal.screen());
    }
}

#[test]
fn events_are_coloured_on_a_terminal() {
    let sandbox = Sandbox::new();
    let _guard = hold(&sandbox.client(), "a");
    let mut watch = sandbox.fencepost(["watch"]);
    let terminal = Terminal::start(watch.env("TERM", "xterm").env_remove("NO_COLOR"));
    terminal.until_shown("\u{1b}[32mheld \u{1b}[0m  a");
}
