//! The doctor's findings about encryption and authentication on real servers.

use fencepost_core::{Finding, Options, Severity};
use fencepost_testkit::servers::redis::{RedisServer, RedisServerConfig, shared};

use crate::deployments::{certificates, encrypted};

const PASSWORD: &str = "hunter2hunter2";

async fn diagnose(url: &str) -> Vec<Finding> {
    let options = Options::new().only_existing();
    let client = fencepost_redis::connect_with(url, options).await.expect("the client connects");
    let findings = client.diagnose().await.unwrap();
    client.close().await;
    assert!(!format!("{findings:?}").contains(PASSWORD), "{findings:?}");
    findings
}

#[track_caller]
fn expect_ok(findings: &[Finding], check: &str, found: &str) {
    let finding = findings.iter().find(|finding| finding.check == check).expect("it is checked");
    assert_eq!(finding.severity, Severity::Ok, "{finding}");
    assert!(finding.found.starts_with(found), "{found:?} is not the start of {finding}");
}

#[tokio::test]
async fn a_plain_server_on_this_host_needs_no_password() {
    let findings = diagnose(&shared().url()).await;
    expect_ok(&findings, "encryption", "none");
    expect_ok(&findings, "authentication", "no password, on this host, as user default");
}

#[tokio::test]
async fn a_password_in_plain_text_is_ok_on_this_host() {
    let server = RedisServer::start(&RedisServerConfig::plain().with_password(PASSWORD));
    let findings = diagnose(&server.url()).await;
    expect_ok(&findings, "encryption", "none");
    expect_ok(&findings, "authentication", "with a password, as user default");
}

#[tokio::test]
async fn tls_and_a_client_certificate_are_reported() {
    let server = encrypted();
    let url = format!("{}?namespace=test-doctor{}", server.tls_url(), certificates(server));
    let findings = diagnose(&url).await;
    expect_ok(&findings, "encryption", "TLS");
    expect_ok(&findings, "authentication", "no password, with a client certificate, as user default");
}

/// A user with the printed rights, first without those for the doctor.
#[tokio::test]
async fn the_user_is_reported_if_that_is_permitted() {
    let server = RedisServer::start(&RedisServerConfig::plain().with_user("app", PASSWORD, "-@all"));
    let url = server.url_as("app");
    let rights = fencepost_redis::rights(&url).unwrap().replace("SETUSER USER", "SETUSER app");
    let [needed, doctor] = ["ACL SETUSER app on >PASSWORD ", "ACL SETUSER app +"].map(|start| {
        let line = rights.lines().find(|line| line.starts_with(start)).expect("it is printed");
        line.replace("on >PASSWORD ", "")
    });
    let grant = |line: &str| server.cli(&line.split_whitespace().collect::<Vec<_>>());

    grant(&needed);
    let findings = diagnose(&url).await;
    let authentication = findings.iter().find(|finding| finding.check == "authentication").unwrap();
    assert_eq!(authentication.severity, Severity::Ok);
    assert!(authentication.found.starts_with("with a password, user not checked: "), "{authentication}");

    grant(&doctor);
    let findings = diagnose(&url).await;
    expect_ok(&findings, "authentication", "with a password, as user app");
    assert!(!findings.iter().any(|finding| finding.found.contains("not be checked")), "{findings:?}");
}
