//! Keys typed at a terminal: they reach the command, and Ctrl-C the processes around it as if fencepost were not there.

use crate::job_control::{LOOP, interrupt, shell};
use crate::sandbox::until;
use crate::terminal::{CTRL_C, PROMPT};

#[test]
fn a_command_reads_what_is_typed_and_the_shell_gets_its_terminal_back() {
    let (sandbox, mut terminal) = shell();
    let before = terminal.foreground();
    terminal.type_line("fencepost run a -- sh -c 'echo ask; read x; echo got $x; exit 5'");
    terminal.until_next("\nask\n");
    assert_ne!(terminal.foreground(), before);
    terminal.type_line("this");
    terminal.until_next("got this\n");
    terminal.expect_code(5);
    assert_eq!(terminal.foreground(), before);
    sandbox.assert_free("a");
}

#[test]
fn ctrl_c_reaches_the_command_once_and_its_exit_code_counts() {
    let (sandbox, mut terminal) = shell();
    terminal.type_line("fencepost run a -- sh int.sh");
    interrupt(&sandbox, &mut terminal);
    terminal.expect_code(5);
    assert_eq!(sandbox.read("INT"), "x\n");
    sandbox.assert_free("a");
}

#[test]
fn ctrl_c_ends_the_script_that_fencepost_is_part_of() {
    let (sandbox, mut terminal) = shell();
    for shell in ["sh", "bash"] {
        for (run, has_terminal) in [("", true), ("2> errors", false), ("--foreground", false)] {
            sandbox.write("script.sh", &format!("fencepost run {run} a -- sh loop.sh; echo and on"));
            sandbox.write("command", "");
            terminal.type_line(&format!("{shell} script.sh"));
            let command = sandbox.line("command").parse().ok();
            until("it has the terminal", || !has_terminal || terminal.foreground() == command);
            terminal.type_text(CTRL_C);
            terminal.expect_code(130);
            assert!(!terminal.screen().contains("and on"), "{shell}: {}", terminal.screen());
            sandbox.assert_free("a");
        }
    }
}

#[test]
fn ctrl_c_ends_the_script_in_which_fencepost_waits() {
    let (sandbox, mut terminal) = shell();
    let mut holder = sandbox.hold("a", &[]);
    for shell in ["sh", "bash"] {
        sandbox.write("script.sh", "fencepost run a -- true; echo and on");
        terminal.type_line(&format!("{shell} script.sh"));
        terminal.until_next("held by");
        terminal.type_text(CTRL_C);
        terminal.expect_code(130);
        assert!(!terminal.screen().contains("and on"), "{shell}: {}", terminal.screen());
        sandbox.until_waiting("a", 0);
    }
    sandbox.let_go();
    holder.expect(0);
}

/// A command that catches Ctrl-C and continues is not ended by it, and neither is the script.
#[test]
fn a_script_continues_after_a_command_that_handles_ctrl_c() {
    let (sandbox, mut terminal) = shell();
    for shell in ["sh", "bash"] {
        sandbox.write("script.sh", "fencepost run a -- sh int.sh; echo after=$?");
        sandbox.write("command", "");
        sandbox.write("INT", "");
        terminal.type_line(&format!("{shell} script.sh"));
        let command = sandbox.line("command").parse().ok();
        until("it has the terminal", || terminal.foreground() == command);
        interrupt(&sandbox, &mut terminal);
        terminal.until_next("after=5\n");
        terminal.expect_code(0);
    }
}

#[test]
fn the_window_s_new_size_reaches_the_command() {
    let (sandbox, mut terminal) = shell();
    sandbox.write("size.sh", &format!("trap 'stty size < /dev/tty > size' WINCH; {LOOP}"));
    for (line, rows) in [
        ("fencepost run a -- sh size.sh", 31),
        ("fencepost run a -- sh size.sh | cat", 32),
        ("fencepost run --foreground a -- sh size.sh | cat", 33),
    ] {
        sandbox.write("command", "");
        terminal.type_line(line);
        sandbox.line("command");
        terminal.resize(rows, 90);
        until("the size is seen", || sandbox.read("size") == format!("{rows} 90\n"));
        terminal.type_text(CTRL_C);
        terminal.until_next(PROMPT);
    }
}
