//! Bad input and servers that cannot write: a clear error each, and nothing is lost.

use std::time::Duration;

use fencepost_core::ErrorKind;
use fencepost_testkit::databases::errors::{self, assert_error};
use fencepost_testkit::servers::mariadb::{MariadbServerConfig, shared};
use fencepost_testkit::{TestBench, WireBench, wait};

use crate::actions::{LONG_TTL, enqueue, granted, hold, until_renewed_since};
use crate::bench::MariadbBench;

#[tokio::test]
async fn an_unknown_database_or_user() {
    let error = fencepost_mysql::connect(&shared().url().replace("/app", "/nowhere")).await.unwrap_err();
    assert_error(&error, ErrorKind::Missing, "no such database");
    let error = fencepost_mysql::connect(&shared().url().replace("root@", "unknown:hunter2@")).await;
    let error = error.unwrap_err();
    assert_error(&error, ErrorKind::Denied, "does not accept this user and password");
    assert!(!format!("{error:?}").contains("hunter2"));
}

#[tokio::test]
async fn a_ttl_out_of_range_is_refused() {
    errors::a_ttl_out_of_range_is_refused(MariadbBench::plain().client().await).await;
}

/// Scenario 66: the disk is full for a while. New locks fail with the reason; what is held stays held.
#[tokio::test]
async fn a_full_disk() {
    let bench = MariadbBench::on(&MariadbServerConfig::plain().with_fillable_disk());
    errors::a_full_disk(bench.client().await, bench.server()).await;
}

/// Scenario 66: the server accepts no more connections for a while. Holders keep renewing and waiters keep waiting on those that
/// they have.
#[tokio::test]
async fn no_connection_left() {
    let bench = MariadbBench::on(&MariadbServerConfig::plain().with_user("ann", "hunter2"));
    let url = WireBench::url(&bench).replace("root@", "ann:hunter2@");
    bench.sql("GRANT ALL ON app.* TO ann@'127.0.0.1'");
    let client = fencepost_mysql::connect(&url).await.unwrap();
    let kept = hold(&client.lock("kept").ttl(Duration::from_secs(3))).await;
    let waiter = enqueue(&client, client.lock("kept").ttl(LONG_TTL), "kept", 1).await;
    bench.sql("SET GLOBAL max_connections = 10");
    let mut others = Vec::new();
    let opts = mysql_async::Opts::from_url(&bench.server().url_as("ann")).unwrap();
    while let Ok(other) = mysql_async::Conn::new(opts.clone()).await {
        others.push(other);
    }
    let error = fencepost_mysql::connect(&url).await.unwrap_err();
    assert_error(&error, ErrorKind::Unreachable, "has no connection left");
    let before = kept.valid_until();
    until_renewed_since(&kept, before).await;
    assert!(!waiter.is_finished());
    drop(others);
    let again = async || fencepost_mysql::connect(&url).await.is_ok();
    wait::until("connections are accepted again", again).await;
    kept.release().await.unwrap();
    granted(waiter).await.release().await.unwrap();
}
