//! The schema: other versions, tables of other programs, missing rights, a schema that is dropped.

use fencepost_core::{Error, ErrorKind, LostReason};
use fencepost_testkit::servers::postgres::shared;
use fencepost_testkit::wait;

use crate::actions::{LONG_TTL, bench_on, connect, hold, spawn_waiter};
use crate::bench::{DATABASE, PostgresBench};

fn assert_error(error: &Error, kind: ErrorKind, words: &str, hint: &str) {
    assert_eq!(error.kind(), kind, "{error:?}");
    assert!(error.to_string().contains(words), "{error:?}");
    assert!(error.hint().is_some_and(|found| found.contains(hint)), "{error:?}");
}

/// Returns the error of connecting to the schema after these statements; `@` stands for its name.
async fn refused_after(sql: &str) -> Error {
    let bench = bench_on(shared());
    shared().psql_in(DATABASE, &sql.replace('@', bench.namespace()));
    fencepost_postgres::connect(bench.url()).await.unwrap_err()
}

#[tokio::test]
async fn another_version_is_refused() {
    for (version, word) in [(0, "older"), (2, "newer"), (1_000_000, "newer")] {
        let bench = bench_on(shared());
        connect(&bench).await.close().await;
        let namespace = bench.namespace();
        shared().psql(&format!("UPDATE {namespace}.storage SET version = {version}"));
        let error = fencepost_postgres::connect(bench.url()).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Backend, "{error:?}");
        assert!(error.full_message().contains("version"), "{word}: {error:?}");
        assert!(error.hint().is_some(), "{error:?}");
    }
}

#[tokio::test]
async fn tables_of_other_programs_are_not_touched() {
    let words = "has tables of another program";
    for sql in [
        "CREATE SCHEMA @; CREATE TABLE @.locks (id int); INSERT INTO @.locks VALUES (7)",
        "CREATE SCHEMA @; CREATE TABLE @.storage (bytes bigint)",
        "CREATE SCHEMA @; CREATE TABLE @.storage (version text, storage_id text); INSERT INTO @.storage VALUES ('x', 'y')",
        "CREATE SCHEMA @; CREATE TABLE @.storage (version int, storage_id uuid)",
        "CREATE SCHEMA @; CREATE TABLE @.storage (version date, storage_id uuid)",
        "CREATE SCHEMA @; CREATE SEQUENCE @.positions",
        "CREATE SCHEMA @; CREATE FUNCTION @.admits(text, int, timestamptz) RETURNS boolean LANGUAGE sql AS 'SELECT true'",
    ] {
        let error = refused_after(sql).await;
        assert!(error.to_string().contains(words), "{sql}: {error:?}");
        assert_error(&error, ErrorKind::Backend, words, "namespace=");
    }
}

/// Creates a role that may log in, and returns a bench for it.
fn as_a_role(rights: &str) -> (PostgresBench, String) {
    let role = format!("role_{:016x}", rand::random::<u64>());
    shared().psql(&format!("CREATE ROLE {role} LOGIN"));
    let bench = PostgresBench::at(&shared().url_as(&role, DATABASE), "", &shared().url(DATABASE));
    shared().psql(&rights.replace('@', bench.namespace()).replace("ROLE", &role));
    (bench, role)
}

#[tokio::test]
async fn missing_rights_are_named() {
    let (bench, _) = as_a_role("SELECT 1");
    let error = fencepost_postgres::connect(bench.url()).await.unwrap_err();
    assert_error(&error, ErrorKind::Denied, "may not create the schema", "fencepost rights");
    let (bench, role) = as_a_role("SELECT 1");
    connect(&bench.without_wire()).await.close().await;
    let error = fencepost_postgres::connect(bench.url()).await.unwrap_err();
    assert_error(&error, ErrorKind::Denied, "denies the account permission", "fencepost rights");
    // Without the right to execute the functions, an acquire fails and a lock that is held stays so.
    let namespace = bench.namespace();
    shared().psql(&format!(
        "GRANT USAGE ON SCHEMA {namespace} TO {role}; GRANT ALL ON ALL TABLES IN SCHEMA {namespace} TO {role}"
    ));
    let admin = connect(&bench.without_wire()).await;
    let guard = hold(&admin.lock("a").ttl(LONG_TTL)).await;
    let error = match fencepost_postgres::connect(bench.url()).await {
        Err(error) => error,
        Ok(client) => client.lock("a").ttl(LONG_TTL).try_acquire().await.unwrap_err(),
    };
    assert_error(&error, ErrorKind::Denied, "denies the account permission", "fencepost rights");
    guard.release().await.expect("it is still held");
}

/// An administrator has created the schema for the account, which may create no others.
#[tokio::test]
async fn an_existing_empty_schema_is_filled() {
    let (bench, _) = as_a_role("CREATE SCHEMA @ AUTHORIZATION ROLE");
    let client = connect(&bench).await;
    hold(&client.lock("a").ttl(LONG_TTL)).await.release().await.unwrap();
}

/// The schema is dropped under clients, and created again by another one: holders are told, and waiters are granted.
#[tokio::test]
async fn a_dropped_schema_is_an_error_until_it_exists_again() {
    let bench = bench_on(shared());
    let client = connect(&bench).await;
    let guard = hold(&client.lock("a").ttl(std::time::Duration::from_secs(3))).await;
    shared().psql(&format!("DROP SCHEMA {} CASCADE", bench.namespace()));
    let error = client.lock("b").ttl(LONG_TTL).try_acquire().await.unwrap_err();
    assert_error(&error, ErrorKind::Backend, "lacks Fencepost's schema", "fencepost schema postgres");
    let other = connect(&bench).await;
    let second = hold(&other.lock("a").ttl(LONG_TTL)).await;
    assert!(second.token() > guard.token());
    let reason = wait::within_timeout("the loss is told", guard.lost()).await;
    assert!(matches!(reason, LostReason::NotHeld | LostReason::Expired), "{reason:?}");
    let waiter = spawn_waiter(client.lock("a").ttl(LONG_TTL));
    crate::actions::until_queued(&other, "a", 1).await;
    second.release().await.unwrap();
    crate::actions::granted(waiter).await.release().await.unwrap();
}
