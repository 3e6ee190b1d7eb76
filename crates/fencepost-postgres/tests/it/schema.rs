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

/// The modes, as options of the URL, and their tables with the version.
const MODES: [(&str, &str); 2] = [("", "storage"), ("&mode=advisory", "advisory_storage")];

/// The error tells whether the other version is older or newer.
#[tokio::test]
async fn another_version_is_refused() {
    for (mode, table) in MODES {
        for (version, age) in [(0, "older"), (2, "newer"), (1_000_000, "newer")] {
            let bench = bench_on(shared());
            let (url, namespace) = (format!("{}{mode}", bench.url()), bench.namespace());
            fencepost_postgres::connect(&url).await.unwrap().close().await;
            shared().psql(&format!("UPDATE {namespace}.{table} SET version = {version}"));
            let error = fencepost_postgres::connect(&url).await.unwrap_err();
            let hint = format!("use the {age} fencepost for all clients, or another");
            assert_error(&error, ErrorKind::Backend, &format!("have format {version}, of a"), &hint);
            let words = format!("{age} fencepost than this one, which has format 1");
            assert_error(&error, ErrorKind::Backend, &words, "?namespace=NAME");
        }
    }
}

/// Clients of one mode, and of both, that start at once in a new namespace.
#[tokio::test(flavor = "multi_thread")]
async fn many_clients_of_each_mode_create_its_tables_once() {
    let [(lease, _), (advisory, _)] = MODES;
    for modes in [[advisory, advisory], [lease, advisory], [advisory, lease]] {
        let bench = bench_on(shared());
        let urls: Vec<String> = modes.iter().map(|mode| format!("{}{mode}", bench.url())).collect();
        let clients = (0..12).map(|index| fencepost_postgres::connect(&urls[index % 2]));
        let clients = futures_util::future::join_all(clients).await;
        let clients: Vec<_> = clients.into_iter().map(|client| client.expect("it connects")).collect();
        for (index, client) in clients.iter().enumerate() {
            assert_eq!(client.info().storage_id, clients[index % 2].info().storage_id);
            hold(&client.lock("a").ttl(LONG_TTL)).await.release().await.unwrap();
        }
        for (mode, table) in MODES.into_iter().filter(|(mode, _)| modes.contains(mode)) {
            let count = shared().psql(&format!("SELECT count(*) FROM {}.{table}", bench.namespace()));
            assert_eq!(count.trim(), "1", "{modes:?}: {mode}");
        }
    }
}

/// Returns all tables, rows and functions of the schema.
fn contents(namespace: &str) -> String {
    let tables = format!("SELECT schema_to_xml('{namespace}', true, false, '')");
    let others = format!(
        "SELECT relname::text, relkind::text FROM pg_class WHERE relnamespace = '{namespace}'::regnamespace \
         UNION ALL SELECT proname, prosrc FROM pg_proc WHERE pronamespace = '{namespace}'::regnamespace ORDER BY 1"
    );
    format!("{}\n{}", shared().psql(&tables), shared().psql(&others))
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
        let bench = bench_on(shared());
        let namespace = bench.namespace();
        shared().psql(&sql.replace('@', namespace));
        let before = contents(namespace);
        let error = fencepost_postgres::connect(bench.url()).await.unwrap_err();
        assert!(error.to_string().contains(words), "{sql}: {error:?}");
        assert_error(&error, ErrorKind::Backend, words, "namespace=");
        assert_eq!(contents(namespace), before, "{sql}");
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
    assert_error(&error, ErrorKind::Backend, "lacks Fencepost's schema", "fencepost schema");
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
