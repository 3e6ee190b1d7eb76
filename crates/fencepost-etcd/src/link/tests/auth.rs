//! Passwords, auth tokens, permissions and TLS.

use fencepost_net::{Encryption, Tls};
use fencepost_testkit::servers::etcd::{EtcdServer, EtcdServerConfig, TlsClients};

use super::*;

const PASSWORD: &str = "hunter2";

/// Starts a server on which `ann` may read and write below `test/`.
fn server() -> EtcdServer {
    let server = EtcdServer::start(&EtcdServerConfig::plain().with_user("ann", PASSWORD));
    server.ctl(&["role", "add", "tester"]);
    server.ctl(&["role", "grant-permission", "tester", "--prefix=true", "readwrite", "test/"]);
    server.ctl(&["user", "grant-role", "ann", "tester"]);
    server
}

async fn open_as(server: &EtcdServer, password: &str) -> Result<TestLink> {
    open_with(config(&[server.port()], account("ann", password))).await
}

/// Invalidates all auth tokens.
fn invalidate_tokens(server: &EtcdServer) {
    server.ctl(&["auth", "disable"]);
    server.ctl(&["auth", "enable"]);
}

#[tokio::test]
async fn a_wrong_password_is_denied_and_not_shown() {
    let server = server();
    let Err(error) = open_as(&server, "wrong-secret").await else { panic!("it was accepted") };
    assert_eq!(error.kind(), ErrorKind::Denied);
    assert!(!format!("{error:?} {}", error.full_message()).contains("wrong-secret"));
}

#[tokio::test]
async fn a_client_without_an_account_is_denied() {
    let server = server();
    let test = open(&[server.port()]).await;
    let failed = test.put(&new_key(), "").await.unwrap_err();
    let Failure::Failed(error) = failed else { panic!("{failed:?}") };
    assert_eq!(error.kind(), ErrorKind::Denied);
    assert!(error.hint().is_some());
}

#[tokio::test]
async fn an_account_is_accepted_where_authentication_is_off() {
    let port = fencepost_testkit::servers::etcd::shared().port();
    let test = open_with(config(&[port], account("ann", PASSWORD))).await.unwrap();
    test.put(&new_key(), "").await.unwrap();
}

#[tokio::test]
async fn keys_without_permission_are_denied() {
    let server = server();
    let mut test = open_as(&server, PASSWORD).await.unwrap();
    assert_eq!(kind(test.put("elsewhere", "").await), ErrorKind::Denied);
    let id = test.watch("elsewhere", 0);
    let (from, change) = test.event().await;
    assert!(from == id && matches!(change, Change::Refused), "{change:?}");
    // Other watches continue.
    let key = new_key();
    let revision = test.put(&key, "").await.unwrap();
    test.watch(&key, revision);
    assert!(matches!(test.event().await.1, Change::Put { .. }));
}

#[tokio::test]
async fn an_invalid_token_is_replaced() {
    let server = server();
    let (test, key) = (open_as(&server, PASSWORD).await.unwrap(), new_key());
    test.put(&key, "a").await.unwrap();
    invalidate_tokens(&server);
    assert_eq!(test.value(&key).await.unwrap().as_deref(), Some("a"));
    invalidate_tokens(&server);
    let granted = test.link.lease_grant(60, 0, TIMEOUT).await.unwrap();
    invalidate_tokens(&server);
    assert_eq!(test.link.keep_alive(granted.id, TIMEOUT).await.unwrap().ttl_secs, 60);
    // A restarted server knows no token either.
    server.restart();
    wait::until("the server is noticed", async || test.put(&key, "b").await.is_ok()).await;
}

#[tokio::test]
async fn a_watch_is_created_on_a_stream_whose_token_is_invalid() {
    let server = server();
    let mut test = open_as(&server, PASSWORD).await.unwrap();
    let keys = [new_key(), new_key()];
    let revision = test.put(&keys[0], "a").await.unwrap();
    let first = test.watch(&keys[0], revision);
    assert_eq!(test.event().await.0, first);
    invalidate_tokens(&server);
    let second = test.watch(&keys[1], revision);
    test.put(&keys[1], "b").await.unwrap();
    assert_eq!(test.event().await.0, second);
    // The first one continues.
    test.put(&keys[0], "c").await.unwrap();
    assert_eq!(test.event().await.0, first);
}

async fn open_encrypted(server: &EtcdServer, tls: &Tls) -> Result<TestLink> {
    let member = Address { host: "localhost".into(), port: server.tls_port() };
    let encryption = Some(Encryption::new(tls)?.with_alpn("h2"));
    let config = config(&[], Account::default());
    open_with(LinkConfig { members: vec![member], encryption, ..config }).await
}

#[tokio::test]
async fn an_encrypted_connection_needs_the_right_certificates() {
    let server = EtcdServer::start(&EtcdServerConfig::plain().with_tls(TlsClients::WithCertificate));
    let certificates = server.certificates().clone();
    let identity = Some((certificates.client_cert, certificates.client_key));
    let trusted = Tls { ca: Some(certificates.ca), identity, ..Tls::default() };
    let test = open_encrypted(&server, &trusted).await.unwrap();
    let key = new_key();
    let revision = test.put(&key, "a").await.unwrap();
    test.watch(&key, revision);
    assert_eq!(test.value(&key).await.unwrap().as_deref(), Some("a"));

    let anonymous = Tls { identity: None, ..trusted.clone() };
    let Err(error) = open_encrypted(&server, &anonymous).await else { panic!("it was accepted") };
    assert_eq!(error.kind(), ErrorKind::Denied, "{}", error.full_message());
    let wrong_ca = Tls { ca: Some(certificates.other_ca), ..trusted };
    let Err(error) = open_encrypted(&server, &wrong_ca).await else { panic!("it was trusted") };
    assert_eq!(error.kind(), ErrorKind::Denied, "{}", error.full_message());
}

#[tokio::test]
async fn a_plain_connection_to_a_tls_port_fails_with_a_hint() {
    let server = EtcdServer::start(&EtcdServerConfig::plain().with_tls(TlsClients::All));
    let Err(error) = open_with(config(&[server.tls_port()], Account::default())).await else {
        panic!("it connected")
    };
    assert_eq!(error.kind(), ErrorKind::Unreachable, "{}", error.full_message());
    assert!(error.hint().is_some_and(|hint| hint.contains("etcds://")), "{error:?}");
}
