//! At a terminal, under a shell with job control: Ctrl-Z, `fg` and `bg`.

use std::fs::File;
use std::io::Write;

use rustix::process::{Pid, Signal, kill_process};

use crate::sandbox::{Sandbox, can_act, is_alive, state, until};
use crate::terminal::{CTRL_C, CTRL_Z, PROMPT, Terminal};

/// A command that writes its id and that of fencepost, and runs until it is ended.
pub(crate) const LOOP: &str = "echo $PPID > fencepost; echo $$ > command; \
                               while [ -e locks.db ]; do sleep 0.02; done; exit 6";

/// The same, but it starts nothing, and ends when the gate is opened. A shell that is about to start a program when
/// Ctrl-Z is typed may not stop: the new process stops before it is that program, and the shell waits for that.
const WAITER: &str =
    "mkfifo gate; exec 9<> gate; echo $PPID > fencepost; echo $$ > command; read x <&9; exit 5";

/// The same, but it reads lines from the terminal until there is one that says `end`.
const READER: &str = "echo $PPID > fencepost; echo $$ > command; \
                      while read line; do echo got $line; [ $line = end ] && exit 5; done; exit 6";

/// A sandbox with these commands as scripts, and a shell at a terminal there.
pub(crate) fn shell() -> (Sandbox, Terminal) {
    let sandbox = Sandbox::new();
    sandbox.write("loop.sh", LOOP);
    sandbox.write("waiter.sh", WAITER);
    sandbox.write("reader.sh", READER);
    sandbox.write("sink.sh", "echo x > sink; exec cat");
    // The signal after INT shows that INT was not received twice.
    sandbox.write("int.sh", &format!("trap 'echo x >> INT' INT; trap 'exit 5' USR1; {LOOP}"));
    let terminal = Terminal::with_shell(&sandbox);
    (sandbox, terminal)
}

/// Lets the waiter end.
pub(crate) fn open_gate(sandbox: &Sandbox) {
    let mut gate = File::options().read(true).write(true).open(sandbox.path("gate")).unwrap();
    gate.write_all(b"x\n").unwrap();
    let command = sandbox.line("command");
    until("the command ends", || !is_alive(&command));
    std::fs::remove_file(sandbox.path("gate")).unwrap();
}

/// Types Ctrl-C for `int.sh`, and then ends it with a signal that takes the same way.
pub(crate) fn interrupt(sandbox: &Sandbox, terminal: &mut Terminal) {
    let (command, fencepost) = (sandbox.line("command"), sandbox.line("fencepost"));
    terminal.type_text(CTRL_C);
    sandbox.line("INT");
    let id = Pid::from_raw(fencepost.parse().unwrap()).unwrap();
    kill_process(id, Signal::USR1).unwrap();
    until("the command ends", || !is_alive(&command));
}

/// Waits until the command has the terminal, and returns its id. It may have used it before, and have been stopped and
/// continued for that: a key typed meanwhile would be lost.
#[track_caller]
pub(crate) fn until_it_has_the_terminal(sandbox: &Sandbox, terminal: &Terminal) -> String {
    let command = sandbox.line("command");
    let has_it = || terminal.foreground() == command.parse().ok() && state(&command) == Some('S');
    until("the command has the terminal", has_it);
    command
}

/// Waits until both the command and fencepost are stopped.
#[track_caller]
pub(crate) fn until_both_are_stopped(sandbox: &Sandbox) {
    for who in ["command", "fencepost"] {
        let id = sandbox.line(who);
        until(&format!("{who} is stopped"), || state(&id) == Some('T'));
    }
}

#[track_caller]
pub(crate) fn until_both_continue(sandbox: &Sandbox) {
    for who in ["command", "fencepost"] {
        let id = sandbox.line(who);
        until(&format!("{who} continues"), || matches!(state(&id), Some('S' | 'R')));
    }
}

/// Types Ctrl-Z, sees that the shell has the terminal, and brings both back.
#[track_caller]
pub(crate) fn stop_and_continue(sandbox: &Sandbox, terminal: &mut Terminal) {
    terminal.type_text(CTRL_Z);
    terminal.until_next("Stopped");
    terminal.until_next(PROMPT);
    until_both_are_stopped(sandbox);
    terminal.type_line("fg");
    until_both_continue(sandbox);
}

