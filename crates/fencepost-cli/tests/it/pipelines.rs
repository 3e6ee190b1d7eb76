//! In a pipeline at a terminal: its foreground belongs to all of the pipeline's programs, and stays with them. Keys that
//! are for all of them are typed when all of them run.

use crate::job_control::{interrupt, open_gate, shell, stop_and_continue, until_both_are_stopped};
use crate::sandbox::{is_alive, until};
use crate::terminal::{CTRL_C, CTRL_Z, PROMPT};

/// A small pager: it shows a line for each key, and ends with `q`.
const PAGER: &str = "stty -icanon -echo < /dev/tty; echo x > pager; \
                     while read -r line; do echo \"page $line\"; key=$(head -c 1 < /dev/tty); \
                     [ \"$key\" = q ] && break; done; stty icanon echo < /dev/tty";

#[test]
fn a_pager_gets_the_keys_and_the_command_continues() {
    let (sandbox, mut terminal) = shell();
    sandbox.write("pager.sh", PAGER);
    sandbox.write("lines.sh", "echo $$ > command; echo one; echo two; echo three; sleep 0.1; echo x > done");
    terminal.type_line("fencepost run a -- sh lines.sh | sh pager.sh");
    terminal.until_next("page one");
    sandbox.line("done");
    terminal.type_text("k");
    terminal.until_next("page two");
    terminal.type_text("q");
    terminal.expect_code(0);
    sandbox.assert_free("a");
}

#[test]
fn more_pages_the_output_of_a_command() {
    let (sandbox, mut terminal) = shell();
    terminal.resize(10, 80);
    terminal.type_line("fencepost run a -- seq 1000 1050 | more");
    terminal.until_next("1008\n");
    terminal.until_next("More");
    terminal.type_text(" ");
    terminal.until_next("1017\n");
    terminal.type_text("q");
    terminal.expect_code(0);
    until("the lock is free", || sandbox.inspect("a").is_idle());
}

#[test]
fn a_pager_that_quits_ends_a_command_that_still_writes() {
    let (sandbox, mut terminal) = shell();
    sandbox.write("pager.sh", PAGER);
    sandbox.write("write.sh", "echo $$ > command; while [ -e locks.db ]; do echo line || exit 1; done");
    terminal.type_line("fencepost run a -- sh write.sh | sh pager.sh");
    terminal.until_next("page line");
    let command = sandbox.line("command");
    terminal.type_text("q");
    terminal.expect_code(0);
    assert!(!is_alive(&command));
    sandbox.assert_free("a");
}

#[test]
fn ctrl_c_reaches_the_command_once() {
    let (sandbox, mut terminal) = shell();
    for options in ["", "--foreground"] {
        for rest in ["| sh sink.sh", "2>&1 | sh sink.sh", "< /dev/null", "2> errors"] {
            for file in ["command", "INT", "sink"] {
                let _ = std::fs::remove_file(sandbox.path(file));
            }
            terminal.type_line(&format!("fencepost run {options} a -- sh int.sh {rest}"));
            if rest.contains("sink") {
                sandbox.line("sink");
            }
            interrupt(&sandbox, &mut terminal);
            terminal.until_next(PROMPT);
            until("the lock is free", || sandbox.inspect("a").is_idle());
            assert_eq!(sandbox.read("INT"), "x\n", "{options} {rest}: {}", terminal.screen());
        }
    }
}

#[test]
fn the_exit_code_is_the_commands() {
    let (sandbox, mut terminal) = shell();
    for options in ["", "--foreground"] {
        sandbox.write("command", "");
        sandbox.write("INT", "");
        terminal.type_line(&format!("fencepost run {options} a -- sh int.sh 2> errors"));
        interrupt(&sandbox, &mut terminal);
        terminal.expect_code(5);
    }
}

#[test]
fn ctrl_z_stops_the_whole_pipeline_and_fg_continues_it() {
    let (sandbox, mut terminal) = shell();
    for options in ["", "--foreground"] {
        sandbox.write("command", "");
        sandbox.write("sink", "");
        terminal.type_line(&format!("fencepost run {options} a -- sh waiter.sh | sh sink.sh"));
        sandbox.line("command");
        sandbox.line("sink");
        for _ in 0..20 {
            stop_and_continue(&sandbox, &mut terminal);
        }
        open_gate(&sandbox);
        terminal.expect_code(0);
        assert!(!terminal.screen().contains("stopped by a signal"), "{}", terminal.screen());
    }
}

#[test]
fn a_command_that_needs_the_terminal_in_a_pipeline_is_reported_and_can_share_it() {
    let (sandbox, mut terminal) = shell();
    sandbox.write("asks.sh", "echo $PPID > fencepost; echo $$ > command; read x < /dev/tty; echo got $x");
    terminal.type_line("fencepost run a -- sh asks.sh | sh sink.sh");
    sandbox.line("sink");
    terminal.until_next("the command needs the terminal and is stopped; it keeps lock \"a\"");
    terminal.until_next("--foreground");
    // Ctrl-Z brings the prompt back although the command is stopped already.
    terminal.type_text(CTRL_Z);
    terminal.until_next("Stopped");
    terminal.until_next(PROMPT);
    until_both_are_stopped(&sandbox);
    terminal.type_line("fg");
    terminal.until_next("the command needs the terminal");
    terminal.type_text(CTRL_C);
    terminal.until_next(PROMPT);
    until("the lock is free", || sandbox.inspect("a").is_idle());
    sandbox.write("command", "");
    terminal.type_line("fencepost run --foreground a -- sh asks.sh | cat");
    sandbox.line("command");
    terminal.type_line("this");
    terminal.until_next("got this");
    terminal.expect_code(0);
}
