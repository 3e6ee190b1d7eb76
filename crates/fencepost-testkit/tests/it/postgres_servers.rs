//! The PostgreSQL servers for tests.

use std::path::Path;

use fencepost_testkit::servers::postgres::{PostgresServer, PostgresServerConfig, shared};
use fencepost_testkit::wait;

use crate::servers::state;

#[test]
fn a_plain_server_replies() {
    let server = shared();
    assert_eq!(server.psql("SELECT 1, 'one'; SELECT 2"), "1|one\n2");
    assert_eq!(server.url("app"), format!("postgres://postgres@127.0.0.1:{}/app", server.port()));
    assert!(server.try_psql("postgres", "NONSENSE").unwrap_err().contains("syntax error"));
    assert!(server.try_psql("nowhere", "SELECT 1").unwrap_err().contains("\"nowhere\" does not exist"));
    server.create_database("a plain \"server\"");
    assert_eq!(server.psql_in("a plain \"server\"", "SELECT current_database()"), "a plain \"server\"");
}

#[test]
fn a_killed_server_restarts_with_its_data_on_the_same_port() {
    let server = PostgresServer::start(&PostgresServerConfig::plain());
    let (port, pid) = (server.port(), server.pid());
    let backends = server.psql("SELECT pid FROM pg_stat_activity WHERE pid <> pg_backend_pid()");
    server.psql("CREATE TABLE here AS SELECT 1");
    server.kill();
    assert!(!Path::new(&format!("/proc/{pid}")).exists());
    assert!(backends.lines().all(|pid| state(pid.parse().unwrap()).is_none()), "{backends}");
    assert!(server.try_psql("postgres", "SELECT 1").is_err());
    server.restart();
    assert_eq!((server.port(), server.psql("TABLE here")), (port, "1".to_owned()));
    assert!(server.log().contains("not properly shut down"), "{}", server.log());
}

#[test]
fn a_stopped_server_needs_no_recovery() {
    let server = PostgresServer::start(&PostgresServerConfig::plain());
    server.psql("CREATE TABLE here AS SELECT 1");
    server.stop();
    server.restart();
    assert_eq!(server.psql("TABLE here"), "1");
    assert!(!server.log().contains("not properly shut down"), "{}", server.log());
}

#[test]
fn a_paused_server_continues_where_it_was() {
    let server = PostgresServer::start(&PostgresServerConfig::plain());
    server.psql("CREATE TABLE here AS SELECT 1");
    let background = server.psql("SELECT pid FROM pg_stat_activity WHERE backend_type = 'walwriter'");
    server.pause();
    assert_eq!((state(server.pid()), state(background.parse().unwrap())), (Some('T'), Some('T')));
    server.resume();
    assert_eq!(server.psql("TABLE here"), "1");
}

#[test]
fn a_setting_is_changed_while_the_server_runs() {
    let server = PostgresServer::start(&PostgresServerConfig::plain().with_setting("lock_timeout", "1s"));
    assert_eq!(server.psql("SHOW lock_timeout"), "1s");
    server.change_setting("lock_timeout", "2s");
    assert_eq!(server.psql("SHOW lock_timeout"), "2s");
    server.restart();
    assert_eq!(server.psql("SHOW lock_timeout"), "2s");
}

#[test]
fn an_invalid_configuration_is_a_failure_with_the_reason() {
    let impossible = PostgresServerConfig::plain().with_setting("wal_level", "wishful");
    let said = std::panic::catch_unwind(|| PostgresServer::start(&impossible)).unwrap_err();
    let said = said.downcast_ref::<String>().unwrap();
    assert!(said.starts_with("postgres cannot be started: ") && said.contains("wishful"), "{said}");
}

#[test]
fn a_dropped_server_leaves_no_shared_memory() {
    let server = PostgresServer::start(&PostgresServerConfig::plain());
    let segments = || std::fs::read_to_string("/proc/sysvipc/shm").unwrap();
    let mine = |segments: &str, pid: u32| {
        segments.lines().any(|line| line.split_whitespace().nth(4) == Some(&pid.to_string()))
    };
    let pid = server.pid();
    assert!(mine(&segments(), pid));
    server.kill();
    drop(server);
    wait::block_until("the segment is removed", || !mine(&segments(), pid));
}
