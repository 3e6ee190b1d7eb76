//! Passwords, tokens and rights.

use fencepost_net::{Encryption, Tls};
use fencepost_testkit::servers::etcd::{EtcdServer, EtcdServerConfig, TlsClients};

use super::*;

const PASSWORD: &str = "hunter2";

/// A server on which `ann` may do everything below `test/`.
fn server() -> EtcdServer {
    let server = EtcdServer::start(&EtcdServerConfig::plain().with_user("ann", PASSWORD));
    server.ctl(&["role", "add", "tester"]);
    server.ctl(&["role", "grant-permission", "tester", "--prefix=true", "readwrite", "test/"]);
    server.ctl(&["user", "grant-role", "ann", "tester"]);
    server
}

async fn open_as(server: &EtcdServer, password: &str) -> Result<Opened> {
    open_with(setup(&[server.port()], account("ann", password))).await
}

/// No token that was given before is good any more.
fn forget_tokens(server: &EtcdServer) {
    server.ctl(&["auth", "disable"]);
    server.ctl(&["auth", "enable"]);
}

#[tokio::test]
async fn a_wrong_password_is_denied_and_not_shown() {
    let server = server();
    let Err(error) = open_as(&server, "wrong-secret").await else { panic!("it was let in") };
    assert_eq!(error.kind(), ErrorKind::Denied);
    assert!(!format!("{error:?} {}", error.full_message()).contains("wrong-secret"));
}

#[tokio::test]
async fn nobody_is_let_in_without_an_account() {
    let server = server();
    let opened = open(&[server.port()]).await;
    let failed = opened.put(&new_key(), "").await.unwrap_err();
    let Failure::Failed(error) = failed else { panic!("{failed:?}") };
    assert_eq!(error.kind(), ErrorKind::Denied);
    assert!(error.hint().is_some());
}

#[tokio::test]
async fn whoever_needs_no_password_may_have_one() {
    let port = fencepost_testkit::servers::etcd::shared().port();
    let opened = open_with(setup(&[port], account("ann", PASSWORD))).await.unwrap();
    opened.put(&new_key(), "").await.unwrap();
}

#[tokio::test]
async fn what_is_not_granted_is_denied() {
    let server = server();
    let mut opened = open_as(&server, PASSWORD).await.unwrap();
    assert_eq!(kind(opened.put("elsewhere", "").await), ErrorKind::Denied);
    let id = opened.watch("elsewhere", 0);
    let (of, what) = opened.event().await;
    assert!(of == id && matches!(what, Change::Refused), "{what:?}");
    // The others go on.
    let key = new_key();
    let revision = opened.put(&key, "").await.unwrap();
    opened.watch(&key, revision);
    assert!(matches!(opened.event().await.1, Change::Put { .. }));
}

#[tokio::test]
async fn a_token_that_is_not_good_any_more_is_replaced() {
    let server = server();
    let (opened, key) = (open_as(&server, PASSWORD).await.unwrap(), new_key());
    opened.put(&key, "a").await.unwrap();
    forget_tokens(&server);
    assert_eq!(opened.value(&key).await.unwrap().as_deref(), Some("a"));
    forget_tokens(&server);
    let granted = opened.link.lease_grant(60, 0, PATIENCE).await.unwrap();
    forget_tokens(&server);
    assert_eq!(opened.link.keep_alive(granted.id, PATIENCE).await.unwrap().ttl_secs, 60);
    // A server that starts again knows no token either.
    server.restart();
    wait::until("the server is noticed", async || opened.put(&key, "b").await.is_ok()).await;
}

#[tokio::test]
async fn a_watch_is_made_on_a_stream_whose_token_is_not_good_any_more() {
    let server = server();
    let mut opened = open_as(&server, PASSWORD).await.unwrap();
    let keys = [new_key(), new_key()];
    let revision = opened.put(&keys[0], "a").await.unwrap();
    let first = opened.watch(&keys[0], revision);
    assert_eq!(opened.event().await.0, first);
    forget_tokens(&server);
    let second = opened.watch(&keys[1], revision);
    opened.put(&keys[1], "b").await.unwrap();
    assert_eq!(opened.event().await.0, second);
    // The first one goes on where it was.
    opened.put(&keys[0], "c").await.unwrap();
    assert_eq!(opened.event().await.0, first);
}

async fn open_encrypted(server: &EtcdServer, tls: &Tls) -> Result<Opened> {
    let member = Address { host: "localhost".into(), port: server.tls_port() };
    let encryption = Some(Encryption::new(tls)?.with_alpn("h2"));
    let setup = setup(&[], Account::default());
    open_with(Setup { members: vec![member], encryption, ..setup }).await
}

#[tokio::test]
async fn an_encrypted_connection_needs_the_right_certificates() {
    let server = EtcdServer::start(&EtcdServerConfig::plain().with_tls(TlsClients::WithCertificate));
    let made = server.certificates().clone();
    let identity = Some((made.client_cert, made.client_key));
    let known = Tls { ca: Some(made.ca), identity, ..Tls::default() };
    let opened = open_encrypted(&server, &known).await.unwrap();
    let key = new_key();
    let revision = opened.put(&key, "a").await.unwrap();
    opened.watch(&key, revision);
    assert_eq!(opened.value(&key).await.unwrap().as_deref(), Some("a"));

    let stranger = Tls { identity: None, ..known.clone() };
    let Err(error) = open_encrypted(&server, &stranger).await else { panic!("it was let in") };
    assert_eq!(error.kind(), ErrorKind::Denied, "{}", error.full_message());
    let strange = Tls { ca: Some(made.other_ca), ..known };
    let Err(error) = open_encrypted(&server, &strange).await else { panic!("it was trusted") };
    assert_eq!(error.kind(), ErrorKind::Denied, "{}", error.full_message());
}

#[tokio::test]
async fn whoever_does_not_encrypt_where_it_is_expected_is_told() {
    let server = EtcdServer::start(&EtcdServerConfig::plain().with_tls(TlsClients::All));
    let Err(error) = open_with(setup(&[server.tls_port()], Account::default())).await else { panic!("how?") };
    assert_eq!(error.kind(), ErrorKind::Unreachable, "{}", error.full_message());
    assert!(error.hint().is_some_and(|hint| hint.contains("etcds://")), "{error:?}");
}
