//! Bad input and servers that cannot write: a clear error each, and nothing is lost.

use fencepost_core::ErrorKind;
use fencepost_testkit::databases::errors::{self, assert_error};
use fencepost_testkit::servers::postgres::{
    PostgresPair, PostgresServer, PostgresServerConfig, Replication, shared,
};

use crate::actions::{bench_on, connect};
use crate::bench::{DATABASE, PostgresBench};

#[tokio::test]
async fn an_unknown_database_or_user() {
    let error = fencepost_postgres::connect(&shared().url("nowhere")).await.unwrap_err();
    assert_error(&error, ErrorKind::Missing, "no such database");
    let error = fencepost_postgres::connect(&shared().url_as("unknown", DATABASE)).await.unwrap_err();
    assert_error(&error, ErrorKind::Denied, "does not accept the login");
}

#[tokio::test]
async fn a_ttl_out_of_range_is_refused() {
    errors::a_ttl_out_of_range_is_refused(connect(&bench_on(shared())).await).await;
}

#[tokio::test]
async fn a_standby_is_refused() {
    let pair = PostgresPair::start(Replication::Asynchronous);
    let primary = pair.primary().url(DATABASE);
    let bench = PostgresBench::at(&pair.standby().url(DATABASE), "", &primary);
    let error = fencepost_postgres::connect(bench.url()).await.unwrap_err();
    assert_error(&error, ErrorKind::Unreachable, "standby");
    connect(&bench.without_wire()).await.close().await;
    pair.wait_until_caught_up();
    let error = fencepost_postgres::connect(bench.url()).await.unwrap_err();
    assert_error(&error, ErrorKind::Unreachable, "standby");
}

/// Scenario 66: the disk is full for a while. New locks fail with the reason; what is held stays held.
#[tokio::test]
async fn a_full_disk() {
    let server = PostgresServer::start(&PostgresServerConfig::plain().with_fillable_disk());
    errors::a_full_disk(connect(&bench_on(&server)).await, &server).await;
}
