//! The doctor: what matters to locks that live in sessions, and nothing else.

use fencepost_core::{Finding, Severity};
use fencepost_testkit::TestBench;
use fencepost_testkit::actions::{LONG_TTL, hold};
use fencepost_testkit::databases::doctor::{
    assert_checked_like_leases, assert_clock_concerns_tokens_only, finding, only_concern,
};
use fencepost_testkit::servers::postgres::{
    PgBouncer, PostgresPair, PostgresServer, PostgresServerConfig, Replication,
};

use crate::admin::diagnosis;
use crate::bench::DATABASE;

/// Every check, in the order in which it is printed.
const CHECKS: [&str; 12] = [
    "namespace",
    "encryption",
    "authentication",
    "server",
    "role",
    "replicas",
    "isolation",
    "pooler",
    "connections",
    "server's clock",
    "rights",
    "crash release",
];

async fn advisory_url(server: &PostgresServer) -> String {
    let url = format!("{}?mode=advisory", server.url(DATABASE));
    fencepost_postgres::connect(&url).await.unwrap().close().await;
    url
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_not_guaranteed_is_stated() {
    let client = super::AdvisoryBench::plain().client().await;
    let exceptions = client.info().exceptions;
    for words in ["as soon as the connection ends", "joins the queue again", "no token"] {
        assert!(exceptions.iter().any(|text| text.contains(words)), "{words}: {exceptions:?}");
    }
}

/// Returns the only concern.
async fn concern(url: &str, check: &str, severity: Severity) -> Finding {
    only_concern(diagnosis(url).await, check, severity)
}

/// What is checked in both modes is reported in the same words. A server that may lose what it has written is as good as another
/// one: locks are in its memory.
#[tokio::test(flavor = "multi_thread")]
async fn sessions_are_checked_as_leases_are_but_for_what_is_stored() {
    let server = PostgresServer::start(&PostgresServerConfig::plain());
    let url = advisory_url(&server).await;
    for (name, value) in [("autovacuum", "off"), ("full_page_writes", "off"), ("track_counts", "off")] {
        server.change_setting(name, value);
    }
    let findings = diagnosis(&url).await;
    let noticed = &finding(&findings, "crash release").found;
    assert!(noticed.contains("one ttl") && noticed.ends_with("within 13s"), "{noticed}");
    fencepost_postgres::connect(&server.url(DATABASE)).await.unwrap().close().await;
    let leases = diagnosis(&server.url(DATABASE)).await;
    let both =
        ["encryption", "authentication", "server", "role", "replicas", "isolation", "pooler", "rights"];
    assert_checked_like_leases(&findings, &CHECKS, &leases, &both);
}

#[tokio::test(flavor = "multi_thread")]
async fn connections_are_counted_against_what_a_client_may_use() {
    let server = PostgresServer::start(&PostgresServerConfig::plain().with_setting("max_connections", "40"));
    let url = advisory_url(&server).await;
    assert_eq!(Finding::concerns(diagnosis(&url).await), []);
    let found = concern(&format!("{url}&connections=60"), "connections", Severity::Warning).await;
    assert!(found.advice.as_ref().is_some_and(|advice| advice.contains("up to 61")), "{found:?}");
    server.psql("CREATE ROLE few LOGIN SUPERUSER CONNECTION LIMIT 3");
    let found = concern(&url.replace("postgres@", "few@"), "connections", Severity::Warning).await;
    assert!(found.found.contains("by the limit of the role"), "{found:?}");
}

/// Tokens are derived from the server's clock.
#[tokio::test(flavor = "multi_thread")]
async fn a_clock_that_differs_is_a_warning() {
    let server = PostgresServer::start(&PostgresServerConfig::plain().with_movable_clock());
    let url = advisory_url(&server).await;
    server.shift_clock(3600);
    assert_clock_concerns_tokens_only(diagnosis(&url).await);
}

/// A standby has no locks of sessions, whether commits wait for it or not.
#[tokio::test(flavor = "multi_thread")]
async fn a_standby_is_a_warning_although_it_is_synchronous() {
    let pair = PostgresPair::start(Replication::Synchronous);
    let url = advisory_url(pair.primary()).await;
    let found = concern(&url, "replicas", Severity::Warning).await;
    assert!(found.found.starts_with("1: a failover ends all locks"), "{found:?}");
}

/// No lock waits for a standby that is not connected: the doctor does not call that a problem, as it does for leases.
#[tokio::test(flavor = "multi_thread")]
async fn locks_do_not_wait_for_a_standby_that_is_gone() {
    let server = PostgresServer::start(&PostgresServerConfig::plain());
    let url = advisory_url(&server).await;
    server.change_setting("synchronous_standby_names", "gone");
    let client = fencepost_postgres::connect(&url).await.unwrap();
    let guard = hold(&client.lock("a").ttl(LONG_TTL)).await;
    client.break_lock("a", guard.token()).await.unwrap();
    hold(&client.lock("a").ttl(LONG_TTL)).await.release().await.unwrap();
    client.sweep().await.unwrap();
    let found = concern(&url, "replicas", Severity::Warning).await;
    assert!(found.found.starts_with("none is connected, of gone"), "{found:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn missing_rights_are_a_problem_and_what_may_not_be_read_is_a_warning() {
    let server = PostgresServer::start(&PostgresServerConfig::plain());
    let admin = advisory_url(&server).await;
    let url = admin.replace("postgres@", "app@");
    let rights = fencepost_postgres::rights(&url).unwrap().replace("ACCOUNT", "app");
    server.psql(&rights.replace("GRANT USAGE, SELECT, UPDATE ON SEQUENCE", "-- GRANT"));
    let found = concern(&url, "rights", Severity::Problem).await;
    let missing = ["SELECT", "UPDATE", "USAGE"].map(|right| format!("{right} on advisory_tokens")).join(", ");
    assert_eq!(found.found, format!("missing: {missing}"));

    server.psql(&rights.replace("CREATE ROLE", "-- CREATE ROLE"));
    assert_eq!(Finding::concerns(diagnosis(&url).await), []);
    server.psql_in(DATABASE, "REVOKE SELECT ON pg_stat_replication FROM PUBLIC");
    let found = concern(&url, "server", Severity::Warning).await;
    assert!(found.found.starts_with("could not be checked: "), "{found:?}");
}

/// A pooler in session mode keeps the isolation level of the account, and the keepalive of the server ends there.
#[tokio::test(flavor = "multi_thread")]
async fn what_a_pooler_in_session_mode_changes() {
    let server = PostgresServer::start(&PostgresServerConfig::plain());
    let url = advisory_url(&server).await;
    let bouncer = PgBouncer::start_with(&server, &["pool_mode = session"]);
    let pooled = format!("{}?mode=advisory", bouncer.url(DATABASE));
    let findings = diagnosis(&pooled).await;
    assert_eq!(Finding::concerns(findings.clone()), []);
    assert!(finding(&findings, "crash release").found.contains("a pooler"), "{findings:?}");
    server.psql("ALTER ROLE postgres SET default_transaction_isolation = 'serializable'");
    let own = finding(&diagnosis(&url).await, "isolation").clone();
    assert!(own.found.starts_with("serializable; read committed on"), "{own:?}");
    drop(bouncer);
    let bouncer = PgBouncer::start_with(&server, &["pool_mode = session"]);
    let pooled = format!("{}?mode=advisory", bouncer.url(DATABASE));
    concern(&pooled, "isolation", Severity::Problem).await;
}

/// A schema that was dropped under a client is found.
#[tokio::test(flavor = "multi_thread")]
async fn a_schema_that_was_dropped_is_a_problem() {
    let server = PostgresServer::start(&PostgresServerConfig::plain());
    let client = fencepost_postgres::connect(&advisory_url(&server).await).await.unwrap();
    server.psql_in(DATABASE, "DROP SCHEMA fencepost CASCADE");
    let findings = client.diagnose().await.unwrap();
    assert_eq!(finding(&findings, "namespace").severity, Severity::Problem, "{findings:?}");
}
