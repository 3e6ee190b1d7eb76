//! What an administrator uses: the printed schema and rights, the doctor, the sweep.

use std::time::Duration;

use fencepost_core::{Client, ErrorKind, Finding, Options, Severity};
use fencepost_testkit::databases::doctor::{self, finding};
use fencepost_testkit::servers::postgres::{PgBouncer, PostgresServer, PostgresServerConfig, shared};
use fencepost_testkit::wait;

use crate::bench::{DATABASE, drive};

/// A namespace that no other test uses.
fn new_namespace() -> String {
    format!("admin_{:016x}", rand::random::<u64>())
}

pub(crate) async fn diagnosis(url: &str) -> Vec<Finding> {
    let options = Options::new().only_existing();
    doctor::diagnosis(fencepost_postgres::connect_with(url, options).await).await
}

/// Uses everything that needs rights: modes, several names, a queue, a cell, breaking, listing, the sweep.
pub(crate) async fn use_locks(client: &Client) {
    let held = client.lock("a").acquire().await.expect("it is free");
    held.write_cell(*b"value", fencepost_core::Keep::WhileHeld).await.expect("it holds");
    let other = client.lock("a");
    let waiting = tokio::spawn(async move { other.acquire().await });
    wait::until("it waits", async || client.inspect("a").await.expect("it answers").waiter_count == 1).await;
    held.release().await.expect("it holds");
    let handed_over = waiting.await.expect("no panic").expect("it is handed over");
    client.break_lock("a", handed_over.token()).await.expect("it is held");
    let both = client.lock_all(["b", "c"]).acquire().await.expect("they are free");
    both.release().await.expect("it holds");
    let shared = client.lock("d").shared().acquire().await.expect("it is free");
    shared.release().await.expect("it holds");
    assert!(client.sweep().await.expect("it answers").is_some());
}

/// The printed statements are enough for locks, and create nothing else; the account cannot create the schema itself.
#[tokio::test(flavor = "multi_thread")]
async fn locks_work_with_exactly_the_printed_rights() {
    let server = PostgresServer::start(&PostgresServerConfig::plain());
    let namespace = new_namespace();
    let admin = format!("{}?namespace={namespace}", server.url(DATABASE));
    let url = admin.replace("postgres@", "app@");
    let rights = fencepost_postgres::rights(&url).expect("it is valid").replace("ACCOUNT", "app");
    let schema = fencepost_postgres::schema(&url).expect("it is valid");

    // Without a schema, the account may not create one.
    server.psql("CREATE ROLE app LOGIN");
    let error = fencepost_postgres::connect(&url).await.expect_err("it may not");
    assert_eq!(error.kind(), ErrorKind::Denied, "{error:?}");
    assert!(
        error.hint().is_some_and(|hint| hint.contains("`fencepost schema` and `fencepost rights`")),
        "{error:?}"
    );
    server.psql("DROP ROLE app");

    server.psql(&schema);
    let before = server.psql(&format!("SELECT storage_id FROM \"{namespace}\".storage"));
    server.psql(&schema);
    assert_eq!(server.psql(&format!("SELECT storage_id FROM \"{namespace}\".storage")), before);
    server.psql(&rights.replace("GRANT USAGE ON SEQUENCE", "-- GRANT USAGE ON SEQUENCE"));
    let missing = diagnosis(&url).await;
    let problem = finding(&missing, "rights");
    assert_eq!(
        (problem.severity, problem.found.as_str()),
        (Severity::Problem, "missing: USAGE on positions")
    );

    server.psql(&rights.replace("CREATE ROLE", "-- CREATE ROLE"));
    let client = fencepost_postgres::connect(&url).await.expect("the rights are enough");
    use_locks(&client).await;
    client.close().await;
    let lock_in = format!("SELECT \"{namespace}\".lock_in('a') IS NOT NULL");
    assert_eq!(server.try_psql_as("app", DATABASE, &lock_in).as_deref(), Ok("t"));
    let findings = diagnosis(&url).await;
    assert_eq!(finding(&findings, "rights").severity, Severity::Ok);
    assert!(finding(&findings, "authentication").found.ends_with("as role app"), "{findings:?}");
    let denied = server.try_psql_as("app", DATABASE, "CREATE SCHEMA mine").expect_err("it may not");
    assert!(denied.contains("permission denied"), "{denied}");
    let denied = server.try_psql_as("app", DATABASE, &format!("DROP FUNCTION \"{namespace}\".sweep"));
    assert!(denied.expect_err("it may not").contains("must be owner"));
}

