//! What is refused, and why.

use std::time::Duration;

use fencepost_core::{ErrorKind, Finding, LostReason};
use fencepost_testkit::actions::{LONG_TTL, enqueue, granted, hold};
use fencepost_testkit::databases::errors::assert_error;
use fencepost_testkit::servers::mariadb::{MariadbServer, MariadbServerConfig};
use fencepost_testkit::{TestBench, WireBench, wait};

use super::NamedBench;

/// Scenario 16: the nodes of a Galera cluster have named locks of their own.
#[tokio::test(flavor = "multi_thread")]
async fn a_node_of_a_galera_cluster() {
    let server = MariadbServer::start(&MariadbServerConfig::plain().with_galera());
    let is_ready = || server.sql("SHOW STATUS LIKE 'wsrep_ready'").ends_with("ON");
    wait::block_until("the node has joined its cluster", is_ready);
    let error = fencepost_mysql::connect(&format!("{}?mode=named", server.url())).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unsupported, "{error:?}");
    assert!(error.to_string().contains("Galera"), "{error:?}");
    assert!(error.hint().is_some_and(|hint| hint.contains("mode=lease")), "{error:?}");
    assert_eq!(server.sql("SHOW TABLES"), "", "nothing was created");
}

/// A server that was made read-only grants no locks, and what is held stays held.
#[tokio::test(flavor = "multi_thread")]
async fn a_read_only_server() {
    let server = MariadbServer::start(&MariadbServerConfig::plain().with_user("app", "hunter2"));
    let url = format!("{}?mode=named", server.url_as("app"));
    server.sql(&fencepost_mysql::rights(&url).unwrap().replace("'%'", "'127.0.0.1'"));
    let client = fencepost_mysql::connect(&url).await.unwrap();
    let kept = hold(&client.lock("kept").ttl(LONG_TTL)).await;
    server.sql("SET GLOBAL read_only = 1");
    for client in [client.clone(), fencepost_mysql::connect(&url).await.unwrap()] {
        let error = client.lock("a").ttl(LONG_TTL).try_acquire().await.map(drop).unwrap_err();
        assert_error(&error, ErrorKind::Unreachable, "read-only");
    }
    server.sql("SET GLOBAL read_only = 0");
    kept.release().await.unwrap();
    hold(&client.lock("a").ttl(LONG_TTL)).await.release().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_raw_name_that_is_too_long() {
    let client = NamedBench::with("&key=raw").client().await;
    let error = client.lock("x".repeat(65)).try_acquire().await.map(drop).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::BadName, "{error:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn tables_that_are_not_ours() {
    let bench = NamedBench::plain();
    let open = async || fencepost_mysql::connect(bench.url()).await.map(drop);
    bench.sql("CREATE TABLE {sessions} (x INT)").await;
    assert_eq!(open().await.unwrap_err().kind(), ErrorKind::Backend);
    bench.sql("DROP TABLE {sessions}").await;
    open().await.unwrap();
    bench.sql(&format!("UPDATE `{}_named_storage` SET format = 2", bench.namespace())).await;
    let error = open().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Backend);
    assert!(error.to_string().contains("have format 2"), "{error:?}");
}

/// An account with exactly the rights that `fencepost rights` prints; another one breaks its lock only with CONNECTION ADMIN.
#[tokio::test(flavor = "multi_thread")]
async fn the_printed_rights_are_enough() {
    let setup = MariadbServerConfig::plain().with_user("app", "hunter2").with_user("ops", "hunter2");
    let server = MariadbServer::start(&setup);
    let url = |user: &str| format!("{}?mode=named", server.url_as(user));
    let error = fencepost_mysql::connect(&url("app")).await.map(drop).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Denied, "{error:?}");
    assert!(!format!("{error:?}").contains("hunter2"), "{error:?}");
    for user in ["app", "ops"] {
        server.sql(&fencepost_mysql::rights(&url(user)).unwrap().replace("'%'", "'127.0.0.1'"));
    }
    let app = fencepost_mysql::connect(&url("app")).await.unwrap();
    let guard = hold(&app.lock("a").ttl(Duration::from_secs(6))).await;
    let waiter = enqueue(&app, app.lock("a").ttl(LONG_TTL), "a", 1).await;
    let concerns = Finding::concerns(app.diagnose().await.unwrap());
    assert!(concerns.is_empty(), "{concerns:?}");
    let ops = fencepost_mysql::connect(&url("ops")).await.unwrap();
    assert!(ops.lock("a").try_acquire().await.unwrap().is_none());
    let state = ops.inspect("a").await.unwrap();
    assert_eq!((state.holders.len(), state.waiter_count), (1, 1), "{state:?}");
    let error = ops.break_lock("a", guard.token()).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Denied, "{error:?}");
    assert!(error.hint().is_some_and(|hint| hint.contains("CONNECTION ADMIN")), "{error:?}");
    assert!(guard.is_valid());
    server.sql("GRANT CONNECTION ADMIN ON *.* TO ops@'127.0.0.1'");
    let ops = fencepost_mysql::connect(&url("ops")).await.unwrap();
    ops.break_lock("a", guard.token()).await.unwrap();
    assert_eq!(guard.lost().await, LostReason::NotHeld);
    granted(waiter).await.release().await.unwrap();
}

/// The printed schema is the one that a client creates, and can be run again.
#[tokio::test(flavor = "multi_thread")]
async fn the_printed_schema_is_complete() {
    let bench = NamedBench::plain();
    let schema = fencepost_mysql::schema(bench.url()).unwrap();
    for _ in 0..2 {
        bench.sql(&schema).await;
    }
    let client = bench.read_only_client().await.unwrap().unwrap();
    hold(&client.lock("a").ttl(LONG_TTL)).await.release().await.unwrap();
}

/// Limits of the account do not end a wait, and rows of connections that are gone are removed.
#[tokio::test(flavor = "multi_thread")]
async fn a_statement_limit_of_the_server_does_not_end_a_wait() {
    let bench = NamedBench::on(&MariadbServerConfig::plain().with_option("--max-statement-time=0.2"));
    let client = bench.client().await;
    let guard = hold(&client.lock("a").ttl(LONG_TTL)).await;
    let waiter = enqueue(&client, client.lock("a").ttl(LONG_TTL), "a", 1).await;
    let waiting = bench.connections("a", 0).await;
    wait::elapse(Duration::from_secs(1)).await;
    assert_eq!(bench.connections("a", 0).await, waiting, "it still waits on the same connection");
    guard.release().await.unwrap();
    granted(waiter).await.release().await.unwrap();
    client.close().await;
    let client = bench.client().await;
    assert_eq!(bench.sql("SELECT COUNT(*) FROM {sessions}").await, "0");
    client.close().await;
}
