//! The lock is lost while the command runs.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::time::Duration;

use futures_executor::block_on;
use rusqlite::Connection;
use rustix::process::Signal;

use crate::sandbox::{Sandbox, can_act, has, is_alive, until};
use crate::warden::stop;

pub(crate) fn break_it(sandbox: &Sandbox, name: &str) {
    let client = sandbox.client();
    let token = block_on(client.inspect(name)).unwrap().holders[0].token.unwrap();
    block_on(client.break_lock(name, token)).unwrap();
    block_on(client.close());
}

/// `etcdctl lock` does not do this: it lets the first command continue, and exits with 0.
#[test]
fn a_broken_lock_stops_the_command_even_if_it_then_exits_with_0() {
    let sandbox = Sandbox::new();
    let script =
        "trap 'echo x > told; exit 0' TERM; echo $$ > ready; while [ -e locks.db ]; do sleep 0.02; done";
    let mut running = sandbox.start(&["run", "--ttl", "6s", "--kill-after", "2s", "a", "-c", script]);
    let command = sandbox.line("ready");
    break_it(&sandbox, "a");
    running.expect(76);
    assert_eq!(sandbox.line("told"), "x");
    assert!(!is_alive(&command));
    running.until_said("fencepost: error: lock \"a\" was lost: ");
}

/// Changes the database without a notification: the holder learns of it only by its next renewal.
fn change_silently(sandbox: &Sandbox, statement: &str) {
    let database = Connection::open(sandbox.path("locks.db")).unwrap();
    database.busy_timeout(Duration::from_secs(30)).unwrap();
    assert_eq!(database.execute(statement, []).unwrap(), 1);
}

#[test]
fn a_row_that_is_deleted_stops_the_command_at_the_next_renewal() {
    let sandbox = Sandbox::new();
    let mut holder = sandbox.hold("a", &["--ttl", "3s"]);
    let command = sandbox.line("held");
    change_silently(&sandbox, "DELETE FROM holders");
    holder.expect(76);
    assert!(!is_alive(&command));
    assert!(holder.said().contains("lock \"a\" was lost: "), "{}", holder.said());
    sandbox.assert_free("a");
}

#[test]
fn a_row_that_is_stolen_stops_the_command_and_stays_with_the_thief() {
    let sandbox = Sandbox::new();
    let mut holder = sandbox.hold("a", &["--ttl", "3s"]);
    let command = sandbox.line("held");
    let steal =
        "UPDATE holders SET owner = randomblob(16), token = token + 1, until_ns = until_ns + 60000000000";
    change_silently(&sandbox, steal);
    holder.expect(76);
    assert!(!is_alive(&command));
    assert_eq!(sandbox.inspect("a").holders.len(), 1, "it is not ours to release");
}

#[test]
fn a_command_that_ignores_term_is_killed_when_the_lock_is_lost() {
    let sandbox = Sandbox::new();
    let script = "trap '' TERM; sleep 600 & echo $! > worker; echo $$ > ready; while [ -e locks.db ]; do sleep 0.02; done";
    let mut running = sandbox.start(&["run", "--ttl", "2s", "--kill-after", "200ms", "a", "-c", script]);
    let command = sandbox.line("ready");
    break_it(&sandbox, "a");
    running.expect(76);
    assert!(!is_alive(&command) && !is_alive(&sandbox.line("worker")));
}

#[test]
fn a_lock_that_was_lost_just_before_the_end_is_found_by_the_release() {
    let sandbox = Sandbox::new();
    // With such a ttl no renewal is due.
    let mut holder = sandbox.hold("a", &["--ttl", "10m"]);
    stop(&sandbox, &holder);
    break_it(&sandbox, "a");
    sandbox.let_go();
    let command = sandbox.line("held");
    until("the command ends", || !is_alive(&command));
    holder.send(Signal::CONT);
    holder.expect(76);
}

#[test]
fn a_fencepost_that_is_stopped_as_soon_as_its_command_runs_does_not_let_it_outlive_the_lease() {
    let sandbox = Sandbox::new();
    let mut all = Vec::new();
    for name in ["a", "b", "c", "d", "e", "f", "g", "h"] {
        let script = format!("kill -STOP $PPID; echo $$ > {name}; exec sleep 600");
        all.push((name, sandbox.start(&["run", "--ttl", "1s", name, "-c", &script])));
    }
    for (name, mut running) in all {
        let command = sandbox.line(name);
        until("the warden has killed it", || !is_alive(&command));
        running.send(Signal::CONT);
        running.expect(76);
    }
}

