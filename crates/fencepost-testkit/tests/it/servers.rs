//! The servers for tests: they can be killed, paused and restarted, and none outlives its test process.

use std::fs::Permissions;
use std::io::{BufRead, BufReader};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};

use fencepost_testkit::servers::redis::{RedisServer, RedisServerConfig, shared};
use fencepost_testkit::servers::{etcd, postgres, zookeeper};
use fencepost_testkit::wait;
use rustix::process::{Pid, Signal, kill_process_group};

/// How the process that `no_server_outlives_its_process` starts is to end.
const VICTIM: &str = "FENCEPOST_TESTKIT_VICTIM";

#[test]
fn a_plain_server_replies() {
    let server = shared();
    assert_eq!(server.cli(&["PING"]), "PONG");
    assert_eq!(server.url(), format!("redis://127.0.0.1:{}", server.port()));
    assert!(server.cli(&["INFO", "server"]).contains(&format!("process_id:{}", server.pid())));
    assert!(server.try_cli(&["NONSENSE"]).unwrap_err().contains("unknown command"));
}

#[test]
fn a_killed_server_restarts_empty_on_the_same_port() {
    let server = RedisServer::start(&RedisServerConfig::plain());
    let (port, pid) = (server.port(), server.pid());
    server.cli(&["SET", "here", "1"]);
    server.kill();
    assert!(!Path::new(&format!("/proc/{pid}")).exists());
    assert!(server.try_cli(&["PING"]).is_err());
    server.restart();
    assert_eq!((server.port(), server.cli(&["DBSIZE"])), (port, "0".to_owned()));
}

#[test]
fn a_server_that_persists_keeps_its_data() {
    let setup = RedisServerConfig::plain().with_config("appendonly yes").with_config("appendfsync always");
    let server = RedisServer::start(&setup);
    server.cli(&["SET", "here", "1"]);
    server.restart();
    assert_eq!(server.cli(&["GET", "here"]), "1");
}

#[test]
fn a_paused_server_continues_where_it_was() {
    let server = RedisServer::start(&RedisServerConfig::plain());
    server.cli(&["SET", "here", "1"]);
    server.pause();
    wait::block_until("the process is stopped", || state(server.pid()) == Some('T'));
    server.resume();
    assert_eq!(server.cli(&["GET", "here"]), "1");
}

#[test]
fn an_invalid_configuration_is_a_failure_with_the_reason() {
    let impossible = RedisServerConfig::plain().with_config("maxmemory-policy wishful");
    let said = std::panic::catch_unwind(|| RedisServer::start(&impossible)).unwrap_err();
    let said = said.downcast_ref::<String>().unwrap();
    assert!(said.starts_with("redis-server cannot be started: ") && said.contains("wishful"), "{said}");
}

/// The part of the process that `no_server_outlives_its_process` starts: it is the same test.
fn run_child(end: &str) {
    let (paused, running) = (RedisServer::start(&RedisServerConfig::plain()), shared());
    paused.pause();
    let (etcd, zookeeper) = (etcd::shared(), zookeeper::shared());
    let postgres = postgres::shared();
    let child = postgres.psql("SELECT pid FROM pg_stat_activity WHERE backend_type = 'walwriter'");
    postgres.pause();
    let pids = [paused.pid(), running.pid(), etcd.pid(), zookeeper.pid(), postgres.pid()];
    println!("\nvictim {} {child}", pids.map(|pid| pid.to_string()).join(" "));
    if end == "exit" {
        std::process::exit(0);
    }
    wait::block_until("the killer comes", || false);
}

#[test]
fn no_server_outlives_its_process() {
    if let Ok(end) = std::env::var(VICTIM) {
        return run_child(&end);
    }
    for end in ["exit", "KILL", "INT"] {
        // PostgreSQL has an account of its own.
        let folder = tempfile::Builder::new().permissions(Permissions::from_mode(0o711)).tempdir().unwrap();
        let mut victim = Command::new(std::env::current_exe().unwrap());
        victim.args(["--exact", "servers::no_server_outlives_its_process", "--nocapture"]).process_group(0);
        victim.env(VICTIM, end).env("TMPDIR", folder.path()).stdout(Stdio::piped());
        let mut victim = victim.spawn().unwrap();
        let mut lines = BufReader::new(victim.stdout.take().unwrap()).lines().map(Result::unwrap);
        let said = lines.find(|line| line.starts_with("victim ")).expect("it says who its servers are");
        let pids: Vec<u32> = said.split(' ').skip(1).map(|pid| pid.parse().unwrap()).collect();
        assert_eq!(pids.len(), 6);
        match end {
            "KILL" => victim.kill().unwrap(),
            // As Ctrl-C does: to the whole process group.
            "INT" => kill_process_group(Pid::from_child(&victim), Signal::INT).unwrap(),
            _ => {}
        }
        victim.wait().unwrap();
        wait::block_until("no server is left", || pids.iter().all(|pid| state(*pid).is_none()));
        wait::block_until("no folder is left", || folder.path().read_dir().unwrap().next().is_none());
    }
}

/// The state letter of a process in Linux; a zombie counts as no process.
pub(crate) fn state(pid: u32) -> Option<char> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    stat.rsplit(") ").next()?.chars().next().filter(|state| *state != 'Z')
}
