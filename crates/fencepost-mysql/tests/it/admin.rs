//! What an administrator uses: the printed schema, the doctor.

use fencepost_core::{Finding, Options, Severity};
use fencepost_testkit::databases::doctor::{self, finding};
use fencepost_testkit::servers::mariadb::{MariadbServerConfig, shared};
use fencepost_testkit::{TestBench, WireBench, wait};

use crate::actions::{LONG_TTL, Transaction, hold};
use crate::bench::MariadbBench;

pub(crate) async fn diagnosis(url: &str) -> Vec<Finding> {
    let options = Options::new().only_existing();
    doctor::diagnosis(fencepost_mysql::connect_with(url, options).await).await
}

/// To run the printed statements twice changes nothing.
#[tokio::test]
async fn the_printed_schema_can_be_run_again() {
    let bench = MariadbBench::plain();
    let schema = fencepost_mysql::schema(WireBench::url(&bench)).unwrap();
    bench.sql(&schema);
    let client = bench.client().await;
    let guard = hold(&client.lock("a").ttl(LONG_TTL)).await;
    let id = "SELECT HEX(storage_id) FROM {storage}";
    let before = bench.try_sql(id).await.unwrap();
    bench.try_sql(&schema).await.unwrap();
    assert_eq!(bench.try_sql(id).await.unwrap(), before);
    assert!(client.lock("a").try_acquire().await.unwrap().is_none());
    guard.release().await.unwrap();
}

/// What an operator has set on the server is found, and a healthy one is told from it.
#[tokio::test]
async fn settings_that_weaken_a_guarantee_are_found() {
    let config = MariadbServerConfig::durable().with_option("--log-bin").with_option("--sync-binlog=1");
    let bench = MariadbBench::on(&config);
    let url = WireBench::url(&bench);
    bench.client().await.close().await;
    assert_eq!(Finding::concerns(diagnosis(url).await), [], "a healthy server");
    for (setting, check, severity, found) in [
        (
            "innodb_flush_log_at_trx_commit = 2",
            "durability",
            Severity::Warning,
            "innodb_flush_log_at_trx_commit = 2",
        ),
        ("sync_binlog = 0", "durability", Severity::Warning, "sync_binlog = 0"),
        ("binlog_format = 'STATEMENT'", "binary log", Severity::Problem, "STATEMENT"),
        ("read_only = 1", "role", Severity::Problem, "read-only"),
        ("max_connections = 10", "connections", Severity::Warning, "of 10"),
    ] {
        let name = setting.split_once(' ').unwrap().0;
        let before = bench.try_sql(&format!("SELECT @@GLOBAL.{name}")).await.unwrap();
        bench.try_sql(&format!("SET GLOBAL {setting}")).await.unwrap();
        let findings = diagnosis(url).await;
        let concerns: Vec<_> =
            Finding::concerns(findings.clone()).into_iter().map(|finding| finding.check).collect();
        assert_eq!(concerns, [check], "{setting}: {findings:?}");
        let concern = finding(&findings, check);
        assert_eq!(concern.severity, severity, "{concern:?}");
        assert!(concern.found.contains(found) && concern.advice.is_some(), "{concern:?}");
        let before = if name == "binlog_format" { format!("'{before}'") } else { before };
        bench.try_sql(&format!("SET GLOBAL {name} = {before}")).await.unwrap();
    }
    bench.try_sql("SET GLOBAL tx_isolation = 'SERIALIZABLE'").await.unwrap();
    let findings = diagnosis(url).await;
    assert!(
        finding(&findings, "isolation").found.contains("SERIALIZABLE; READ COMMITTED on"),
        "{findings:?}"
    );
}

/// A transaction that has locked rows for long is reported with what ends it, and so are many names that are not used.
#[tokio::test]
async fn transactions_and_unused_names_are_reported() {
    let bench = MariadbBench::on(&MariadbServerConfig::plain().with_movable_clock());
    let url = WireBench::url(&bench);
    let client = bench.client().await;
    assert_eq!(finding(&client.diagnose().await.unwrap(), "transactions").severity, Severity::Ok);
    let mut transaction = Transaction::begin(&bench).await;
    assert!(transaction.lock_in("a").await.is_some());
    assert_eq!(finding(&diagnosis(url).await, "transactions").severity, Severity::Ok);
    bench.server().shift_clock(3600);
    // The server shows a state of its transactions that may be a tenth of a second old.
    let mut findings = Vec::new();
    wait::until("it is reported", async || {
        findings = diagnosis(url).await;
        finding(&findings, "transactions").severity == Severity::Warning
    })
    .await;
    let found = finding(&findings, "transactions");
    let kill = format!("KILL {}", transaction.driver.id());
    assert!(found.advice.as_ref().is_some_and(|advice| advice.contains(&kill)), "{found:?}");
    assert_eq!(finding(&findings, "server's clock").severity, Severity::Warning);
    transaction.end("ROLLBACK").await;
    let fill = "INSERT INTO {holders} SELECT CONCAT('once/', seq), LPAD(seq, 16, '0'), seq, 0, 1000, 1, 1, 7, NULL, 0, '', '' \
        FROM seq_1_to_10001";
    bench.try_sql(fill).await.unwrap();
    let findings = diagnosis(url).await;
    assert_eq!(finding(&findings, "unused names").severity, Severity::Warning, "{findings:?}");
}

/// The statement that `locate` prints reads the row of exactly this lock.
#[tokio::test]
async fn the_location_is_a_statement_that_reads_the_row() {
    let bench = MariadbBench::plain();
    let client = bench.client().await;
    let name = "it's \\ \"x\"; DROP";
    let held = hold(&client.lock(name).ttl(LONG_TTL)).await;
    let findings = client.locate(name).await.unwrap();
    let advice = finding(&findings, "lock's row").advice.clone().expect("it has one");
    let statement =
        advice.split_once(" -e '").expect("it is a command").1.trim_end_matches('\'').replace(r"'\''", "'");
    let read = shared().sql(&statement);
    let columns: Vec<&str> = read.split('\t').collect();
    assert_eq!(columns[1], held.token().to_string(), "{read}");
    held.release().await.unwrap();
}
