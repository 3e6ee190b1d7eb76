//! The doctor: what matters to locks that live on connections, and nothing else.

use fencepost_core::{ErrorKind, Finding, Severity};
use fencepost_testkit::databases::doctor::{
    assert_checked_like_leases, assert_clock_concerns_tokens_only, finding, only_concern,
};
use fencepost_testkit::servers::mariadb::{MariadbPair, MariadbServer, MariadbServerConfig};

use crate::admin::diagnosis;

/// Every check, in the order in which it is printed.
const CHECKS: [&str; 13] = [
    "namespace",
    "encryption",
    "authentication",
    "server",
    "role",
    "binary log",
    "replicas",
    "cluster",
    "proxy",
    "connections",
    "server's clock",
    "rights",
    "crash release",
];

async fn named_url(server: &MariadbServer) -> String {
    let url = format!("{}?mode=named", server.url());
    fencepost_mysql::connect(&url).await.unwrap().close().await;
    url
}

/// Returns the only concern.
async fn concern(url: &str, check: &str, severity: Severity) -> Finding {
    only_concern(diagnosis(url).await, check, severity)
}

/// What is checked in both modes is reported in the same words. A server that may lose what it has written is as good as another
/// one: locks are in its memory.
#[tokio::test(flavor = "multi_thread")]
async fn connections_are_checked_as_leases_are_but_for_what_is_stored() {
    let server = MariadbServer::start(&MariadbServerConfig::plain());
    let url = named_url(&server).await;
    server.sql("SET GLOBAL innodb_flush_log_at_trx_commit = 0");
    let findings = diagnosis(&url).await;
    let noticed = &finding(&findings, "crash release").found;
    assert!(noticed.contains("one ttl") && noticed.ends_with("within 10m"), "{noticed}");
    fencepost_mysql::connect(&server.url()).await.unwrap().close().await;
    let leases = diagnosis(&server.url()).await;
    let both =
        ["encryption", "authentication", "server", "role", "binary log", "replicas", "cluster", "rights"];
    assert_checked_like_leases(&findings, &CHECKS, &leases, &both);
}

#[tokio::test(flavor = "multi_thread")]
async fn settings_that_weaken_a_guarantee_are_found() {
    let server = MariadbServer::start(&MariadbServerConfig::plain().with_option("--log-bin"));
    let url = named_url(&server).await;
    for (setting, check, severity, found) in [
        ("read_only = 1", "role", Severity::Problem, "read-only"),
        ("max_connections = 30", "connections", Severity::Warning, "of 30"),
        ("binlog_format = 'STATEMENT'", "binary log", Severity::Problem, "no lock can be acquired"),
    ] {
        let name = setting.split_once(' ').unwrap().0;
        let before = server.sql(&format!("SELECT QUOTE(@@GLOBAL.{name})"));
        server.sql(&format!("SET GLOBAL {setting}"));
        let concern = concern(&url, check, severity).await;
        assert!(concern.found.contains(found) && concern.advice.is_some(), "{concern:?}");
        if name == "binlog_format" {
            let client = fencepost_mysql::connect(&url).await.unwrap();
            let error = client.lock("a").try_acquire().await.map(drop).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Unsupported, "{error:?}");
        }
        let before = if name == "binlog_format" { before } else { before.trim_matches('\'').to_owned() };
        server.sql(&format!("SET GLOBAL {name} = {before}"));
    }
    assert_eq!(Finding::concerns(diagnosis(&url).await), []);
    let found = concern(&format!("{url}&connections=1000"), "connections", Severity::Warning).await;
    assert!(found.advice.as_ref().is_some_and(|advice| advice.contains("up to 1003")), "{found:?}");
}

/// Tokens follow the server's clock.
#[tokio::test(flavor = "multi_thread")]
async fn a_clock_that_differs_is_a_warning() {
    let server = MariadbServer::start(&MariadbServerConfig::plain().with_movable_clock());
    let url = named_url(&server).await;
    server.shift_clock(3600);
    assert_clock_concerns_tokens_only(diagnosis(&url).await);
}

/// A replica has no named locks of its primary.
#[tokio::test(flavor = "multi_thread")]
async fn a_replica_is_a_warning() {
    let pair = MariadbPair::start();
    let found = concern(&named_url(pair.primary()).await, "replicas", Severity::Warning).await;
    assert!(found.found.starts_with("1: a failover ends all locks"), "{found:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn missing_rights_are_a_problem_and_what_may_not_be_read_is_not() {
    let server = MariadbServer::start(&MariadbServerConfig::plain().with_user("app", "hunter2"));
    let url = format!("{}?mode=named", server.url_as("app"));
    server.sql(&fencepost_mysql::rights(&url).unwrap().replace("'%'", "'127.0.0.1'"));
    fencepost_mysql::connect(&url).await.unwrap().close().await;
    assert_eq!(Finding::concerns(diagnosis(&url).await), []);
    // An account that may not write to a read-only server has no problem with its rights.
    server.sql("SET GLOBAL read_only = 1");
    concern(&url, "role", Severity::Problem).await;
    server
        .sql("SET GLOBAL read_only = 0; REVOKE DELETE ON app.fencepost_named_sessions FROM app@'127.0.0.1'");
    let found = concern(&url, "rights", Severity::Problem).await;
    assert_eq!(found.found, "missing: DELETE on `fencepost_named_sessions`");
    assert!(!format!("{found:?}").contains("hunter2"));
}

/// Tables that were dropped under a client are found.
#[tokio::test(flavor = "multi_thread")]
async fn tables_that_were_dropped_are_a_problem() {
    let server = MariadbServer::start(&MariadbServerConfig::plain());
    let client = fencepost_mysql::connect(&named_url(&server).await).await.unwrap();
    server.sql("DROP TABLE fencepost_named_storage, fencepost_named_sessions");
    let findings = client.diagnose().await.unwrap();
    assert_eq!(finding(&findings, "namespace").severity, Severity::Problem, "{findings:?}");
}
