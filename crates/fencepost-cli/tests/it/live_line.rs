//! The live line of a waiting run on a terminal.

use std::process::{Command, Stdio};

use fencepost_testkit::servers::free_port;

use crate::sandbox::{Running, Sandbox, until};
use crate::terminal::{CTRL_C, PROMPT, Terminal};

/// A command on a terminal with a cursor.
fn on_terminal(sandbox: &Sandbox, args: &[&str]) -> Command {
    let mut command = sandbox.fencepost(args);
    command.env("TERM", "xterm");
    command
}

fn last_line(terminal: &Terminal) -> String {
    terminal.visible().pop().unwrap()
}

fn holder(sandbox: &Sandbox) -> Running {
    sandbox.hold("backup", &["--owner-label", "web-3:4711:deploy"])
}

#[test]
fn a_waiter_on_a_terminal_redraws_one_line_and_removes_it() {
    let sandbox = Sandbox::new();
    let mut holder = holder(&sandbox);
    let args = ["run", "--wait", "10m", "backup", "--", "echo", "started"];
    let mut terminal = Terminal::start(&on_terminal(&sandbox, &args));
    terminal.resize(24, 200);
    terminal.until_shown("fencepost: waiting for \"backup\": held by web-3:4711:deploy for ");
    until("two states were drawn", || terminal.screen().matches("\r\x1b[K").count() >= 3);
    let line = last_line(&terminal);
    for part in ["ttl ", "s left", "you are next", "waited ", "s of 10m"] {
        assert!(line.contains(part), "{part:?} is missing in {line:?}");
    }
    assert_eq!(terminal.visible().len(), 1, "{:?}", terminal.visible());
    sandbox.let_go();
    holder.expect(0);
    terminal.expect(0);
    until("the command has written", || terminal.screen().contains("started"));
    assert_eq!(terminal.visible(), ["started", ""], "the line is gone before the command starts");
}

#[test]
fn the_line_fits_the_width_of_the_terminal() {
    let sandbox = Sandbox::new();
    let mut holder = holder(&sandbox);
    let mut terminal = Terminal::start(&on_terminal(&sandbox, &["run", "backup", "--", "true"]));
    for columns in [100, 79, 40, 10] {
        terminal.resize(24, columns);
        let room = usize::from(columns) - 1;
        let fits =
            || matches!(last_line(&terminal).chars().count(), width if width > room / 2 && width <= room);
        until("it is drawn again", fits);
        assert_eq!(terminal.visible().len(), 1, "it was not wrapped: {:?}", terminal.visible());
    }
    sandbox.let_go();
    holder.expect(0);
    terminal.expect(0);
    until("the line is gone", || terminal.visible() == [""]);
}

#[test]
fn a_run_that_connects_shows_it_in_the_same_line() {
    let sandbox = Sandbox::new();
    let url = format!("redis://user:geheim@127.0.0.1:{}?replicas=0", free_port());
    let mut command = on_terminal(&sandbox, &["run", "--wait", "3s", "backup", "--", "true"]);
    command.env("FENCEPOST_URL", &url);
    let mut terminal = Terminal::start(&command);
    terminal.until_shown("connecting to redis://127.0.0.1:");
    terminal.until_shown(": Connection refused, retrying, 2s of 3s");
    terminal.expect(125);
    terminal.until_shown("hint: ");
    let visible = terminal.visible();
    assert!(visible[0].starts_with("fencepost: error: gave up connecting after 3s: "), "{visible:?}");
    assert!(!terminal.screen().contains("geheim"));
}

#[test]
fn a_signal_removes_the_line() {
    let sandbox = Sandbox::new();
    let mut holder = holder(&sandbox);
    let mut terminal = Terminal::start(&on_terminal(&sandbox, &["run", "backup", "--", "true"]));
    terminal.until_shown("you are next");
    terminal.type_text(CTRL_C);
    terminal.expect(130);
    until("the line is gone", || terminal.visible() == [""]);
    sandbox.let_go();
    holder.expect(0);
}

/// Nothing moves a cursor that is not there.
#[test]
fn without_a_cursor_there_are_plain_lines() {
    let sandbox = Sandbox::new();
    let mut holder = holder(&sandbox);
    for term in ["dumb", ""] {
        let mut command = sandbox.fencepost(["run", "-v", "backup", "--", "true"]);
        command.env("TERM", term);
        let terminal = Terminal::start(&command);
        terminal.until_shown("waiting for \"backup\": held by ");
        assert!(!terminal.screen().contains('\x1b'), "{term:?}: {}", terminal.screen());
    }
    let mut command = sandbox.fencepost(["run", "-v", "backup", "--", "true"]);
    command.env("TERM", "xterm");
    let said = sandbox.path("said");
    let terminal = Terminal::start_with(&command, |command| {
        command.stderr(Stdio::from(std::fs::File::create(&said).unwrap()));
    });
    until("it is written to the file", || sandbox.read("said").contains("waiting for \"backup\": held by "));
    assert!(!sandbox.read("said").contains('\x1b') && terminal.screen().is_empty());
    drop(terminal);
    sandbox.let_go();
    holder.expect(0);
}

/// In the background a redrawn line would overwrite what is typed.
#[test]
fn a_run_in_the_background_does_not_redraw() {
    let sandbox = Sandbox::new();
    let mut holder = holder(&sandbox);
    let mut terminal = Terminal::with_shell(&sandbox);
    terminal.type_line("TERM=xterm fencepost run backup -- true &");
    terminal.until_next("you are next\n");
    assert!(!terminal.screen().contains('\x1b'), "{}", terminal.screen());
    sandbox.let_go();
    holder.expect(0);
    terminal.type_line("wait");
    terminal.until_next(PROMPT);
}

#[test]
fn a_quiet_run_draws_nothing() {
    let sandbox = Sandbox::new();
    let mut holder = holder(&sandbox);
    let mut terminal = Terminal::start(&on_terminal(&sandbox, &["run", "-q", "backup", "--", "true"]));
    sandbox.until_waiting("backup", 1);
    sandbox.let_go();
    holder.expect(0);
    terminal.expect(0);
    assert_eq!(terminal.screen(), "");
}
