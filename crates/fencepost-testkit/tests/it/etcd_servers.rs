//! The etcd servers for tests.

use std::path::Path;

use fencepost_testkit::servers::etcd::{EtcdServer, EtcdServerConfig, shared};
use fencepost_testkit::wait;

use crate::servers::state;

#[test]
fn a_plain_server_replies() {
    let server = shared();
    assert_eq!(server.ctl(&["put", "a plain server", "answers"]), "OK");
    assert_eq!(server.ctl(&["get", "a plain server", "--print-value-only"]), "answers");
    assert_eq!(server.url(), format!("etcd://127.0.0.1:{}", server.port()));
    assert!(server.try_ctl(&["nonsense"]).unwrap_err().contains("unknown command"));
}

/// The servers for tests are configured so that this is possible: by default a lease of one second lasts two.
#[test]
fn a_lease_can_be_one_second_long() {
    assert!(shared().ctl(&["lease", "grant", "1"]).contains("granted with TTL(1s)"));
}

#[test]
fn a_killed_server_restarts_with_its_data_on_the_same_port() {
    let server = EtcdServer::start(&EtcdServerConfig::plain());
    let (port, pid) = (server.port(), server.pid());
    server.ctl(&["put", "here", "1"]);
    server.kill();
    assert!(!Path::new(&format!("/proc/{pid}")).exists());
    assert!(server.try_ctl(&["get", "here", "--command-timeout=100ms"]).is_err());
    server.restart();
    assert_eq!((server.port(), server.ctl(&["get", "here"])), (port, "here\n1".to_owned()));
}

#[test]
fn a_paused_server_continues_where_it_was() {
    let server = EtcdServer::start(&EtcdServerConfig::plain());
    server.ctl(&["put", "here", "1"]);
    server.pause();
    wait::block_until("the process is stopped", || state(server.pid()) == Some('T'));
    server.resume();
    assert_eq!(server.ctl(&["get", "here"]), "here\n1");
}

#[test]
fn an_invalid_configuration_is_a_failure_with_the_reason() {
    let impossible = EtcdServerConfig::plain().with_option("--auto-compaction-mode=wishful");
    let said = std::panic::catch_unwind(|| EtcdServer::start(&impossible)).unwrap_err();
    let said = said.downcast_ref::<String>().unwrap();
    assert!(said.starts_with("etcd cannot be started: ") && said.contains("wishful"), "{said}");
}
