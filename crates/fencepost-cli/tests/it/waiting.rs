//! Waiting in the queue: what is reported, the order, and the cost of a process that dies.

use std::time::Duration;

use fencepost::clock::Clock;
use rustix::process::Signal;

use crate::sandbox::{Sandbox, is_alive, until};

/// The example of the README, with its two terminals.
#[test]
fn a_second_run_waits_and_reports_the_holder() {
    let sandbox = Sandbox::new();
    let ran = sandbox.run(&["run", "hello", "--", "echo", "I hold the lock"]).expect(0);
    assert_eq!(ran.stdout(), "I hold the lock\n");

    let mut first = sandbox.hold("hello", &["--owner-label", "web-3:4711:deploy"]);
    let mut second = sandbox.start(&["run", "hello", "--", "touch", "entered"]);
    until("it reports the holder", || second.said().ends_with('\n'));
    let said = second.said();
    assert!(said.starts_with("fencepost: waiting for \"hello\": held by web-3:4711:deploy for "), "{said}");
    assert!(said.contains("s, ttl ") && said.ends_with("s left, you are next\n"), "{said}");
    sandbox.run(&["run", "-n", "hello", "true"]).expect(75);
    assert!(!sandbox.path("entered").exists());

    sandbox.let_go();
    first.expect(0);
    second.expect(0);
    assert!(sandbox.path("entered").exists());
}

#[test]
fn the_waiters_ahead_are_counted() {
    let sandbox = Sandbox::new();
    let mut holder = sandbox.hold("a", &[]);
    let mut ahead: Vec<_> = (0..2)
        .map(|count| {
            let waiter = sandbox.start(&["run", "-q", "a", "true"]);
            sandbox.until_waiting("a", count + 1);
            waiter
        })
        .collect();
    let mut last = sandbox.start(&["run", "-v", "a", "true"]);
    last.until_said("2 ahead of you");
    sandbox.let_go();
    holder.expect(0);
    for waiter in &mut ahead {
        waiter.expect(0);
        assert_eq!(waiter.said(), "", "it was told to be quiet");
    }
    last.expect(0);
}

#[test]
fn a_new_holder_is_reported() {
    let sandbox = Sandbox::new();
    let mut first = sandbox.hold("a", &["--owner-label", "first"]);
    let script = "while [ -e locks.db ] && ! [ -e go2 ]; do sleep 0.02; done";
    let mut second = sandbox.start(&["run", "-q", "--owner-label", "second", "a", "-c", script]);
    sandbox.until_waiting("a", 1);
    let mut last = sandbox.start(&["run", "a", "true"]);
    last.until_said("held by first for ");
    sandbox.let_go();
    last.until_said("held by second for ");
    sandbox.write("go2", "");
    first.expect(0);
    second.expect(0);
    last.expect(0);
}

#[test]
fn first_come_first_served() {
    let sandbox = Sandbox::new();
    let mut holder = sandbox.hold("a", &[]);
    let mut waiters = Vec::new();
    for position in 0..5 {
        waiters.push(sandbox.start(&["run", "a", "-c", &format!("echo {position} >> order")]));
        sandbox.until_waiting("a", position + 1);
    }
    sandbox.let_go();
    holder.expect(0);
    for waiter in &mut waiters {
        waiter.expect(0);
    }
    assert_eq!(sandbox.read("order"), "0\n1\n2\n3\n4\n");
}

/// Scenario 38: a waiter that is ended by a signal costs no other waiter a ttl.
#[test]
fn a_waiter_ended_by_a_signal_leaves_the_queue_first() {
    let sandbox = Sandbox::new();
    let mut holder = sandbox.hold("a", &[]);
    for signal in [Signal::TERM, Signal::INT, Signal::HUP, Signal::QUIT, Signal::USR1, Signal::USR2] {
        let mut waiter = sandbox.start(&["run", "-q", "a", "--", "touch", "entered"]);
        sandbox.until_waiting("a", 1);
        waiter.send(signal);
        waiter.expect(128 + signal.as_raw());
        assert_eq!(sandbox.inspect("a").waiter_count, 0, "{signal:?}");
    }
    sandbox.let_go();
    holder.expect(0);
    assert!(!sandbox.path("entered").exists());
}

#[test]
fn a_killed_holder_is_succeeded_after_its_ttl() {
    let sandbox = Sandbox::new();
    let mut holder = sandbox.hold("a", &["--ttl", "1s"]);
    let mut waiter = sandbox.start(&["run", "-q", "--ttl", "1s", "a", "--", "touch", "entered"]);
    sandbox.until_waiting("a", 1);
    let clock = Clock::system();
    let killed = clock.now();
    holder.send(Signal::KILL);
    holder.wait();
    until("the waiter enters", || sandbox.path("entered").exists());
    let took = clock.now().since(killed);
    println!("entered {took:?} after the holder was killed");
    // The aim is ttl + 1 s.
    assert!(took < Duration::from_secs(20), "{took:?}");
    waiter.expect(0);
    let orphan = sandbox.line("held");
    sandbox.let_go();
    until("the orphan ends", || !is_alive(&orphan));
}

#[test]
fn a_killed_waiter_does_not_block_the_queue() {
    let sandbox = Sandbox::new();
    let mut holder = sandbox.hold("a", &[]);
    let mut dies = sandbox.start(&["run", "-q", "--ttl", "60s", "a", "true"]);
    sandbox.until_waiting("a", 1);
    let mut lives = sandbox.start(&["run", "-q", "--ttl", "60s", "a", "true"]);
    sandbox.until_waiting("a", 2);
    dies.send(Signal::KILL);
    dies.wait();
    let clock = Clock::system();
    let released = clock.now();
    sandbox.let_go();
    holder.expect(0);
    lives.expect(0);
    let took = clock.now().since(released);
    println!("entered {took:?} after the release, over a dead waiter");
    assert!(took < Duration::from_secs(30), "less than a ttl: {took:?}");
}

#[test]
fn a_clean_exit_hands_over() {
    let sandbox = Sandbox::new();
    let stamp = "date +%s%N";
    let mut holder = sandbox.start(&[
        "run",
        "a",
        "-c",
        &format!("echo x > held; while [ -e locks.db ] && ! [ -e go ]; do :; done; {stamp} > left"),
    ]);
    sandbox.line("held");
    let mut waiter = sandbox.start(&["run", "-q", "a", "-c", &format!("{stamp} > entered")]);
    sandbox.until_waiting("a", 1);
    sandbox.let_go();
    holder.expect(0);
    waiter.expect(0);
    let at = |name: &str| sandbox.line(name).parse::<u64>().unwrap();
    let took = Duration::from_nanos(at("entered") - at("left"));
    println!("handed over in {took:?}, processes included");
    assert!(took < Duration::from_secs(10), "{took:?}");
}
