//! As in a container: PID 1, a read-only root, no /proc, no home, no open descriptors.

use std::process::Command;

use rustix::process::Signal;

use crate::sandbox::{Ran, Running, Sandbox, until};
use crate::terminal::{CTRL_C, Terminal};

/// Returns this script as PID 1 of new namespaces, if the machine permits that.
fn contained(sandbox: &Sandbox, script: &str) -> Option<Command> {
    let namespaces = if rustix::process::geteuid().is_root() {
        &["--pid", "--mount", "--fork", "--kill-child", "--mount-proc"][..]
    } else {
        &["--pid", "--mount", "--fork", "--kill-child", "--mount-proc", "--user", "--map-root-user"]
    };
    let tried = Command::new("unshare").args(namespaces).arg("true").output().expect("unshare is installed");
    let said = String::from_utf8_lossy(&tried.stderr).into_owned();
    if !tried.status.success() && said.contains("Operation not permitted") {
        println!("not tested: this machine permits no namespaces: {said}");
        return None;
    }
    assert!(tried.status.success(), "unshare has failed: {said}");
    let mut command = sandbox.on_path("unshare");
    command.args(namespaces).args(["sh", "-c", script]);
    Some(command)
}

#[track_caller]
fn expect(command: &mut Command, code: i32) -> Ran {
    Ran(command.output().unwrap()).expect(code)
}

#[test]
fn as_the_first_process_it_returns_the_exit_code() {
    let sandbox = Sandbox::new();
    let Some(mut command) = contained(&sandbox, "exec fencepost run a -- sh -c 'echo $PPID; exit 5'") else {
        return;
    };
    assert_eq!(expect(&mut command, 5).stdout(), "1\n");
    let Some(mut command) = contained(&sandbox, "exec fencepost run a -- sh -c 'kill -KILL $$'") else {
        return;
    };
    expect(&mut command, 128 + 9);
    sandbox.assert_free("a");
}

#[test]
fn as_the_first_process_it_reaps_orphans() {
    let sandbox = Sandbox::new();
    let script = "(sh -c 'echo $$ > orphan; while [ -e locks.db ] && ! [ -e end ]; do sleep 0.02; done' &); \
                  until [ -s orphan ]; do sleep 0.02; done; echo x > end; \
                  while [ -e locks.db ] && [ -e /proc/$(cat orphan) ]; do sleep 0.02; done; exit 5";
    sandbox.write("orphans.sh", script);
    let Some(mut command) = contained(&sandbox, "exec fencepost run a -- sh orphans.sh") else { return };
    Running::start(&mut command).expect(5);
}

#[test]
fn as_the_first_process_it_forwards_signals() {
    let sandbox = Sandbox::new();
    let script = "trap 'exit 7' TERM; echo x > ready; while [ -e locks.db ]; do sleep 0.02; done";
    sandbox.write("ready.sh", script);
    // Two processes that are not fencepost: one is visible from outside, and it sends a signal to PID 1.
    let Some(mut command) = contained(
        &sandbox,
        "(until [ -s ready ]; do sleep 0.02; done; kill -TERM 1) & exec fencepost run a -- sh ready.sh",
    ) else {
        return;
    };
    Running::start(&mut command).expect(7);
    sandbox.assert_free("a");
}

#[test]
fn as_the_first_process_it_ends_by_a_signal_while_it_waits() {
    let sandbox = Sandbox::new();
    let mut holder = sandbox.hold("a", &[]);
    let script = "(until [ -e asked ]; do sleep 0.02; done; kill -TERM 1) & exec fencepost run a -- true";
    let Some(mut command) = contained(&sandbox, script) else { return };
    let mut waiter = Running::start(&mut command);
    sandbox.until_waiting("a", 1);
    sandbox.write("asked", "");
    waiter.expect(128 + 15);
    sandbox.until_waiting("a", 0);
    sandbox.let_go();
    holder.expect(0);
}

#[test]
fn within_a_container_the_warden_kills_for_a_fencepost_that_is_stopped() {
    let sandbox = Sandbox::new();
    sandbox.write("still.sh", "echo $PPID > fencepost; echo $$ > command; exec sleep 600");
    // The id of the sleeper is valid inside; whether it is alive is checked inside, too.
    let script = "fencepost run --ttl 2s a -- sh still.sh & until [ -s command ]; do sleep 0.02; done; \
                  kill -STOP $(cat fencepost); \
                  while [ -e locks.db ] && grep -q '^State:.[^ZX]' /proc/$(cat command)/status; do sleep 0.02; done; \
                  kill -CONT $(cat fencepost); wait $!";
    let Some(mut command) = contained(&sandbox, script) else { return };
    Running::start(&mut command).expect(76);
}

/// `docker exec` and `unshare` start no session: its leader is outside, and has no number inside.
#[test]
fn in_a_session_from_outside_a_stopped_command_is_reported() {
    let sandbox = Sandbox::new();
    sandbox.write("still.sh", "echo $$ > command; kill -STOP $$; exit 5");
    let script = "(until [ -e told ]; do sleep 0.02; done; kill -CONT $(cat command)) & exec fencepost run a -- sh still.sh";
    let Some(mut command) = contained(&sandbox, script) else { return };
    let mut running = Running::start(&mut command);
    running.until_said("the command was stopped");
    sandbox.write("told", "");
    running.expect(5);
}

