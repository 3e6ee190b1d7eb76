//! Nested runs.

use fencepost_testkit::servers::redis::{RedisServer, RedisServerConfig};
use rustix::process::Signal;

use crate::sandbox::{Ran, Running, Sandbox};

const FENCEPOST: &str = env!("CARGO_BIN_EXE_fencepost");

#[test]
fn a_run_within_a_run_of_the_same_name_fails_at_once() {
    let sandbox = Sandbox::new();
    for options in ["", "-n", "--skip-ok", "-w 60s"] {
        let script = format!("{FENCEPOST} run {options} a -- touch entered; exit $?");
        let ran = sandbox.run(&["run", "a", "-c", &script]).expect(125);
        assert!(ran.stderr().contains("this one runs under"), "{}", ran.stderr());
        assert!(ran.stderr().contains("\nhint: it could only wait for itself"), "{}", ran.stderr());
    }
    assert!(!sandbox.path("entered").exists());
    sandbox.assert_free("a");
}

#[test]
fn a_run_within_a_run_of_another_name_works() {
    let sandbox = Sandbox::new();
    let script = format!("{FENCEPOST} run b -- sh -c 'echo inner $FENCEPOST_LOCK_NAME; exit 4'");
    let ran = sandbox.run(&["run", "a", "-c", &script]).expect(4);
    assert_eq!(ran.stdout(), "inner b\n");
}

#[test]
fn a_cycle_is_found() {
    let sandbox = Sandbox::new();
    let script = format!("{FENCEPOST} run b -- {FENCEPOST} run a -- touch entered");
    let ran = sandbox.run(&["run", "a", "-c", &script]).expect(125);
    assert!(ran.stderr().contains("lock \"a\" is held by a `fencepost run` that this one runs under"));
    assert!(!sandbox.path("entered").exists());
}

#[test]
fn readers_may_be_nested() {
    let sandbox = Sandbox::new();
    let script = format!("{FENCEPOST} run -s a -- echo inner");
    assert_eq!(sandbox.run(&["run", "-s", "a", "-c", &script]).expect(0).stdout(), "inner\n");
}

#[test]
fn the_same_name_on_another_backend_is_another_lock() {
    let sandbox = Sandbox::new();
    let other = format!("sqlite:{}", sandbox.path("other.db").display());
    let script = format!("{FENCEPOST} run --url {other} a -- echo inner");
    assert_eq!(sandbox.run(&["run", "a", "-c", &script]).expect(0).stdout(), "inner\n");
}

/// A lock that is no longer held above does not count: the run waits like any other.
#[test]
fn an_environment_that_is_out_of_date_does_no_harm() {
    let sandbox = Sandbox::new();
    let old = sandbox.run(&["run", "a", "-c", "echo \"$FENCEPOST_HELD\""]).expect(0).stdout();
    let mut holder = sandbox.hold("a", &[]);
    let busy =
        sandbox.fencepost(["run", "-n", "a", "true"]).env("FENCEPOST_HELD", old.trim()).output().unwrap();
    assert_eq!(busy.status.code(), Some(75));
    for nonsense in ["", "x", "[{}]", "{\"a\":1}"] {
        let busy =
            sandbox.fencepost(["run", "-n", "a", "true"]).env("FENCEPOST_HELD", nonsense).output().unwrap();
        assert_eq!(busy.status.code(), Some(75), "{nonsense:?}");
    }
    sandbox.let_go();
    holder.expect(0);
}

/// The first attempt of a nested run is covered by `--wait` and by signals, too.
#[test]
fn a_server_that_does_not_grant_is_waited_for_as_long_as_asked() {
    let (sandbox, server) = (Sandbox::new(), RedisServer::start(&RedisServerConfig::plain()));
    let fencepost = |args: &[&str]| {
        let mut command = sandbox.fencepost(args);
        command.env("FENCEPOST_URL", server.url());
        command
    };
    let outer = fencepost(&["run", "a", "-c", "echo \"$FENCEPOST_HELD\""]).output().unwrap();
    let above = Ran(outer).expect(0).stdout();
    // Connecting only reads.
    server.cli(&["CLIENT", "PAUSE", "3600000", "WRITE"]);
    let nested = |wait| {
        let mut command = fencepost(&["run", "-v", "--ttl", "1s", "-w", wait, "a", "--", "touch", "ran"]);
        Running::start(command.env("FENCEPOST_HELD", above.trim()))
    };
    let mut given_up = nested("2s");
    given_up.expect(125);
    let said = given_up.said();
    assert!(said.contains("fencepost: error: gave up waiting for lock \"a\" after "), "{said}");
    let mut signalled = nested("1h");
    signalled.until_said("scope: ");
    signalled.send(Signal::TERM);
    signalled.expect(128 + 15);
    assert!(!sandbox.path("ran").exists());
}
