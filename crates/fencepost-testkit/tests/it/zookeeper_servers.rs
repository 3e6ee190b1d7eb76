//! The ZooKeeper servers for tests.

use std::path::Path;

use fencepost_testkit::servers::zookeeper::{ZooKeeperServer, ZooKeeperServerConfig, shared};
use fencepost_testkit::wait;

use crate::servers::state;

#[test]
fn a_plain_server_replies() {
    let server = shared();
    assert_eq!(server.four_letter("ruok"), "imok");
    assert!(server.four_letter("srvr").contains("Mode: standalone"));
    assert_eq!(server.url(), format!("zk://127.0.0.1:{}", server.port()));
    let config = server.four_letter("conf");
    for line in ["tickTime=100", "minSessionTimeout=200", "maxSessionTimeout=3600000"] {
        assert!(config.contains(line), "{line} is not in {config}");
    }
}

#[test]
fn a_killed_server_restarts_with_its_data_on_the_same_port() {
    let server = ZooKeeperServer::start(&ZooKeeperServerConfig::plain());
    let (port, pid) = (server.port(), server.pid());
    server.cli(&["create", "/here", "1"]);
    server.kill();
    assert!(!Path::new(&format!("/proc/{pid}")).exists());
    assert!(server.try_four_letter("ruok").is_err());
    server.restart();
    assert_eq!((server.port(), server.cli(&["get", "/here"])), (port, "1".to_owned()));
}

#[test]
fn a_paused_server_continues() {
    let server = ZooKeeperServer::start(&ZooKeeperServerConfig::plain());
    server.pause();
    wait::block_until("the process is stopped", || state(server.pid()) == Some('T'));
    server.resume();
    assert_eq!(server.four_letter("ruok"), "imok");
}

#[test]
fn an_invalid_configuration_is_a_failure_with_the_reason() {
    let impossible = ZooKeeperServerConfig::plain().with_config("tickTime=wishful");
    let said = std::panic::catch_unwind(|| ZooKeeperServer::start(&impossible)).unwrap_err();
    let said = said.downcast_ref::<String>().unwrap();
    assert!(said.starts_with("ZooKeeper cannot be started: ") && said.contains("wishful"), "{said}");
}