#[test]
fn in_a_session_from_outside_the_keys_of_its_terminal_work() {
    let sandbox = Sandbox::new();
    sandbox.write("trap.sh", "trap 'exit 7' INT; echo begun; while [ -e locks.db ]; do sleep 0.02; done");
    let Some(command) = contained(&sandbox, "exec fencepost run a -- sh trap.sh") else { return };
    let mut terminal = Terminal::start(&command);
    terminal.until_next("begun");
    terminal.type_text(CTRL_C);
    terminal.expect(7);
    sandbox.assert_free("a");
}

#[test]
fn within_a_container_no_process_outlives_a_fencepost_that_was_killed() {
    let sandbox = Sandbox::new();
    sandbox.write("worker.sh", "sleep 600 & echo $! > worker; echo $PPID > fencepost; echo x > ready; wait");
    let script = "fencepost run a -- sh worker.sh & until [ -s ready ]; do sleep 0.02; done; \
                  kill -KILL $(cat fencepost); wait $!; \
                  while [ -e locks.db ] && grep -q '^State:.[^ZX]' /proc/$(cat worker)/status; do sleep 0.02; done; exit 5";
    let Some(mut command) = contained(&sandbox, script) else { return };
    Running::start(&mut command).expect(5);
}

#[test]
fn a_read_only_root_and_no_home_are_enough() {
    let sandbox = Sandbox::new();
    let script = "mount -t tmpfs none /srv && mount -o remount,bind,ro / && ! touch /x 2> /dev/null && cd / && \
                  exec env -i \"$(command -v fencepost)\" run --url sqlite:/srv/x.db a -- sh -c 'exit 5'";
    // A bind mount of the root over itself can be made read-only without changing the root of other processes.
    let script = format!("mount --make-rprivate / && mount --bind / / && {script}");
    let Some(mut command) = contained(&sandbox, &script) else { return };
    expect(&mut command, 5);
}

#[test]
fn without_a_home_the_default_backend_says_what_to_do() {
    let sandbox = Sandbox::new();
    let mut command = sandbox.fencepost(["run", "a", "true"]);
    command.env_clear();
    let ran = expect(&mut command, 125);
    assert!(ran.stderr().contains("HOME") && ran.stderr().contains("\nhint: "), "{}", ran.stderr());
}

#[test]
fn without_proc_it_runs_however_it_was_called() {
    let sandbox = Sandbox::new();
    let folder = std::path::Path::new(env!("CARGO_BIN_EXE_fencepost")).parent().unwrap();
    for call in ["fencepost".to_owned(), "./fencepost".into(), env!("CARGO_BIN_EXE_fencepost").into()] {
        let script = format!(
            "cd {}; mount -t tmpfs none /proc; ! [ -e /proc/self ] && exec {call} run a -- sh -c 'sleep 600 & exit 5'",
            folder.display()
        );
        let Some(mut command) = contained(&sandbox, &script) else { return };
        expect(&mut command, 5);
        sandbox.assert_free("a");
    }
}

#[test]
fn closed_descriptors_do_no_harm() {
    let sandbox = Sandbox::new();
    let mut command = sandbox.on_path("sh");
    // The command sees only the replacements of the three that were closed, and the folder that it lists.
    let look = "for n in /proc/self/fd/*; do readlink $n; done > seen; exit 5";
    command.args(["-c", "exec fencepost run a -- sh -c \"$0\" <&- >&- 2>&-", look]);
    expect(&mut command, 5);
    let seen = sandbox.read("seen");
    assert!(!seen.contains("socket:") && !seen.contains("locks.db"), "{seen}");
    sandbox.assert_free("a");
    // No message is written into the database.
    let mut command = sandbox.on_path("sh");
    command.args(["-c", "exec fencepost run -v a -- sh -c 'echo out; echo err >&2; exit 5' <&- >&- 2>&-"]);
    expect(&mut command, 5);
    sandbox.run(&["run", "a", "true"]).expect(0);
}

#[test]
fn events_for_a_descriptor_that_is_not_open_are_rejected() {
    let sandbox = Sandbox::new();
    for closed in ["3>&-", "3>&- <&- >&- 2>&-"] {
        let mut command = sandbox.on_path("sh");
        command.args(["-c", &format!("exec fencepost run --status-fd 3 a -- touch ran {closed}")]);
        expect(&mut command, 125);
        assert!(!sandbox.path("ran").exists());
    }
}

#[test]
fn a_service_that_is_ended_as_a_whole_ends_in_order() {
    let sandbox = Sandbox::new();
    // As a service manager does: every process gets TERM, the warden and the command too.
    let script = "trap 'echo x >> told; exit 7' TERM; echo $PPID > fencepost; echo $$ > command; \
                  while [ -e locks.db ]; do sleep 0.02; done";
    let mut running = sandbox.start(&["run", "a", "-c", script]);
    let command = sandbox.line("command");
    let children = std::fs::read_to_string(format!("/proc/{0}/task/{0}/children", running.id())).unwrap();
    for id in
        children.split_ascii_whitespace().filter_map(|id| rustix::process::Pid::from_raw(id.parse().ok()?))
    {
        rustix::process::kill_process(id, Signal::TERM).unwrap();
    }
    running.send(Signal::TERM);
    running.expect(7);
    until("the command is gone", || !crate::sandbox::is_alive(&command));
    sandbox.assert_free("a");
}
