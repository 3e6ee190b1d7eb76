//! The findings of the doctor on real servers, healthy and not.

use std::time::Duration;

use fencepost_core::{Client, Finding, Options, Severity};
use fencepost_testkit::servers::etcd::{EtcdCluster, EtcdServer, EtcdServerConfig, shared};

const LONG: Duration = Duration::from_secs(60);

fn namespace() -> String {
    format!("test-{:016x}", rand::random::<u64>())
}

async fn open(url: &str) -> Client {
    fencepost_etcd::connect_with(url, Options::new().only_existing())
        .await
        .expect("the server accepts the client")
}

async fn diagnosed(url: &str) -> Vec<Finding> {
    open(url).await.diagnose().await.unwrap()
}

#[track_caller]
fn expect<'a>(findings: &'a [Finding], check: &str, severity: Severity, found: &str) -> &'a Finding {
    let finding = findings.iter().find(|finding| finding.check == check).expect("the check exists");
    assert_eq!(finding.severity, severity, "{finding}");
    assert!(finding.found.contains(found), "{found:?} is not in {finding}");
    finding
}

#[track_caller]
fn expect_only(findings: &[Finding], severity: Severity, checks: &[&str]) {
    let found: Vec<&str> =
        findings.iter().filter(|it| it.severity == severity).map(|it| it.check.as_str()).collect();
    assert_eq!(found, checks, "{findings:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_healthy_server_is_ok_and_unchanged() {
    let (server, namespace) = (shared(), namespace());
    let url = format!("{}?namespace={namespace}", server.url());
    let findings = diagnosed(&url).await;
    assert!(findings.iter().all(|finding| finding.severity == Severity::Ok), "{findings:?}");
    expect(&findings, "server", Severity::Ok, "etcd 3.");
    expect(&findings, "namespace", Severity::Ok, "where no lock has been acquired yet");
    expect(&findings, "members", Severity::Ok, "1 of 1 responded");
    expect(&findings, "leader", Severity::Ok, "alone, in term ");
    expect(&findings, "alarms", Severity::Ok, "none");
    expect(&findings, "database", Severity::Ok, "MiB");
    expect(&findings, "authentication", Severity::Ok, "off");
    assert!(open(&url).await.locate("a").await.unwrap().iter().all(|it| it.severity == Severity::Ok));
    assert_eq!(server.ctl(&["get", "--prefix", &namespace, "--keys-only"]), "");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_full_server_has_an_alarm() {
    let server = EtcdServer::start(&EtcdServerConfig::plain().with_option("--quota-backend-bytes=200000"));
    let value = "x".repeat(50_000);
    let is_full = (0..100).any(|key| server.try_ctl(&["put", &format!("fill/{key}"), &value]).is_err());
    assert!(is_full, "the server must be full by now");
    let findings = diagnosed(&server.url()).await;
    expect_only(&findings, Severity::Problem, &["alarms"]);
    let alarm = expect(&findings, "alarms", Severity::Problem, "NOSPACE");
    assert!(alarm.advice.as_deref().unwrap().contains("alarm disarm"), "{alarm:?}");
}

fn without_the_version(mut findings: Vec<Finding>) -> Vec<Finding> {
    findings.retain(|finding| finding.check != "server");
    findings
}

#[tokio::test(flavor = "multi_thread")]
async fn members_that_are_down_or_not_named_are_reported() {
    let cluster = EtcdCluster::start();
    cluster.wait_until_healthy();
    let findings = diagnosed(&cluster.url()).await;
    // The installed version may be one with a warning.
    let findings = without_the_version(findings);
    expect(&findings, "members", Severity::Ok, "3 of 3 responded; 1 can fail");
    expect(&findings, "failover", Severity::Ok, "all 3 members");
    expect_only(&findings, Severity::Warning, &[]);

    let one = without_the_version(diagnosed(&cluster.member(0).url()).await);
    let failover = expect(&one, "failover", Severity::Warning, "1 of 3 members");
    for port in cluster.ports() {
        assert!(failover.advice.as_deref().unwrap().contains(&format!("127.0.0.1:{port}")), "{failover:?}");
    }
    expect_only(&one, Severity::Warning, &["failover"]);

    let down = cluster.follower();
    cluster.member(down).kill();
    let findings = without_the_version(diagnosed(&cluster.url()).await);
    let port = cluster.ports()[down];
    expect(&findings, "members", Severity::Warning, &format!("2 of 3 responded; 127.0.0.1:{port} did not: "));
    expect_only(&findings, Severity::Warning, &["members"]);
    expect_only(&findings, Severity::Problem, &[]);
    let warned = open(&cluster.url()).await;
    assert_eq!(warned.diagnose().await.unwrap().len(), findings.len() + 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_user_is_shown_and_the_password_is_not() {
    let server = EtcdServer::start(&EtcdServerConfig::plain().with_user("ann", "hunter2"));
    let line = "etcdctl role add r && etcdctl role grant-permission r --prefix=true readwrite fencepost/ \
                && etcdctl user grant-role ann r";
    server.run_shell(line);
    let client = open(&server.url_as("ann")).await;
    let findings = client.diagnose().await.unwrap();
    expect(&findings, "authentication", Severity::Ok, "on, as ann");
    expect_only(&findings, Severity::Problem, &[]);
    // This account may not read the keys of other layouts.
    let places = client.locate("a").await.unwrap();
    expect(&places, "lock's keys", Severity::Ok, "fencepost/lock/a/ (nothing there now)");
    expect(&places, "foreign key", Severity::Warning, "could not be checked");
    assert!(!format!("{findings:?}{places:?}").contains("hunter2"));
}

#[tokio::test(flavor = "multi_thread")]
async fn the_command_of_locate_shows_the_keys() {
    let (server, namespace) = (shared(), namespace());
    let client = fencepost_etcd::connect(&format!("{}?namespace={namespace}", server.url())).await.unwrap();
    let name = "it's/100%";
    let guard = client.lock(name).ttl(LONG).label("ours").acquire().await.unwrap();
    let places = client.locate(name).await.unwrap();
    let key = format!("{namespace}/lock/it's%2F100%25/");
    let place =
        expect(&places, "lock's keys", Severity::Ok, &format!("{key} (1 first in the queue, 0 behind"));
    assert!(place.found.contains("\"ours\""), "{place}");
    expect(&places, "cell's key", Severity::Ok, "nothing there now");
    let command = place.advice.as_deref().unwrap().strip_prefix("to read them: ").unwrap();
    assert!(server.run_shell(command).contains("\"label\":\"ours\""));
    guard.release().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn foreign_locks_are_recognized() {
    let (server, prefix) = (shared(), namespace());
    let url = format!("{}?namespace={prefix}-own", server.url());
    let lease = server.ctl(&["lease", "grant", "600"]);
    // As Go's client writes it into a key.
    let lease = lease.split_whitespace().nth(1).unwrap().trim_start_matches('0');
    let name = format!("{prefix}/foreign");
    server.ctl(&["put", &format!("{name}/{lease}"), "", &format!("--lease={lease}")]);

    let own_layout = open(&url).await.locate(name.as_str()).await.unwrap();
    let foreign = expect(&own_layout, "foreign key", Severity::Warning, "etcdctl or Go's client");
    assert!(foreign.advice.as_deref().unwrap().contains("layout=raw"), "{foreign:?}");

    let raw = open(&format!("{url}&layout=raw")).await;
    let shared = raw.locate(name.as_str()).await.unwrap();
    expect(&shared, "foreign keys", Severity::Ok, &format!("1 in the same queue: {name}/{lease}"));
    expect_only(&shared, Severity::Warning, &[]);

    server.ctl(&["put", &format!("{name}/orphan"), ""]);
    let shared = raw.locate(name.as_str()).await.unwrap();
    let orphan = expect(&shared, "foreign keys", Severity::Warning, "orphan has no lease");
    assert!(orphan.advice.as_deref().unwrap().contains("etcdctl del"), "{orphan:?}");

    let single = open(&format!("{url}&layout=single")).await.locate(name.as_str()).await.unwrap();
    expect(&single, "foreign key", Severity::Warning, "etcdctl or Go's client");
    server.ctl(&["del", "--prefix", &prefix]);
}
