//! Tables of other programs with the names of those of mode=named.

use fencepost_core::ErrorKind;
use fencepost_testkit::WireBench;

use super::NamedBench;

/// They are reported with what to do, and left as they are.
#[tokio::test(flavor = "multi_thread")]
async fn tables_of_other_programs_are_not_touched() {
    let ours = "(id INT, connection INT, session INT, lock_key INT, name INT, granted INT, since_us INT, ttl_ms INT, \
        label INT, meta INT)";
    for (sql, table) in [
        ("CREATE TABLE {sessions} (x INT); INSERT INTO {sessions} VALUES (7)".to_owned(), "{sessions}"),
        ("CREATE TABLE {storage} (x INT); INSERT INTO {storage} VALUES (7)".to_owned(), "{storage}"),
        (
            format!(
                "CREATE TABLE {{sessions}} {ours}; CREATE TABLE {{storage}} (id INT, format TEXT, storage_id TEXT); \
                 INSERT INTO {{storage}} VALUES (1, 'x', 'y')"
            ),
            "{storage}",
        ),
        (
            format!(
                "CREATE TABLE {{sessions}} {ours}; CREATE TABLE {{storage}} (id INT, format INT, storage_id TEXT); \
                 INSERT INTO {{storage}} VALUES (1, 1, NULL)"
            ),
            "{storage}",
        ),
    ] {
        let bench = NamedBench::plain();
        let named = |sql: &str| sql.replace("{storage}", &format!("`{}_named_storage`", bench.namespace()));
        let rows = named(&format!("SELECT * FROM {table}"));
        bench.sql(&named(&sql)).await;
        let before = bench.sql(&rows).await;
        let error = fencepost_mysql::connect(bench.url()).await.map(drop).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Backend, "{sql}: {error:?}");
        assert!(error.to_string().contains("is not one of Fencepost"), "{sql}: {error:?}");
        assert!(error.hint().is_some_and(|hint| hint.contains("?namespace=")), "{sql}: {error:?}");
        assert_eq!(bench.sql(&rows).await, before, "{sql}");
    }
}
