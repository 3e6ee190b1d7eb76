//! Bad input and servers that cannot write: a clear error each, and nothing is lost.

use std::time::Duration;

use fencepost_core::{Error, ErrorKind};
use fencepost_testkit::servers::postgres::{
    PostgresPair, PostgresServer, PostgresServerConfig, Replication, shared,
};
use fencepost_testkit::wait;

use crate::actions::{LONG_TTL, bench_on, connect, hold};
use crate::bench::{DATABASE, PostgresBench};

fn assert_error(error: &Error, kind: ErrorKind, words: &str) {
    assert_eq!(error.kind(), kind, "{error:?}");
    assert!(error.to_string().contains(words), "{error:?}");
    assert!(error.hint().is_some(), "{error:?}");
}

#[tokio::test]
async fn an_unknown_database_or_user() {
    let error = fencepost_postgres::connect(&shared().url("nowhere")).await.unwrap_err();
    assert_error(&error, ErrorKind::Missing, "no such database");
    let error = fencepost_postgres::connect(&shared().url_as("unknown", DATABASE)).await.unwrap_err();
    assert_error(&error, ErrorKind::Denied, "does not accept the login");
}

#[tokio::test]
async fn a_ttl_out_of_range_is_refused() {
    let bench = bench_on(shared());
    let client = connect(&bench).await;
    for ttl in [Duration::ZERO, Duration::from_millis(1), Duration::from_secs(u64::MAX), Duration::MAX] {
        let error = client.lock("a").ttl(ttl).try_acquire().await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::BadConfig, "{ttl:?}: {error:?}");
    }
    for ttl in [client.info().min_ttl, client.info().max_ttl] {
        // The shortest lease may end before the release.
        drop(hold(&client.lock("a").ttl(ttl)).await);
    }
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
    let bench = bench_on(&server);
    let client = connect(&bench).await;
    let kept = hold(&client.lock("kept").ttl(LONG_TTL)).await;
    server.fill_disk();
    let mut number = 0;
    let error = loop {
        number += 1;
        assert!(number < 100_000, "the disk is never full");
        let lock = client.lock(format!("new/{number}/{}", "x".repeat(400))).ttl(LONG_TTL);
        match lock.try_acquire().await {
            Ok(guard) => std::mem::forget(guard),
            Err(error) => break error,
        }
    };
    assert_error(&error, ErrorKind::Backend, "no space left");
    assert!(kept.is_valid());
    server.clear_disk();
    wait::until("locks can be acquired again", async || {
        client.lock("new").ttl(LONG_TTL).try_acquire().await.is_ok_and(|guard| guard.is_some())
    })
    .await;
    kept.release().await.expect("it is held");
}
