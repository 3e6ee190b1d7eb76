//! Tables of other programs in the schema of mode=advisory.

use fencepost_core::ErrorKind;
use fencepost_testkit::servers::postgres::shared;

use super::AdvisoryBench;

/// They are reported with what to do, and left as they are.
#[tokio::test(flavor = "multi_thread")]
async fn tables_of_other_programs_are_not_touched() {
    for (sql, table) in [
        ("CREATE TABLE @.advisory_storage (x int); INSERT INTO @.advisory_storage VALUES (7)", "storage"),
        ("CREATE TABLE @.advisory_storage (version bigint, storage_id text)", "storage"),
        (
            "CREATE TABLE @.advisory_storage (version text, storage_id text); INSERT INTO @.advisory_storage VALUES ('x', 'y')",
            "storage",
        ),
        ("CREATE TABLE @.advisory_storage (version date, storage_id uuid)", "storage"),
        (
            "CREATE TABLE @.advisory_storage (version numeric, storage_id text); INSERT INTO @.advisory_storage VALUES (1e30, 'y')",
            "storage",
        ),
        ("CREATE TABLE @.advisory_sessions (x int); INSERT INTO @.advisory_sessions VALUES (7)", "sessions"),
        ("CREATE VIEW @.advisory_sessions AS SELECT 7 AS x", "sessions"),
        ("CREATE TABLE @.advisory_tokens (x int); INSERT INTO @.advisory_tokens VALUES (7)", "tokens"),
    ] {
        let bench = AdvisoryBench::plain();
        let namespace = bench.namespace();
        let objects =
            format!("SELECT relname, relkind FROM pg_class WHERE relnamespace = '{namespace}'::regnamespace");
        let rows = format!("SELECT * FROM {namespace}.advisory_{table}");
        let read = || (shared().psql(&rows), shared().psql(&objects));
        shared().psql(&format!("CREATE SCHEMA {namespace}; {}", sql.replace('@', namespace)));
        let before = read();
        let error = fencepost_postgres::connect(bench.url()).await.map(drop).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Backend, "{sql}: {error:?}");
        assert!(error.to_string().contains("has tables of another program"), "{sql}: {error:?}");
        assert!(error.hint().is_some_and(|hint| hint.contains("?namespace=")), "{sql}: {error:?}");
        assert_eq!(read(), before, "{sql}");
    }
}

/// The type of a number does not matter, its value does: no version panics.
#[tokio::test(flavor = "multi_thread")]
async fn a_version_of_another_type_is_compared() {
    let bench = AdvisoryBench::plain();
    let open = async || fencepost_postgres::connect(bench.url()).await.map(drop);
    let change =
        |sql: &str| shared().psql(&format!("ALTER TABLE {}.advisory_storage {sql}", bench.namespace()));
    open().await.unwrap();
    change("ALTER version TYPE integer");
    open().await.unwrap();
    change("ALTER version DROP NOT NULL, ALTER version TYPE text USING '2'");
    let error = open().await.unwrap_err();
    assert!(error.to_string().contains("have format 2"), "{error:?}");
    change("ALTER version TYPE text USING NULL");
    let error = open().await.unwrap_err();
    assert!(error.to_string().contains("is invalid"), "{error:?}");
    assert!(error.hint().is_some_and(|hint| hint.contains("?namespace=")), "{error:?}");
}