/// `rights` without its grants: nothing in the schema is open to every account.
#[tokio::test(flavor = "multi_thread")]
async fn an_account_without_rights_is_denied() {
    let server = shared();
    let url = format!("{}?namespace={}", server.url(DATABASE), new_namespace());
    fencepost_postgres::connect(&url).await.expect("it connects").close().await;
    let role = new_namespace();
    server.psql(&format!("CREATE ROLE {role} LOGIN"));
    let error = fencepost_postgres::connect(&url.replace("postgres@", &format!("{role}@"))).await;
    let error = error.expect_err("it has no rights");
    assert_eq!(error.kind(), ErrorKind::Denied, "{error:?}");
    assert!(error.hint().is_some_and(|hint| hint.contains("fencepost rights")), "{error:?}");
    server.psql(&format!("DROP ROLE {role}"));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_sweep_removes_expired_and_unused_names_only() {
    let namespace = new_namespace();
    let url = format!("{}?namespace={namespace}", shared().url(DATABASE));
    let client = fencepost_postgres::connect(&url).await.expect("it connects");
    let held = client.lock("held").acquire().await.expect("it is free");
    let kept = client.lock("kept").acquire().await.expect("it is free");
    kept.write_cell(*b"value", fencepost_core::Keep::Always).await.expect("it holds");
    kept.release().await.expect("it holds");
    // 1,200 names of a crashed client, whose leases ended: more than one call reads.
    let driver = drive(&shared().url(DATABASE)).await;
    let fill = format!(
        "INSERT INTO \"{namespace}\".locks (name, token, owner, ttl_ms, client, since, chosen, label, meta, expires_at) \
         SELECT 'once/' || n, n, gen_random_uuid(), 1000, 7, now(), 0, '', '', clock_timestamp() - interval '2 h' \
         FROM generate_series(1, 1200) AS n"
    );
    driver.batch_execute(&fill).await.expect("it is allowed");
    let findings = client.diagnose().await.expect("it is open");
    assert_eq!(finding(&findings, "unused names").found, "1200 were last used over an hour ago");
    // The background sweep may have been faster with some of them.
    let removed = client.sweep().await.expect("it answers").expect("there is something to sweep");
    assert!((1..=1200).contains(&removed), "{removed}");
    let names = format!("SELECT string_agg(name, ',' ORDER BY name) FROM \"{namespace}\".locks");
    let names: String = driver.query_one(&names, &[]).await.expect("it answers").get(0);
    assert_eq!(names, "held,kept");
    assert!(held.is_valid());
    held.release().await.expect("it is still held");
    client.close().await;
}

/// A transaction that has locked rows for long, and one that was prepared, are reported with what ends them.
#[tokio::test(flavor = "multi_thread")]
async fn transactions_that_lock_rows_are_reported() {
    let config = PostgresServerConfig::plain().with_setting("max_prepared_transactions", "2");
    let server = PostgresServer::start(&config.with_movable_clock());
    let url = server.url(DATABASE);
    let client = fencepost_postgres::connect(&url).await.expect("it connects");
    client.lock("a").acquire().await.expect("it is free").release().await.expect("it is held");
    assert_eq!(finding(&client.diagnose().await.expect("open"), "transactions").severity, Severity::Ok);

    let mut driver = drive(&url).await;
    let transaction = driver.transaction().await.expect("it begins");
    transaction.execute("SELECT fencepost.lock_in('a', 0)", &[]).await.expect("it is free");
    server.shift_clock(3600);
    let findings = client.diagnose().await.expect("it is open");
    let found = finding(&findings, "transactions");
    assert_eq!(found.severity, Severity::Warning, "{found:?}");
    assert!(found.found.contains("idle in transaction"), "{found:?}");
    assert!(
        found.advice.as_ref().is_some_and(|advice| advice.contains("pg_terminate_backend(")),
        "{found:?}"
    );
    assert_eq!(finding(&findings, "server's clock").severity, Severity::Warning);
    server.shift_clock(0);
    transaction.rollback().await.expect("it ends");

    server
        .psql("BEGIN; SELECT FROM fencepost.locks WHERE name = 'a' FOR UPDATE; PREPARE TRANSACTION 'left';");
    let findings = client.diagnose().await.expect("it is open");
    let found = finding(&findings, "transactions");
    assert!(found.found.starts_with("the prepared transaction 'left' has locked rows"), "{found:?}");
    assert!(
        found.advice.as_ref().is_some_and(|advice| advice.contains("ROLLBACK PREPARED 'left'")),
        "{found:?}"
    );
    server.psql("ROLLBACK PREPARED 'left'");
    client.close().await;
}

/// What an operator has set on the server is found, and a healthy one is told from it.
#[tokio::test(flavor = "multi_thread")]
async fn settings_that_weaken_a_guarantee_are_found() {
    let server = PostgresServer::start(&PostgresServerConfig::durable());
    let url = server.url(DATABASE);
    fencepost_postgres::connect(&url).await.expect("it connects").close().await;
    let concerns = Finding::concerns(diagnosis(&url).await);
    assert_eq!(concerns, [], "a healthy server");

    for (name, value) in [("autovacuum", "off"), ("full_page_writes", "off"), ("synchronous_commit", "off")] {
        server.change_setting(name, value);
    }
    server.psql("ALTER ROLE postgres SET default_transaction_isolation = 'serializable'");
    let findings = diagnosis(&url).await;
    assert_eq!(finding(&findings, "autovacuum").severity, Severity::Warning);
    assert!(finding(&findings, "durability").found.contains("full_page_writes is off"));
    assert!(
        finding(&findings, "isolation").found.starts_with("serializable; read committed on"),
        "{findings:?}"
    );
    server.psql("CREATE ROLE few LOGIN SUPERUSER CONNECTION LIMIT 3");
    let findings = diagnosis(&url.replace("postgres@", "few@")).await;
    assert_eq!(finding(&findings, "connections").severity, Severity::Warning, "{findings:?}");

    let bouncer = PgBouncer::start(&server);
    let findings = diagnosis(&bouncer.url(DATABASE)).await;
    assert_eq!(finding(&findings, "pooler").severity, Severity::Warning);
    assert_eq!(finding(&findings, "isolation").severity, Severity::Problem, "{findings:?}");
}

/// The statement that `locate` prints reads the row of exactly this lock.
#[tokio::test(flavor = "multi_thread")]
async fn the_location_is_a_statement_that_reads_the_row() {
    let namespace = new_namespace();
    let url = format!("{}?namespace={namespace}", shared().url(DATABASE));
    let client = fencepost_postgres::connect(&url).await.expect("it connects");
    let name = "it's \\ \"x\"; DROP";
    let held = client.lock(name).ttl(Duration::from_secs(60)).acquire().await.expect("it is free");
    let findings = client.locate(name).await.expect("it is open");
    let found = finding(&findings, "lock's row");
    assert!(found.found.contains(&format!("with token {}", held.token())), "{found:?}");
    let statement =
        found.advice.as_ref().and_then(|advice| advice.split_once("psql: ")).expect("it has one").1;
    let read = shared().psql(&statement.replace('*', "token, label IS NOT NULL"));
    assert_eq!(read, format!("{}|t", held.token()));
    held.release().await.expect("it is held");
    client.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn advisory_locks_work_with_exactly_the_printed_rights() {
    let server = PostgresServer::start(&PostgresServerConfig::plain());
    let admin = format!("{}?mode=advisory", server.url(DATABASE));
    fencepost_postgres::connect(&admin).await.expect("it creates the schema").close().await;
    let url = admin.replace("postgres@", "app@");
    server.psql(&fencepost_postgres::rights(&url).expect("it is valid").replace("ACCOUNT", "app"));
    let client = fencepost_postgres::connect(&url).await.expect("the rights are enough");
    let held = client.lock("a").acquire().await.expect("it is free");
    let other = client.lock("a");
    let waiting = tokio::spawn(async move { other.acquire().await });
    wait::until("it waits", async || client.inspect("a").await.expect("it answers").waiter_count == 1).await;
    held.release().await.expect("it holds");
    waiting.await.expect("no panic").expect("it is free").release().await.expect("it holds");
    client.close().await;
}