#[test]
fn ctrl_z_stops_both_and_fg_gives_the_terminal_back() {
    let (sandbox, mut terminal) = shell();
    let before = terminal.foreground();
    terminal.type_line("fencepost run a -- sh reader.sh");
    until_it_has_the_terminal(&sandbox, &terminal);
    for round in 0..3 {
        terminal.type_text(CTRL_Z);
        terminal.until_next("Stopped");
        terminal.until_next(PROMPT);
        until_both_are_stopped(&sandbox);
        assert_eq!(terminal.foreground(), before);
        terminal.type_line(&format!("echo usable-$((6*7+{round}))"));
        terminal.until_next(&format!("usable-{}\n", 42 + round));
        terminal.type_line("fg");
        until_both_continue(&sandbox);
        terminal.type_line("word");
        terminal.until_next("got word");
    }
    terminal.type_line("end");
    terminal.until_next("got end");
    terminal.expect_code(5);
    sandbox.assert_free("a");
}

#[test]
fn bg_continues_the_command_without_the_terminal() {
    let (sandbox, mut terminal) = shell();
    let before = terminal.foreground();
    terminal.type_line("fencepost run a -- sh waiter.sh");
    until_it_has_the_terminal(&sandbox, &terminal);
    terminal.type_text(CTRL_Z);
    terminal.until_next("Stopped");
    terminal.until_next(PROMPT);
    terminal.type_line("bg");
    until_both_continue(&sandbox);
    terminal.until_next(PROMPT);
    assert_eq!(terminal.foreground(), before);
    open_gate(&sandbox);
    terminal.type_line("wait %1");
    terminal.expect_code(5);
    sandbox.assert_free("a");
}

#[test]
fn a_command_that_is_stopped_for_longer_than_the_lease_is_killed_before_the_successor_enters() {
    let (sandbox, mut terminal) = shell();
    terminal.type_line("fencepost run --ttl 2s a -- sh waiter.sh");
    let command = until_it_has_the_terminal(&sandbox, &terminal);
    terminal.type_text(CTRL_Z);
    terminal.until_next("Stopped");
    terminal.until_next(PROMPT);
    // The successor sees a zombie, or a process with a pending KILL that was not scheduled yet.
    let next = "cat /proc/$(cat command)/status 2>/dev/null > status; \
                grep -q '^State:[[:space:]][^ZX]' status || exit 0; \
                grep -q '^S[a-z]*Pnd:.*[13579bdf]..$' status || exit 9";
    sandbox.run(&["run", "a", "-c", next]).expect(0);
    assert!(!can_act(&command));
    terminal.type_line("fg");
    terminal.until_next("killed the command");
    terminal.expect_code(76);
    sandbox.assert_free("a");
}

#[test]
fn a_command_that_ignores_ctrl_z_continues() {
    let (sandbox, mut terminal) = shell();
    sandbox.write("stubborn.sh", &format!("trap '' TSTP; {READER}"));
    terminal.type_line("fencepost run a -- sh stubborn.sh");
    until_it_has_the_terminal(&sandbox, &terminal);
    terminal.type_text(CTRL_Z);
    terminal.type_line("end");
    terminal.until_next("got end");
    terminal.expect_code(5);
}

#[test]
fn ctrl_z_stops_the_script_that_fencepost_is_part_of() {
    let (sandbox, mut terminal) = shell();
    sandbox.write("script.sh", "fencepost run a -- sh reader.sh; echo after=$?");
    terminal.type_line("sh script.sh");
    for _ in 0..2 {
        until_it_has_the_terminal(&sandbox, &terminal);
        stop_and_continue(&sandbox, &mut terminal);
    }
    terminal.type_line("end");
    terminal.until_next("after=5\n");
    terminal.expect_code(0);
}

#[test]
fn a_command_in_the_background_reads_when_it_is_brought_forward() {
    let (sandbox, mut terminal) = shell();
    terminal.type_line("fencepost run a -- sh reader.sh &");
    terminal.until_next(PROMPT);
    until_both_are_stopped(&sandbox);
    terminal.type_line("fg");
    until_both_continue(&sandbox);
    terminal.type_line("end");
    terminal.until_next("got end");
    terminal.expect_code(5);
}
