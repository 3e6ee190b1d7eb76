//! A server that is away when a run starts, and one that goes away while a run waits.

use std::process::Command;
use std::time::Duration;

use fencepost::clock::Clock;
use fencepost_testkit::servers::free_port;
use fencepost_testkit::servers::redis::{RedisServer, RedisServerConfig};
use rustix::process::Signal;

use crate::sandbox::{Ran, Running, Sandbox, until};

/// An address without a server, for every backend with one.
fn urls_without_server() -> [String; 3] {
    ["redis", "etcd", "zk"].map(|scheme| format!("{scheme}://127.0.0.1:{}", free_port()))
}

fn fencepost(sandbox: &Sandbox, url: &str, args: &[&str]) -> Command {
    let mut command = sandbox.fencepost(args);
    command.env("FENCEPOST_URL", url);
    command
}

fn run(sandbox: &Sandbox, url: &str, args: &[&str]) -> Ran {
    Ran(fencepost(sandbox, url, args).output().unwrap())
}

/// Scenario 74: the server is unreachable when a run with `--wait` starts.
#[test]
fn a_server_that_starts_later_is_waited_for() {
    let sandbox = Sandbox::new();
    let server = RedisServer::start(&RedisServerConfig::plain());
    server.kill();
    let args = ["run", "-v", "--wait", "10m", "a", "--", "touch", "ran"];
    let mut waiter = Running::start(&mut fencepost(&sandbox, &server.url(), &args));
    waiter.until_said("fencepost: connecting to redis://127.0.0.1:");
    waiter.until_said(": Connection refused, retrying, 0s of 10m");
    assert!(!sandbox.path("ran").exists());
    server.restart();
    waiter.expect(0);
    assert!(sandbox.path("ran").exists());
}

#[test]
fn a_server_that_never_starts_is_an_error_when_the_wait_is_over() {
    let sandbox = Sandbox::new();
    for url in urls_without_server() {
        for options in
            [["--wait", "1.2s"].as_slice(), &["--wait", "1.2s", "--skip-ok"], &["-w", "1.2s", "-E", "9"]]
        {
            let args = [&["run"], options, &["a", "--", "touch", "ran"]].concat();
            let said = run(&sandbox, &url, &args).expect(125).stderr();
            assert!(said.contains("fencepost: connecting to "), "{url}: {said}");
            assert!(said.contains("fencepost: error: gave up connecting after "), "{url}: {said}");
        }
    }
    assert!(!sandbox.path("ran").exists());
}

/// The first attempt to connect has longer than this wait.
#[test]
fn the_time_really_waited_is_reported() {
    let sandbox = Sandbox::new();
    let server = RedisServer::start(&RedisServerConfig::plain());
    server.pause();
    let said =
        run(&sandbox, &server.url(), &["run", "--wait", "100ms", "a", "--", "true"]).expect(125).stderr();
    server.resume();
    assert!(said.contains("gave up connecting after "), "{said}");
    assert!(!said.contains("after 100ms"), "{said}");
}

/// Without `--wait`, and with `-n`, nothing is retried.
#[test]
fn a_run_that_was_not_told_to_wait_fails_at_once() {
    let sandbox = Sandbox::new();
    for url in urls_without_server() {
        for options in [[].as_slice(), &["-n"], &["--skip-ok"], &["--wait", "0"]] {
            let args = [&["run"], options, &["a", "--", "true"]].concat();
            let said = run(&sandbox, &url, &args).expect(125).stderr();
            assert!(!said.contains("connecting to redis") && !said.contains("gave up"), "{url}: {said}");
        }
    }
}

#[test]
fn an_error_that_waiting_cannot_mend_is_reported_at_once() {
    let sandbox = Sandbox::new();
    let server = RedisServer::start(&RedisServerConfig::plain().with_password("right"));
    let denied = format!("redis://:wrong@127.0.0.1:{}", server.port());
    let tls = format!("redis://127.0.0.1:{}?nonsense=1", server.port());
    for url in [&denied, &tls, "redsi://127.0.0.1", "postgres://127.0.0.1/db", "sqlite:/no/such/folder/x.db"]
    {
        let said = run(&sandbox, url, &["run", "--wait", "1h", "a", "--", "true"]).expect(125).stderr();
        assert!(!said.contains("retrying"), "{url}: {said}");
    }
}

