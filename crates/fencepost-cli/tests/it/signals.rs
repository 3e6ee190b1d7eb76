//! Signals to fencepost are forwarded to the command.

use rustix::process::Signal;

use crate::sandbox::{Running, Sandbox, has, is_alive, state, until};

#[test]
fn signals_are_forwarded_and_the_exit_code_of_the_command_is_returned() {
    let sandbox = Sandbox::new();
    for (signal, name, code) in [
        (Signal::HUP, "HUP", 11),
        (Signal::INT, "INT", 12),
        (Signal::QUIT, "QUIT", 13),
        (Signal::TERM, "TERM", 14),
        (Signal::USR1, "USR1", 15),
        (Signal::USR2, "USR2", 16),
        (Signal::WINCH, "WINCH", 17),
    ] {
        let ready = format!("ready-{name}");
        let script = format!(
            "trap 'exit {code}' {name}; echo x > {ready}; while [ -e locks.db ]; do sleep 0.02; done"
        );
        let mut running = sandbox.start(&["run", "a", "-c", &script]);
        sandbox.line(&ready);
        running.send(signal);
        running.expect(code);
        sandbox.assert_free("a");
    }
}

#[test]
fn a_command_without_a_handler_is_ended_by_the_signal() {
    let sandbox = Sandbox::new();
    let mut running = sandbox.start(&["run", "a", "-c", "echo $$ > ready; exec sleep 600"]);
    let command = sandbox.line("ready");
    running.send(Signal::TERM);
    running.expect(128 + 15);
    assert!(!is_alive(&command));
}

#[test]
fn stop_and_continue_are_forwarded() {
    let sandbox = Sandbox::new();
    // With no shell above it that could continue it, fencepost itself does not stop.
    let mut command = std::process::Command::new("setsid");
    command.args([env!("CARGO_BIN_EXE_fencepost"), "run", "a", "-c", "echo $$ > ready; exec sleep 600"]);
    command.current_dir(sandbox.path("")).env("FENCEPOST_URL", sandbox.url());
    let mut running = Running::start(&mut command);
    let command = sandbox.line("ready");
    running.send(Signal::TSTP);
    until("the command is stopped", || state(&command) == Some('T'));
    running.send(Signal::CONT);
    until("the command continues", || state(&command) == Some('S'));
    running.send(Signal::TSTP);
    until("the command is stopped again", || state(&command) == Some('T'));
    running.send(Signal::TERM);
    running.expect(128 + 15);
}

#[test]
fn a_signal_ignored_at_the_start_stays_ignored() {
    let sandbox = Sandbox::new();
    let binary = env!("CARGO_BIN_EXE_fencepost");
    let script = "echo $$ > ready; while [ -e locks.db ] && ! [ -e go ]; do sleep 0.02; done; exit 5";
    let mut nohup = std::process::Command::new("sh");
    nohup.args(["-c", "trap '' HUP; exec \"$0\" run a -c \"$1\"", binary, script]);
    nohup.current_dir(sandbox.path("")).env("FENCEPOST_URL", sandbox.url());
    let mut running = Running::start(&mut nohup);
    let command = sandbox.line("ready");
    for id in [command, running.id().to_string()] {
        assert!(has(&id, "SigIgn", Signal::HUP));
        assert!(!has(&id, "SigIgn", Signal::TERM));
    }
    running.send(Signal::HUP);
    sandbox.let_go();
    running.expect(5);
}

#[test]
fn a_second_request_to_end_kills() {
    let sandbox = Sandbox::new();
    let script =
        "trap 'echo x >> asked' INT TERM; echo x > ready; while [ -e locks.db ]; do sleep 0.02; done";
    let mut running = sandbox.start(&["run", "a", "-c", script]);
    sandbox.line("ready");
    running.send(Signal::INT);
    sandbox.line("asked");
    assert!(!running.has_ended());
    running.send(Signal::TERM);
    running.expect(128 + 9);
    sandbox.assert_free("a");
}

#[test]
fn a_stopped_command_is_reported() {
    let sandbox = Sandbox::new();
    let mut running = sandbox.start(&["run", "a", "-c", "echo $$ > worker; kill -STOP $$; exit 5"]);
    let worker = sandbox.line("worker");
    running.until_said("the command was stopped");
    let id = rustix::process::Pid::from_raw(worker.parse().unwrap()).unwrap();
    rustix::process::kill_process(id, Signal::CONT).unwrap();
    running.expect(5);
}

/// A parent that waits for its children with `signalfd` blocks SIGCHLD, and some do not unblock it in the child.
#[test]
fn the_end_of_a_command_is_noticed_although_sigchld_was_blocked() {
    let sandbox = Sandbox::new();
    let mut env = sandbox.on_path("env");
    let mask = "grep SigBlk /proc/self/status";
    env.args(["--block-signal=CHLD", "fencepost", "run", "--ttl", "600s", "a", "-c", mask]);
    let mut running = Running::start(&mut env);
    until("it has ended", || running.has_ended());
    running.expect(0);
}
