//! What is refused, and why.

use fencepost_core::ErrorKind;
use fencepost_testkit::actions::{LONG_TTL, enqueue, granted, hold};
use fencepost_testkit::servers::postgres::{PgBouncer, PostgresServer, PostgresServerConfig, shared};

use super::AdvisoryBench;

fn namespace() -> String {
    format!("test_{:016x}", rand::random::<u64>())
}

/// Scenario 14: behind a pooler in transaction mode a lock would belong to the pooler's session.
#[tokio::test(flavor = "multi_thread")]
async fn a_pooler_in_transaction_mode() {
    for lines in [&[][..], &["default_pool_size = 1"]] {
        let bouncer = PgBouncer::start_with(shared(), lines);
        let url = format!("{}?mode=advisory&namespace={}", bouncer.url("postgres"), namespace());
        let error = fencepost_postgres::connect(&url).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unsupported, "{error:?}");
        assert!(error.to_string().contains("pooler in transaction mode"), "{error:?}");
        assert!(error.hint().is_some_and(|hint| hint.contains("mode=lease")), "{error:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pooler_in_session_mode_is_accepted() {
    let bouncer = PgBouncer::start_with(shared(), &["pool_mode = session"]);
    let url = format!("{}?mode=advisory&namespace={}", bouncer.url("postgres"), namespace());
    let client = fencepost_postgres::connect(&url).await.unwrap();
    let other = fencepost_postgres::connect(&url).await.unwrap();
    let guard = hold(&client.lock("a").ttl(LONG_TTL)).await;
    assert!(other.lock("a").try_acquire().await.unwrap().is_none());
    let waiter = enqueue(&client, other.lock("a").ttl(LONG_TTL), "a", 1).await;
    guard.release().await.unwrap();
    granted(waiter).await.release().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_schema_that_is_not_ours() {
    let bench = AdvisoryBench::plain();
    let namespace = bench.namespace();
    let open = async || fencepost_postgres::connect(bench.url()).await.map(drop);
    shared().psql(&format!(
        "CREATE SCHEMA \"{namespace}\"; CREATE TABLE \"{namespace}\".advisory_storage (x int)"
    ));
    assert_eq!(open().await.unwrap_err().kind(), ErrorKind::Backend);
    shared().psql(&format!("DROP TABLE \"{namespace}\".advisory_storage"));
    open().await.unwrap();
    shared().psql(&format!("UPDATE \"{namespace}\".advisory_storage SET version = 2"));
    let error = open().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Backend);
    assert!(error.to_string().contains("have format 2"), "{error:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn rights_that_are_missing() {
    let setup = PostgresServerConfig::plain().with_user("app", "hunter2").with_user("ops", "hunter2");
    let server = PostgresServer::start(&setup);
    let url = |user: &str| format!("{}?mode=advisory", server.url_as(user, "postgres"));
    let error = fencepost_postgres::connect(&url("app")).await.map(drop).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Denied, "{error:?}");
    assert!(!format!("{error:?}").contains("hunter2"), "{error:?}");
    // What is printed for an administrator is enough; to run it twice changes nothing.
    for _ in 0..2 {
        server.psql(&fencepost_postgres::schema(&url("app")).unwrap());
    }
    for user in ["app", "ops"] {
        let rights = fencepost_postgres::rights(&url(user)).unwrap().replace("ACCOUNT", user);
        server.psql(&rights.replace("CREATE ROLE", "-- CREATE ROLE"));
    }
    let app = fencepost_postgres::connect(&url("app")).await.unwrap();
    let guard = hold(&app.lock("a").ttl(LONG_TTL)).await;
    assert_eq!(app.sweep().await.unwrap(), Some(0), "its session lives");
    let ops = fencepost_postgres::connect(&url("ops")).await.unwrap();
    assert!(ops.lock("a").try_acquire().await.unwrap().is_none());
    let error = ops.break_lock("a", guard.token()).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Denied, "{error:?}");
    assert!(error.hint().is_some_and(|hint| hint.contains("pg_signal_backend")), "{error:?}");
    assert!(guard.is_valid());
    server.psql("GRANT pg_signal_backend TO ops");
    ops.break_lock("a", guard.token()).await.unwrap();
    assert_eq!(guard.lost().await, fencepost_core::LostReason::Broken);
    hold(&ops.lock("a").ttl(LONG_TTL)).await.release().await.unwrap();
}