/// The turnstile of the database, held by this process: every writer waits in the kernel.
struct Hung(#[allow(dead_code, reason = "held, not read")] File);

impl Hung {
    fn new(sandbox: &Sandbox) -> Self {
        let file = turnstile(sandbox);
        file.lock().unwrap();
        Self(file)
    }
}

fn turnstile(sandbox: &Sandbox) -> File {
    let turn = find(&sandbox.path(""), "turn").expect("the database has a turnstile");
    File::options().write(true).open(turn).unwrap()
}

/// Returns whether the turnstile of the database is free: a writer holds it only for a moment.
pub(crate) fn turnstile_is_free(sandbox: &Sandbox) -> bool {
    let turn = turnstile(sandbox);
    (0..40).any(|_| {
        let free = turn.try_lock().is_ok();
        if !free {
            std::thread::park_timeout(Duration::from_millis(5));
        }
        free
    })
}

fn find(folder: &Path, name: &str) -> Option<PathBuf> {
    let entries = std::fs::read_dir(folder).ok()?.filter_map(Result::ok).map(|entry| entry.path());
    let mut entries: Vec<PathBuf> = entries.collect();
    entries.sort();
    entries.into_iter().find_map(|path| {
        if path.file_name().is_some_and(|found| found == name) {
            return Some(path);
        }
        if path.is_dir() { find(&path, name) } else { None }
    })
}

#[test]
fn a_backend_that_hangs_stops_the_command_before_the_lease_ends() {
    let sandbox = Sandbox::new();
    let mut running = sandbox.start(&[
        "run",
        "--ttl",
        "3s",
        "--kill-after",
        "1s",
        "a",
        "-c",
        "echo $$ > ready; exec sleep 600",
    ]);
    let command = sandbox.line("ready");
    let client = sandbox.client();
    let _hung = Hung::new(&sandbox);
    until("the lease has ended", || {
        let holders = block_on(client.inspect("a")).unwrap().holders;
        let over = holders.iter().all(|holder| holder.expires_in == Some(Duration::ZERO));
        assert!(!(over && can_act(&command)), "it outlived the lease");
        over
    });
    running.expect(76);
    assert!(running.said().contains("could not be renewed and its lease ends in "), "{}", running.said());
}

#[test]
fn a_command_that_ignores_term_is_killed_when_the_backend_hangs() {
    let sandbox = Sandbox::new();
    let script = "trap 'echo x > told' TERM; echo $$ > ready; while [ -e locks.db ]; do sleep 0.01; done";
    let mut running = sandbox.start(&["run", "--ttl", "3s", "--kill-after", "1s", "a", "-c", script]);
    let command = sandbox.line("ready");
    let _hung = Hung::new(&sandbox);
    running.expect(76);
    assert!(!is_alive(&command));
    assert_eq!(sandbox.line("told"), "x", "it got TERM first");
    assert!(running.said().contains("its lease expired"), "{}", running.said());
}

#[test]
fn a_backend_that_hangs_for_a_moment_goes_unnoticed() {
    let sandbox = Sandbox::new();
    let mut holder = sandbox.hold("a", &["--ttl", "6s"]);
    let client = sandbox.client();
    let left = || block_on(client.inspect("a")).unwrap().holders[0].expires_in.unwrap();
    let hung = Hung::new(&sandbox);
    until("a renewal is overdue", || left().as_millis() < 3_800);
    drop(hung);
    until("it is renewed", || left().as_millis() > 5_000);
    assert!(!holder.has_ended());
    sandbox.let_go();
    holder.expect(0);
    assert_eq!(holder.said(), "");
}

#[test]
fn a_waiter_is_ended_by_a_signal_while_the_backend_hangs() {
    let sandbox = Sandbox::new();
    sandbox.run(&["run", "a", "true"]).expect(0);
    let _hung = Hung::new(&sandbox);
    let mut waiter = sandbox.start(&["run", "a", "true"]);
    until("it handles signals", || has(&waiter.id().to_string(), "SigCgt", Signal::TERM));
    waiter.send(Signal::TERM);
    waiter.expect(128 + 15);
}

/// Scenario 59: without its log and its index the database is a new one for every other process.
#[test]
fn a_database_whose_log_and_index_are_removed_stops_the_command() {
    let sandbox = Sandbox::new();
    let mut holder = sandbox.hold("a", &["--ttl", "6s"]);
    let command = sandbox.line("held");
    for name in ["locks.db-wal", "locks.db-shm"] {
        std::fs::remove_file(sandbox.path(name)).unwrap();
    }
    let mut newcomer = sandbox.start(&["run", "--wait", "60s", "a", "-c", "echo $$ > entered"]);
    newcomer.expect(0);
    assert!(!sandbox.line("entered").is_empty());
    holder.expect(76);
    assert!(!is_alive(&command));
    assert!(holder.said().contains("lock \"a\" was lost: "), "{}", holder.said());
}
