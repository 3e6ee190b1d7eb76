//! Tables that do not exist or cannot hold locks: a clear error each, and the table is left as it is.

use fencepost_core::ErrorKind;
use fencepost_testkit::servers::postgres::shared;

use super::bench::{OPTIONS, SHEDLOCK, TableBench};
use crate::actions::grant;
use crate::bench::DATABASE;

/// Connects to a table with these columns. Returns the error and its hint.
async fn refused(columns: &str, options: &str) -> (ErrorKind, String, String) {
    let bench = TableBench::new(columns, options, "name", "true");
    let columns_of = "SELECT string_agg(attname, ',') FROM pg_attribute WHERE attrelid = '@'::regclass";
    let before = bench.psql(columns_of);
    let Err(error) = fencepost_postgres::connect(bench.url()).await else { panic!("{columns} is accepted") };
    let after =
        bench.psql("SELECT string_agg(attname, ',') FROM pg_attribute WHERE attrelid = '@'::regclass");
    assert_eq!(before, after);
    (error.kind(), error.to_string(), error.hint().unwrap_or_default().to_owned())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_table_that_does_not_exist_is_not_created() {
    let url = format!("{}?dialect=shedlock&table=nowhere.shedlock", shared().url(DATABASE));
    let Err(error) = fencepost_postgres::connect(&url).await else { panic!("it is accepted") };
    assert_eq!(error.kind(), ErrorKind::Missing);
    let hint = error.hint().unwrap_or_default();
    assert!(
        hint.contains("CREATE TABLE \"nowhere\".\"shedlock\" (name VARCHAR(64) NOT NULL PRIMARY KEY"),
        "{hint}"
    );
    assert_eq!(shared().psql_in(DATABASE, "SELECT to_regclass('nowhere.shedlock') IS NULL").trim(), "t");
}

#[tokio::test(flavor = "multi_thread")]
async fn each_unsuitable_table_has_an_error() {
    let with_expiry = format!("{OPTIONS}&expires=expires_at");
    let shedlock = "dialect=shedlock";
    let cases = [
        ("name text PRIMARY KEY, lock_until timestamp, locked_by text", shedlock, "no column \"locked_at\""),
        (&SHEDLOCK.replace("PRIMARY KEY", ""), shedlock, "is not a primary key"),
        (&SHEDLOCK.replace("VARCHAR(255)", "VARCHAR(20)"), shedlock, "is too short"),
        (
            &format!("{SHEDLOCK}, environment text NOT NULL"),
            shedlock,
            "needs a value for column \"environment\"",
        ),
        ("lock_name text PRIMARY KEY, owner_id text, expires_at bigint", &with_expiry, "has type int8"),
        (
            "lock_name text PRIMARY KEY, owner_id text",
            &with_expiry,
            "no column \"expires_at\", but lock_name",
        ),
        ("lock_name bigint PRIMARY KEY, owner_id text", OPTIONS, "\"lock_name\" of table"),
        ("lock_name char(9) PRIMARY KEY, owner_id text", OPTIONS, "has type bpchar"),
        ("lock_name text, owner_id text, PRIMARY KEY (lock_name, owner_id)", OPTIONS, "is not a primary key"),
        ("lock_name text UNIQUE DEFERRABLE, owner_id text", OPTIONS, "is not a primary key"),
        ("lock_name text PRIMARY KEY, owner_id bigint", OPTIONS, "has type int8, not text or uuid"),
    ];
    for (columns, options, expected) in cases {
        let (kind, message, hint) = refused(columns, options).await;
        assert_eq!(kind, ErrorKind::Unsupported, "{columns}: {message}");
        assert!(message.contains(expected), "{columns}: {message}");
        assert!(!hint.is_empty(), "{columns}: {message}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_view_is_rejected() {
    let bench = TableBench::shedlock();
    let view = format!("view_{:016x}", rand::random::<u64>());
    bench.psql(&format!("CREATE VIEW {view} AS SELECT * FROM @"));
    let url = format!("{}?dialect=shedlock&table={view}", shared().url(DATABASE));
    let Err(error) = fencepost_postgres::connect(&url).await else { panic!("it is accepted") };
    assert!(error.to_string().contains("is not a table"), "{error}");
}

/// The table is dropped while a client uses it.
#[tokio::test(flavor = "multi_thread")]
async fn a_dropped_table_is_an_error() {
    let bench = TableBench::shedlock();
    let client = fencepost_postgres::connect(bench.url()).await.unwrap();
    client.lock("a").acquire().await.unwrap().release().await.unwrap();
    bench.psql("DROP TABLE @");
    let error = client.lock("a").acquire().await.unwrap_err();
    assert!(error.to_string().contains("was dropped or altered"), "{error}");
    assert!(error.hint().is_some_and(|hint| hint.contains("CREATE TABLE")), "{error:?}");
    client.close().await;
}

/// An account that may only read the table: an error and a finding. With the printed rights it uses locks.
#[tokio::test(flavor = "multi_thread")]
async fn missing_rights_are_an_error_and_the_printed_ones_are_enough() {
    for (bench, missing) in [
        (TableBench::shedlock(), "INSERT, UPDATE not granted"),
        (TableBench::with_expiry(), "INSERT, UPDATE, DELETE not granted"),
        (TableBench::without_expiry(), "INSERT, UPDATE, DELETE not granted"),
    ] {
        let role = format!("role_{:016x}", rand::random::<u64>());
        bench.psql(&format!("CREATE ROLE {role} LOGIN; GRANT SELECT ON @ TO {role}"));
        let (scheme, rest) = bench.url().split_once("://").unwrap();
        let (_, place) = rest.split_once('@').unwrap();
        let url = format!("{scheme}://{role}@{place}");
        let client = fencepost_postgres::connect(&url).await.unwrap();
        assert!(client.inspect("a").await.unwrap().is_idle());
        let error = client.lock("a").try_acquire().await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Denied, "{error:?}");
        assert!(error.hint().is_some_and(|hint| hint.contains("fencepost rights")), "{error:?}");
        let findings: Vec<String> =
            client.diagnose().await.unwrap().iter().map(ToString::to_string).collect();
        assert!(findings.iter().any(|line| line.contains(missing)), "{findings:?}");
        client.close().await;
        let rights = fencepost_postgres::rights(&url).unwrap().replace("ACCOUNT", &role);
        grant(&rights.replace("CREATE ROLE", "-- CREATE ROLE"));
        let client = fencepost_postgres::connect(&url).await.unwrap();
        client.lock("a").acquire().await.unwrap().release().await.unwrap();
        assert!(client.lock("a").try_acquire().await.unwrap().is_some());
        client.close().await;
    }
}
