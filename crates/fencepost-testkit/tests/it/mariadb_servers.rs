//! The MariaDB servers for tests.

use std::path::Path;

use fencepost_testkit::servers::mariadb::{MariadbServer, MariadbServerConfig, TlsClients, shared};
use fencepost_testkit::wait;

use crate::servers::state;

#[test]
fn a_plain_server_replies() {
    let server = shared();
    assert_eq!(server.sql("SELECT 1, 'a'; SELECT @@log_bin"), "1\ta\n0");
    assert_eq!(server.url(), format!("mysql://root@127.0.0.1:{}/app", server.port()));
    assert!(server.try_sql("nonsense").unwrap_err().contains("You have an error in your SQL syntax"));
}

#[test]
fn a_killed_or_stopped_server_restarts_with_its_data_on_the_same_port() {
    let server = MariadbServer::start(&MariadbServerConfig::plain());
    let (port, pid) = (server.port(), server.pid());
    server.sql("CREATE TABLE t (n INT) ENGINE=InnoDB; INSERT INTO t VALUES (1)");
    server.kill();
    assert!(!Path::new(&format!("/proc/{pid}")).exists());
    assert!(server.try_sql("SELECT n FROM t").is_err());
    server.restart();
    assert_eq!((server.port(), server.sql("SELECT n FROM t")), (port, "1".to_owned()));
    server.stop();
    server.restart();
    assert_eq!(server.sql("SELECT n FROM t"), "1");
}

#[test]
fn a_paused_server_continues_where_it_was() {
    let server = MariadbServer::start(&MariadbServerConfig::plain());
    server.pause();
    wait::block_until("the process is stopped", || state(server.pid()) == Some('T'));
    server.resume();
    assert_eq!(server.sql("SELECT 1"), "1");
}

#[test]
fn users_have_passwords_and_no_rights() {
    let config = MariadbServerConfig::plain().with_password("r'oot").with_user("ann", "hunter2");
    let server = MariadbServer::start(&config.with_tls(TlsClients::All));
    assert_eq!(server.sql("SELECT SUBSTRING_INDEX(USER(), '@', 1)"), "root");
    server.sql("GRANT SELECT ON app.* TO ann@'127.0.0.1'");
    assert_eq!(server.try_sql_as("ann", "SELECT 1"), Ok("1".to_owned()));
    assert!(server.try_sql_as("ann", "CREATE TABLE t (n INT)").unwrap_err().contains("denied"));
    assert!(server.sql("SHOW SESSION STATUS LIKE 'Ssl_version'").contains("TLSv1"));
}

#[test]
fn the_clock_of_a_server_can_be_moved() {
    let server = MariadbServer::start(&MariadbServerConfig::plain().with_movable_clock());
    let now = || server.sql("SELECT UNIX_TIMESTAMP(SYSDATE())").parse::<i64>().unwrap();
    let before = now();
    server.shift_clock(100_000);
    assert!(now() >= before + 100_000);
    server.shift_clock(-100_000);
    assert!(now() < before);
}

#[test]
fn an_invalid_configuration_is_a_failure_with_the_reason() {
    let impossible = MariadbServerConfig::plain().with_option("--wishful");
    let said = std::panic::catch_unwind(|| MariadbServer::start(&impossible)).unwrap_err();
    let said = said.downcast_ref::<String>().unwrap();
    assert!(said.starts_with("mariadbd cannot be started: ") && said.contains("wishful"), "{said}");
}
