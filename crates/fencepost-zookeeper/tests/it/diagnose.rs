//! The doctor on real servers, healthy and not.

use fencepost_core::{Client, Finding, Severity};
use fencepost_testkit::servers::TlsClients;
use fencepost_testkit::servers::zookeeper::{Ensemble, ZooKeeperServer, ZooKeeperServerConfig, shared};
use zookeeper_client::{Acls, CreateMode};

use crate::actions::{LONG_TTL, connect, hold};
use crate::bench::ZooKeeperBench;

async fn diagnose(url: &str) -> Vec<Finding> {
    connect(url).await.diagnose().await.unwrap()
}

async fn locate(client: &Client, name: &str) -> Vec<Finding> {
    client.locate(name).await.unwrap()
}

#[track_caller]
fn expect<'a>(findings: &'a [Finding], check: &str, severity: Severity, found: &str) -> &'a Finding {
    let finding = findings.iter().find(|finding| finding.check == check).expect("it is checked");
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

#[tokio::test]
async fn a_healthy_server_without_acls_has_one_warning() {
    let bench = ZooKeeperBench::plain();
    let findings = diagnose(&bench.direct()).await;
    expect_only(&findings, Severity::Problem, &[]);
    expect_only(&findings, Severity::Warning, &["rights"]);
    expect(&findings, "server", Severity::Ok, "ZooKeeper 3.");
    expect(&findings, "servers", Severity::Ok, "1 of 1 serve");
    expect(&findings, "leader", Severity::Ok, "(standalone)");
    expect(&findings, "leases", Severity::Ok, "ttl from ");
    expect(&findings, "rights", Severity::Warning, "every client that reaches a server");
}

#[tokio::test]
async fn nodes_of_a_user_are_closed_to_other_clients() {
    let url = format!("zk://ann:hunter2@127.0.0.1:{}/users-{:x}", shared().port(), rand::random::<u64>());
    let findings = diagnose(&url).await;
    expect(&findings, "authentication", Severity::Ok, "ann, by digest");
    expect(&findings, "rights", Severity::Ok, "only known accounts");
    expect_only(&findings, Severity::Warning, &[]);
    assert!(!format!("{findings:?}").contains("hunter2"));
}

#[tokio::test]
async fn a_session_timeout_below_the_default_ttl_is_a_warning() {
    let server =
        ZooKeeperServer::start(&ZooKeeperServerConfig::plain().with_config("maxSessionTimeout=5000"));
    let findings = diagnose(&server.url()).await;
    expect(&findings, "leases", Severity::Warning, "get 5s instead of 30s");
    expect_only(&findings, Severity::Warning, &["leases", "rights"]);
}

#[tokio::test]
async fn servers_are_queried_over_tls_too() {
    let server = ZooKeeperServer::start(&ZooKeeperServerConfig::plain().with_tls(TlsClients::All));
    let url = format!("{}&tls_ca={}", server.tls_url(), server.certificates().ca.display());
    let findings = diagnose(&url).await;
    expect(&findings, "encryption", Severity::Ok, "TLS");
    expect(&findings, "servers", Severity::Ok, "1 of 1 serve");
}

#[tokio::test]
async fn servers_that_are_down_or_not_named_are_warnings() {
    let ensemble = Ensemble::start();
    ensemble.wait_until_healthy();
    let findings = diagnose(&ensemble.url()).await;
    expect(&findings, "servers", Severity::Ok, "3 of 3 serve; 1 can fail");
    expect(&findings, "failover", Severity::Ok, "the URL names 3 servers");
    let leader = ensemble.ports()[ensemble.leader()];
    expect(&findings, "leader", Severity::Ok, &format!("127.0.0.1:{leader}"));
    expect_only(&findings, Severity::Warning, &["rights"]);

    let one = diagnose(&ensemble.server(ensemble.follower()).url()).await;
    expect(&one, "failover", Severity::Warning, "1 of 3 servers");
    expect(&one, "leader", Severity::Ok, "none of the servers");

    let down = ensemble.follower();
    ensemble.server(down).kill();
    let findings = diagnose(&ensemble.url()).await;
    let port = ensemble.ports()[down];
    expect(&findings, "servers", Severity::Warning, &format!("2 of 3 serve; 127.0.0.1:{port} does not: "));
    expect_only(&findings, Severity::Problem, &[]);
}

#[tokio::test]
async fn a_lock_and_foreign_nodes_are_located() {
    let bench = ZooKeeperBench::plain();
    let client = connect(&bench.direct()).await;
    let guard = hold(&client.lock("it's/a").ttl(LONG_TTL).label("ours")).await;
    let found = locate(&client, "it's/a").await;
    let lock_node = expect(&found, "lock's node", Severity::Ok, "/it's%2Fa (1 first in the queue, 0 behind");
    assert!(lock_node.found.contains("\"ours\""), "{lock_node}");
    assert!(lock_node.advice.as_deref().unwrap().contains(r"it'\''s%2Fa'"), "{lock_node:?}");
    expect(&found, "cell's node", Severity::Ok, "nothing there now");
    expect(&found, "peers", Severity::Ok, "InterProcessMutex");
    expect_only(&found, Severity::Warning, &[]);

    let driver = bench.driver().await;
    let node = lock_node.found.split(' ').next().unwrap();
    let all = Acls::anyone_all();
    let entry = CreateMode::EphemeralSequential.with_acls(all);
    let curator = format!("{node}/_c_0f1e2d3c-4b5a-6978-8796-a5b4c3d2e1f0-lock-");
    driver.create(&curator, b"", &entry).await.unwrap();
    let found = locate(&client, "it's/a").await;
    expect(&found, "lock's node", Severity::Ok, "1 first in the queue, 1 behind");
    expect(&found, "foreign nodes", Severity::Ok, "Curator, in session 0x");

    // Scenario 69: nodes of a client that does not wait for Fencepost's are a problem.
    let kazoo = format!("{node}/0f1e2d3c4b5a69788796a5b4c3d2e1f0__lock__");
    let (_, number) = driver.create(&kazoo, b"host", &entry).await.unwrap();
    let found = locate(&client, "it's/a").await;
    let problem = expect(
        &found,
        "foreign nodes",
        Severity::Problem,
        "kazoo, which does not wait for Fencepost's nodes",
    );
    assert!(problem.advice.as_deref().unwrap().contains("dialect=kazoo"), "{problem:?}");
    driver.delete(&format!("{kazoo}{number}"), None).await.unwrap();

    driver
        .create(&format!("{node}/lock-"), b"", &CreateMode::PersistentSequential.with_acls(all))
        .await
        .unwrap();
    driver.create(&format!("{node}/leases"), b"", &CreateMode::Persistent.with_acls(all)).await.unwrap();
    let found = locate(&client, "it's/a").await;
    expect(&found, "foreign nodes", Severity::Warning, "is not ephemeral");
    expect(&found, "other nodes", Severity::Warning, "leases");
    driver.create(&format!("{node}/leases/lease-"), b"", &entry).await.unwrap();
    let found = locate(&client, "it's/a").await;
    expect(&found, "other nodes", Severity::Problem, "InterProcessSemaphoreV2");
    guard.release().await.unwrap();
}
