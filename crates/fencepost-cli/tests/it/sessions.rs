//! Terminals without a shell, terminals that hang up, and programs between the terminal and fencepost.

use rustix::process::Signal;

use crate::job_control::{
    LOOP, open_gate, shell, stop_and_continue, until_both_are_stopped, until_it_has_the_terminal,
};
use crate::sandbox::{Running, Sandbox, is_alive, until};
use crate::terminal::{CTRL_C, CTRL_Z, PROMPT, Terminal};

const READ: &str = "echo $PPID > fencepost; echo $$ > command; echo ask; read x; echo got $x; exit 5";

#[test]
fn without_a_shell_ctrl_z_freezes_nothing() {
    let sandbox = Sandbox::new();
    sandbox.write("read.sh", READ);
    for args in [
        &["run", "a", "--", "sh", "read.sh"][..],
        &["run", "b", "--", "fencepost", "run", "a", "--", "sh", "read.sh"],
        &["run", "b", "--", "sh", "-c", "fencepost run a -- sh read.sh; exit $?"],
        &["run", "--foreground", "a", "--", "sh", "read.sh"],
    ] {
        let mut command = sandbox.on_path("fencepost");
        command.args(args);
        let mut terminal = Terminal::start(&command);
        terminal.until_next("ask\n");
        terminal.type_text(CTRL_Z);
        terminal.type_line("this");
        terminal.until_next("got this");
        terminal.expect(5);
        sandbox.assert_free("a");
    }
}

#[test]
fn without_a_shell_ctrl_z_freezes_no_pipeline() {
    let sandbox = Sandbox::new();
    // It starts no program, and is notified that Ctrl-Z was typed.
    let script = "trap 'echo x > continued' CONT; mkfifo gate; exec 9<> gate; echo $PPID > fencepost; \
                  echo $$ > command; while ! [ -e continued ]; do read x <&9; done; exit 5";
    sandbox.write("waiter.sh", script);
    let mut command = sandbox.on_path("sh");
    command.args(["-c", "fencepost run a -- sh waiter.sh 2> errors; exit $?"]);
    let mut terminal = Terminal::start(&command);
    sandbox.line("command");
    terminal.type_text(CTRL_Z);
    terminal.expect(5);
    sandbox.assert_free("a");
}

#[test]
fn without_a_shell_ctrl_c_ends_the_command() {
    let sandbox = Sandbox::new();
    for options in [&[][..], &["--foreground"]] {
        sandbox.write("command", "");
        let args = ["run"].iter().chain(options).chain(&["a", "-c", LOOP]);
        let mut terminal = Terminal::start(&sandbox.fencepost(args));
        sandbox.line("command");
        terminal.type_text(CTRL_C);
        terminal.expect(130);
        sandbox.assert_free("a");
    }
}

#[test]
fn a_terminal_that_hangs_up_ends_the_command_and_frees_the_lock() {
    for options in ["", "--foreground", "-q --ttl 20s"] {
        let (sandbox, mut terminal) = shell();
        terminal.type_line(&format!("fencepost run {options} a -- sh loop.sh"));
        let (command, fencepost) = (sandbox.line("command"), sandbox.line("fencepost"));
        terminal.hang_up();
        until("no process is left", || terminal.session().is_empty());
        assert!(!is_alive(&command) && !is_alive(&fencepost));
        sandbox.assert_free("a");
    }
}

#[test]
fn a_terminal_that_hangs_up_ends_what_was_stopped() {
    let (sandbox, mut terminal) = shell();
    terminal.type_line("fencepost run a -- sh waiter.sh");
    until_it_has_the_terminal(&sandbox, &terminal);
    terminal.type_text(CTRL_Z);
    terminal.until_next(PROMPT);
    until_both_are_stopped(&sandbox);
    terminal.hang_up();
    until("no process is left", || terminal.session().is_empty());
    sandbox.assert_free("a");
}

#[test]
fn a_terminal_that_hangs_up_without_a_shell_ends_the_command() {
    let sandbox = Sandbox::new();
    let mut terminal = Terminal::start(&sandbox.fencepost(["run", "a", "-c", LOOP]));
    sandbox.line("command");
    terminal.hang_up();
    terminal.wait();
    assert!(terminal.session().is_empty());
    sandbox.assert_free("a");
}

#[test]
fn a_run_within_a_run_has_the_terminal() {
    let (sandbox, mut terminal) = shell();
    sandbox.write("read.sh", READ);
    terminal.type_line("fencepost run a -- fencepost run b -- sh read.sh");
    terminal.until_next("\nask\n");
    for _ in 0..3 {
        until_it_has_the_terminal(&sandbox, &terminal);
        stop_and_continue(&sandbox, &mut terminal);
    }
    terminal.type_line("this");
    terminal.until_next("got this");
    terminal.expect_code(5);
    sandbox.write("command", "");
    terminal.type_line("fencepost run a -- fencepost run b -- sh loop.sh");
    sandbox.line("command");
    terminal.type_text(CTRL_C);
    terminal.expect_code(130);
    sandbox.assert_free("a");
    sandbox.assert_free("b");
}

#[test]
fn an_interactive_shell_under_the_lock_has_job_control() {
    for inner in ["sh -i", "bash --norc --noprofile -i"] {
        let (sandbox, mut terminal) = shell();
        terminal.type_line(&format!("PS1='inner> ' fencepost run a -- {inner}"));
        terminal.until_next("\ninner> ");
        terminal.type_line("sh waiter.sh");
        sandbox.line("command");
        terminal.type_text(CTRL_Z);
        terminal.until_next("Stopped");
        terminal.until_next("inner> ");
        terminal.type_line("fg");
        open_gate(&sandbox);
        terminal.until_next("inner> ");
        terminal.type_line("exit 6");
        terminal.expect_code(6);
        sandbox.assert_free("a");
    }
}

/// `timeout` signals its child and its own group, of which the child is a part.
#[test]
fn a_duplicate_request_to_end_counts_once() {
    let sandbox = Sandbox::new();
    let script = "trap 'echo x >> told; sleep 0.1; exit 7' TERM; echo x > ready; \
                  while [ -e locks.db ]; do sleep 0.02; done";
    for _ in 0..10 {
        sandbox.write("ready", "");
        sandbox.write("told", "");
        let mut command = sandbox.on_path("timeout");
        command.args(["--preserve-status", "60", "fencepost", "run", "a", "-c", script]);
        let mut running = Running::start(&mut command);
        sandbox.line("ready");
        // As if its time were over.
        running.send(Signal::ALARM);
        running.expect(7);
        assert_eq!(sandbox.read("told"), "x\n");
    }
}

#[test]
fn programs_that_run_others_do_not_interfere() {
    let (sandbox, mut terminal) = shell();
    for (line, code) in [
        ("script -qec \"fencepost run a -- sh -c 'exit 5'\" /dev/null", 5),
        ("nohup fencepost run a -- sh -c 'exit 6' 2> /dev/null", 6),
        ("timeout 50 fencepost run a -- sh -c 'exit 7'", 7),
        ("timeout --foreground 50 fencepost run a -- sh -c 'exit 8'", 8),
        ("setsid --wait fencepost run a -- sh -c 'exit 9'", 9),
        ("sh -c 'fencepost run a -- true & wait $!; exit 10'", 10),
        ("env -i \"$(command -v fencepost)\" run --url sqlite:locks.db a -- sh -c 'exit 11'", 11),
        ("echo x | xargs fencepost run a -- sh -c 'exit 12'", 123),
    ] {
        terminal.type_line(line);
        terminal.expect_code(code);
        sandbox.assert_free("a");
    }
}
