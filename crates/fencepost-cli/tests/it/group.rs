//! The lock is released only when the whole process group is gone.

use rustix::process::Signal;

use crate::sandbox::{Sandbox, is_alive, until};

/// Acquires the lock next, and prints whether the process whose id is in `worker` was alive then.
const WITNESS: &str = "if grep -q '^State:[[:space:]][^ZX]' /proc/$(cat worker)/status 2>/dev/null; \
                       then echo alive; else echo gone; fi";

fn witness(sandbox: &Sandbox) {
    let ran = sandbox.run(&["run", "a", "-c", WITNESS]).expect(0);
    assert_eq!(ran.stdout(), "gone\n");
}

#[test]
fn what_a_command_leaves_behind_is_gone_before_the_release() {
    let sandbox = Sandbox::new();
    let script = "sleep 600 & echo $! > worker; exit 0";
    sandbox.run(&["run", "a", "-c", script]).expect(0);
    assert!(!is_alive(&sandbox.line("worker")));
    sandbox.assert_free("a");
}

#[test]
fn a_process_that_ignores_term_is_killed_after_the_kill_after() {
    let sandbox = Sandbox::new();
    let worker = "trap '' TERM; echo $$ > worker; while [ -e locks.db ]; do sleep 0.02; done";
    let script = format!(
        "sh -c \"{}\" & until [ -s worker ]; do sleep 0.01; done; exit 4",
        worker.replace('$', "\\$")
    );
    let mut running = sandbox.start(&["run", "--ttl", "2s", "--kill-after", "300ms", "a", "-c", &script]);
    sandbox.line("worker");
    // It is in the queue while the stubborn process is still there.
    witness(&sandbox);
    running.expect(4);
    assert!(!is_alive(&sandbox.line("worker")));
}

#[test]
fn a_signal_reaches_grandchildren() {
    let sandbox = Sandbox::new();
    let script = "sleep 600 & echo $! > worker; wait";
    let mut running = sandbox.start(&["run", "a", "-c", script]);
    let worker = sandbox.line("worker");
    running.send(Signal::TERM);
    witness(&sandbox);
    running.expect(128 + 15);
    assert!(!is_alive(&worker));
}

#[test]
fn a_stopped_straggler_is_continued_and_ended() {
    let sandbox = Sandbox::new();
    let script = "sleep 600 & echo $! > worker; kill -STOP $!; exit 0";
    sandbox.run(&["run", "--kill-after", "10s", "a", "-c", script]).expect(0);
    assert!(!is_alive(&sandbox.line("worker")));
}

#[test]
fn orphans_of_a_running_command_do_not_stay_zombies() {
    let sandbox = Sandbox::new();
    // The process in the middle ends at once; its child is an orphan in another session, and ends too.
    let script = "(setsid sh -c 'echo $$ > orphan; while [ -e locks.db ] && ! [ -e end ]; do sleep 0.02; done' &) ; \
                  while [ -e locks.db ] && ! [ -e go ]; do sleep 0.02; done";
    let mut running = sandbox.start(&["run", "a", "-c", script]);
    let orphan = sandbox.line("orphan");
    sandbox.write("end", "");
    until("the orphan is reaped", || !std::path::Path::new("/proc").join(&orphan).exists());
    assert!(!running.has_ended());
    sandbox.let_go();
    running.expect(0);
}

/// The parent of a straggler has left the group and does not wait for its child: the zombie stays, and does not count.
#[test]
fn a_zombie_that_is_never_reaped_holds_no_lock() {
    let sandbox = Sandbox::new();
    // Its output is discarded: otherwise the reader of the command's output would wait for it.
    let keeper = "exec >/dev/null 2>&1; sleep 600 & echo $! > worker; \
                  exec setsid sh -c 'echo $$ > keeper; while [ -e go-on ]; do sleep 0.05; done'";
    sandbox.write("keeper.sh", keeper);
    sandbox.write("go-on", "");
    let script = "sh keeper.sh & until [ -s keeper ]; do sleep 0.01; done; exit 0";
    sandbox.run(&["run", "--ttl", "60s", "--kill-after", "200ms", "a", "-c", script]).expect(0);
    assert!(is_alive(&sandbox.line("keeper")), "it has left the group, and continues");
    assert!(!is_alive(&sandbox.line("worker")));
    sandbox.assert_free("a");
    std::fs::remove_file(sandbox.path("go-on")).unwrap();
    let keeper = sandbox.line("keeper");
    until("the keeper ends", || !is_alive(&keeper));
}
