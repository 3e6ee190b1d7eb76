//! A server that is stopped while the command runs: for less than the documented bound, and for longer.

use std::time::Duration;

use fencepost::clock::{Clock, wall_time};
use fencepost_testkit::servers::redis::{RedisServer, RedisServerConfig};

use crate::sandbox::{Running, Sandbox, can_act, is_alive, until};

/// A server that can be stopped, and a command that holds a lock there.
struct Stage {
    sandbox: Sandbox,
    server: RedisServer,
}

impl Stage {
    fn new() -> Self {
        let stage = Self { sandbox: Sandbox::new(), server: RedisServer::start(&RedisServerConfig::plain()) };
        stage.sandbox.write("locks.db", "");
        stage
    }

    fn hold(&self, options: &[&str]) -> Running {
        let script = "echo $$ > held; while [ -e locks.db ] && ! [ -e go ]; do sleep 0.02; done";
        let words = [&["run"], options, &["a", "--", "sh", "-c", script]].concat();
        let running = Running::start(self.sandbox.fencepost(&words).env("FENCEPOST_URL", self.server.url()));
        self.sandbox.line("held");
        running
    }

    /// Returns when the lease expires on the server, in milliseconds since 1970.
    fn lease_ends(&self) -> u128 {
        let keys = self.server.cli(&["KEYS", "*l:a"]);
        self.server.cli(&["PEXPIRETIME", keys.trim()]).trim().parse().unwrap()
    }

    /// Stops the server right after a renewal, so that the next one is due a third of the ttl later. Returns when the
    /// lease ends.
    fn pause_after_a_renewal(&self) -> u128 {
        let known = self.lease_ends();
        until("the lease is renewed", || self.lease_ends() > known);
        let ends = self.lease_ends();
        self.server.pause();
        ends
    }
}

/// Scenario 75. The bound is 5.6 s here.
#[test]
fn an_outage_below_the_bound_is_not_noticed() {
    let stage = Stage::new();
    let mut holder = stage.hold(&["--ttl", "12s", "--kill-after", "1s", "-v"]);
    holder.until_said("outages of the backend below 5.6s go unnoticed");
    stage.pause_after_a_renewal();
    let clock = Clock::system();
    // The next renewal is due after 4 s, and hangs for 2 s.
    let end = clock.now() + Duration::from_secs(6);
    until("a renewal has hung for a while", || clock.now() > end);
    stage.server.resume();
    let known = stage.lease_ends();
    until("the lease is renewed again", || stage.lease_ends() > known);
    assert!(is_alive(&stage.sandbox.line("held")), "{}", holder.said());
    stage.sandbox.let_go();
    holder.expect(0);
}

/// Scenario 75, the other side: the command is dead before the lease ends.
#[test]
fn an_outage_above_the_bound_ends_the_command_before_the_lease() {
    let stage = Stage::new();
    let mut holder = stage.hold(&["--ttl", "4s"]);
    let command = stage.sandbox.line("held");
    let lease_ends = stage.pause_after_a_renewal();
    until("the command is ended", || !can_act(&command));
    assert!(wall_time().as_millis() < lease_ends, "the command outlived its lease");
    stage.server.resume();
    holder.expect(76);
}