#[test]
fn a_signal_ends_a_run_that_is_connecting() {
    let sandbox = Sandbox::new();
    let [url, ..] = urls_without_server();
    for signal in [Signal::TERM, Signal::INT, Signal::HUP] {
        let mut waiter =
            Running::start(&mut fencepost(&sandbox, &url, &["run", "-v", "-w", "1h", "a", "true"]));
        waiter.until_said("retrying");
        waiter.send(signal);
        waiter.expect(128 + signal.as_raw());
    }
}

/// A server, and a lock on it that another run holds.
struct Stage {
    sandbox: Sandbox,
    server: RedisServer,
    holder: Running,
}

impl Stage {
    fn new() -> Self {
        Self::with_ttl("60s")
    }

    fn with_ttl(ttl: &str) -> Self {
        let (sandbox, server) = (Sandbox::new(), RedisServer::start(&RedisServerConfig::plain()));
        sandbox.write("locks.db", "");
        let script = "echo $$ > held; while [ -e locks.db ] && ! [ -e go ]; do sleep 0.02; done";
        let args = ["run", "--ttl", ttl, "a", "-c", script];
        let holder = Running::start(&mut fencepost(&sandbox, &server.url(), &args));
        sandbox.line("held");
        Self { sandbox, server, holder }
    }

    fn start(&self, args: &[&str]) -> Running {
        Running::start(&mut fencepost(&self.sandbox, &self.server.url(), args))
    }

    fn let_go(&mut self) {
        self.sandbox.let_go();
        self.holder.expect(0);
    }
}

#[test]
fn what_connecting_has_left_of_the_wait_is_spent_in_the_queue() {
    let mut stage = Stage::new();
    stage.server.pause();
    let mut waiter = stage.start(&["run", "-v", "--wait", "3s", "a", "--", "true"]);
    waiter.until_said("no reply yet, 0s of 3s");
    stage.server.resume();
    waiter.expect(75);
    stage.let_go();
}

/// A waiter whose server goes away cannot know whether the lock is held.
#[test]
fn a_wait_that_ends_while_the_server_is_stopped_is_an_error() {
    let mut stage = Stage::new();
    let mut waiter = stage.start(&["run", "-v", "--skip-ok", "--wait", "4s", "a", "--", "true"]);
    waiter.until_said("you are next");
    stage.server.pause();
    waiter.expect(125);
    stage.server.resume();
    let said = waiter.said();
    assert!(said.contains("gave up waiting for lock \"a\" after "), "{said}");
    stage.let_go();
}

#[test]
fn a_wait_that_ends_after_the_server_was_killed_is_an_error() {
    let mut stage = Stage::new();
    let mut waiter = stage.start(&["run", "-v", "--skip-ok", "--wait", "4s", "a", "--", "true"]);
    waiter.until_said("you are next");
    stage.server.kill();
    waiter.expect(125);
    let said = waiter.said();
    assert!(said.contains("fencepost: error: gave up waiting for lock \"a\" after "), "{said}");
    // The server has lost the lock of the holder, too.
    stage.holder.send(Signal::KILL);
    stage.holder.wait();
}

#[test]
fn a_waiter_outlasts_an_outage() {
    let mut stage = Stage::new();
    let mut waiter = stage.start(&["run", "--wait", "10m", "a", "--", "touch", "ran"]);
    waiter.until_said("you are next");
    stage.server.pause();
    waiter.until_said("warning: waiting for \"a\": no reply from redis://127.0.0.1:");
    stage.server.resume();
    assert!(!stage.sandbox.path("ran").exists());
    stage.let_go();
    waiter.expect(0);
    assert!(stage.sandbox.path("ran").exists());
}

/// The server replies again only after the wait has ended. By then the lease of the holder has expired, and the lock may
/// be granted to the ticket of the waiter itself: no other client holds it.
#[test]
fn a_server_that_replies_again_after_the_wait_is_an_error() {
    let mut stage = Stage::with_ttl("2s");
    let mut waiter = stage.start(&["run", "-v", "--skip-ok", "--wait", "3s", "a", "--", "touch", "ran"]);
    waiter.until_said("you are next");
    stage.server.pause();
    // The wait began before the pause, so it is over then.
    let clock = Clock::system();
    let end = clock.now() + Duration::from_secs(3);
    until("the wait is over", || clock.now() > end);
    stage.server.resume();
    waiter.expect(125);
    let said = waiter.said();
    assert!(said.contains("fencepost: error: gave up waiting for lock \"a\" after "), "{said}");
    assert!(!stage.sandbox.path("ran").exists());
    stage.holder.send(Signal::KILL);
    stage.holder.wait();
}
