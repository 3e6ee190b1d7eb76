//! At a terminal, under a shell with job control: keys, Ctrl-C, Ctrl-Z, `fg` and `bg`.

use crate::sandbox::{Sandbox, is_alive, state, until};
use crate::terminal::{CTRL_C, CTRL_Z, PROMPT, Terminal};

/// A command that writes its id and fencepost's, and then counts each signal of a kind that it gets.
fn counting(signal: &str, then: &str) -> String {
    format!(
        "trap 'echo x >> {signal}; {then}' {signal}; echo $PPID > fencepost; echo $$ > command; \
         while [ -e locks.db ] && ! [ -e go ]; do sleep 0.02; done; exit 5"
    )
}

/// A command that writes its id and fencepost's and ends when it may.
const LOOP: &str = "echo $PPID > fencepost; echo $$ > command; \
                    while [ -e locks.db ] && ! [ -e go ]; do sleep 0.02; done; exit 5";

/// Waits until both the command and fencepost stand still.
#[track_caller]
fn until_both_stand_still(sandbox: &Sandbox) {
    for who in ["command", "fencepost"] {
        let id = sandbox.line(who);
        until(&format!("{who} stands still"), || state(&id) == Some('T'));
    }
}

#[track_caller]
fn until_both_go_on(sandbox: &Sandbox) {
    for who in ["command", "fencepost"] {
        let id = sandbox.line(who);
        until(&format!("{who} goes on"), || matches!(state(&id), Some('S' | 'R')));
    }
}

#[test]
fn a_command_reads_what_is_typed_and_the_shell_has_its_terminal_back() {
    let sandbox = Sandbox::new();
    let mut terminal = Terminal::with_shell(&sandbox);
    let shell = terminal.foreground();
    terminal.type_line("fencepost run a -- sh -c 'echo ask; read x; echo got $x; exit 5'");
    terminal.until_next("\nask\n");
    assert_ne!(terminal.foreground(), shell);
    terminal.type_line("this");
    terminal.until_next("got this\n");
    terminal.expect_code(5);
    assert_eq!(terminal.foreground(), shell);
    sandbox.assert_free("a");
}

#[test]
fn ctrl_c_reaches_the_command_once_and_its_exit_code_counts() {
    let sandbox = Sandbox::new();
    sandbox.write("count.sh", &counting("INT", "echo x > go"));
    let mut terminal = Terminal::with_shell(&sandbox);
    terminal.type_line("fencepost run a -- sh count.sh");
    sandbox.line("command");
    terminal.type_text(CTRL_C);
    terminal.expect_code(5);
    assert_eq!(sandbox.read("INT"), "x\n");
    terminal.type_line("fencepost run a -- sleep 60 & wait; fencepost run a -- sleep 60");
    sandbox.assert_free("b");
    terminal.type_text(CTRL_C);
    terminal.until_next(PROMPT);
}
