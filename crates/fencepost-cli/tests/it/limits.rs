//! How long a command may run, how long the lock is held at least, and what happens when it is lost.

use futures_executor::block_on;
use rustix::process::Signal;

use crate::losing::break_it;
use crate::sandbox::{Sandbox, is_alive, until};

#[test]
fn a_command_that_runs_too_long_is_ended_with_124() {
    let sandbox = Sandbox::new();
    let script =
        "trap 'echo x > told; exit 0' TERM; echo $$ > ready; while [ -e locks.db ]; do sleep 0.02; done";
    let mut running = sandbox.start(&["run", "--max-run", "300ms", "a", "-c", script]);
    let command = sandbox.line("ready");
    running.expect(124);
    assert_eq!(sandbox.line("told"), "x");
    assert!(!is_alive(&command));
    assert!(running.said().contains("--max-run"), "{}", running.said());
    sandbox.assert_free("a");
}

#[test]
fn a_command_that_runs_too_long_and_ignores_term_is_killed() {
    let sandbox = Sandbox::new();
    let script = "trap '' TERM; echo $$ > ready; while [ -e locks.db ]; do sleep 0.02; done";
    let args = ["run", "--max-run", "300ms", "--kill-after", "200ms", "a", "-c", script];
    let mut running = sandbox.start(&args);
    let command = sandbox.line("ready");
    running.expect(124);
    assert!(!is_alive(&command));
    sandbox.assert_free("a");
}

#[test]
fn a_command_that_ends_in_time_is_not_affected() {
    let sandbox = Sandbox::new();
    sandbox.run(&["run", "--max-run", "1h", "a", "-c", "exit 7"]).expect(7);
    let ran = sandbox.run(&["run", "--max-run", "0", "a", "true"]).expect(125);
    assert!(ran.stderr().contains("more than zero"), "{}", ran.stderr());
}

#[test]
fn the_lock_is_held_for_at_least_the_requested_time() {
    let sandbox = Sandbox::new();
    let mut running = sandbox.start(&["run", "--at-least", "1h", "a", "-c", "echo $$ > ready; exit 6"]);
    let command = sandbox.line("ready");
    until("the command has ended", || !is_alive(&command));
    sandbox.run(&["run", "-n", "a", "true"]).expect(75);
    assert!(!running.has_ended());
    // The first request could have been meant for the command; the second ends the hold.
    running.send(Signal::TERM);
    sandbox.run(&["run", "-n", "a", "true"]).expect(75);
    // The same signal again within a moment would count as a duplicate.
    running.send(Signal::INT);
    running.expect(6);
    sandbox.assert_free("a");
}

/// One request for the command, and one for the lock.
#[test]
fn a_request_that_ended_the_command_counts_for_the_lock() {
    let sandbox = Sandbox::new();
    let script = "trap 'exit 6' TERM; echo x > ready; while [ -e locks.db ]; do sleep 0.02; done";
    let mut running = sandbox.start(&["run", "-v", "--at-least", "1h", "a", "-c", script]);
    sandbox.line("ready");
    running.send(Signal::TERM);
    running.until_said("as --at-least says");
    running.send(Signal::INT);
    running.expect(6);
    sandbox.assert_free("a");
}

#[test]
fn a_minimum_that_is_over_already_changes_nothing() {
    let sandbox = Sandbox::new();
    sandbox.run(&["run", "--at-least", "1ms", "a", "-c", "sleep 0.02; exit 6"]).expect(6);
    sandbox.assert_free("a");
}

/// The command held its lock the whole time.
#[test]
fn a_lock_that_is_lost_after_the_command_has_ended_is_a_warning() {
    let sandbox = Sandbox::new();
    let mut running = sandbox.start(&["run", "-v", "--ttl", "1s", "--at-least", "1h", "a", "-c", "exit 6"]);
    running.until_said("as --at-least says");
    break_it(&sandbox, "a");
    running.expect(6);
    assert!(running.said().contains("was lost after the command had ended"), "{}", running.said());
}

#[test]
fn a_loss_that_is_ignored_does_not_stop_the_command() {
    let sandbox = Sandbox::new();
    let mut holder = sandbox.hold("a", &["--ttl", "1s", "--on-lost", "ignore"]);
    break_it(&sandbox, "a");
    holder.until_said("the command continues without it");
    sandbox.run(&["run", "-n", "a", "true"]).expect(0);
    assert!(!holder.has_ended());
    sandbox.let_go();
    holder.expect(0);
}

/// Without TERM, and without a kill-after.
#[test]
fn with_on_lost_kill_a_command_is_killed_at_once() {
    let sandbox = Sandbox::new();
    let script = "trap 'echo x > told' TERM; echo $$ > ready; while [ -e locks.db ]; do sleep 0.02; done";
    let mut running = sandbox.start(&["run", "--ttl", "1s", "--on-lost", "kill", "a", "-c", script]);
    sandbox.line("ready");
    break_it(&sandbox, "a");
    running.expect(76);
    assert_eq!(sandbox.read("told"), "");
}

/// The lock of another holder is not released when the command ends.
#[test]
fn a_lock_that_was_stolen_stays_with_the_thief() {
    let sandbox = Sandbox::new();
    let mut holder = sandbox.hold("a", &["--ttl", "1s", "--on-lost", "ignore"]);
    break_it(&sandbox, "a");
    let client = sandbox.client();
    let thief = block_on(client.lock("a").acquire()).unwrap();
    sandbox.let_go();
    holder.expect(0);
    assert_eq!(sandbox.inspect("a").holders[0].token, Some(thief.token()));
    thief.check().unwrap();
    block_on(thief.release()).unwrap();
}
