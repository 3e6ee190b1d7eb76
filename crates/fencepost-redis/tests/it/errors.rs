//! Errors while connecting: they say what to do, and never contain the password.

use std::error::Error as _;
use std::net::{Ipv4Addr, TcpListener};
use std::path::Path;

use fencepost_core::{Error, ErrorKind};
use fencepost_testkit::servers::redis::{RedisServer, RedisServerConfig, TlsClients, shared};
use fencepost_testkit::wait;

use crate::deployments::{certificates, encrypted, guarded, sentinel_url, spread, watched};

const SECRET: &str = "hunter2hunter2";

/// Returns the error of connecting, and checks that it does not contain the password.
async fn refusal(url: &str) -> Error {
    let Err(error) = fencepost_redis::connect(url).await else {
        panic!("it connects");
    };
    let sources = std::iter::successors(error.source(), |source| (*source).source());
    let sources: Vec<String> = sources.map(|source| format!("{source} {source:?}")).collect();
    let text = format!("{error} {error:?} {error:#?} {:?} {sources:?}", error.hint());
    assert!(!text.contains(SECRET), "{text}");
    error
}

/// Checks that connecting fails with this kind of error and these words.
async fn refused(url: &str, kind: ErrorKind, words: &str) {
    let error = refusal(url).await;
    let hint = error.hint().unwrap_or_default();
    assert_eq!(error.kind(), kind, "{error}: {hint}");
    assert!(format!("{error} {hint}").contains(words), "{error}: {hint}");
}

fn at(port: u16) -> String {
    format!("redis://u:{SECRET}@127.0.0.1:{port}")
}

/// Returns a port at which another program than Redis answers, until the process ends.
fn answering(answer: impl Fn(std::net::TcpStream) + Send + Copy + 'static) -> u16 {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let port = listener.local_addr().unwrap().port();
    std::thread::spawn(move || {
        for stream in listener.incoming().map_while(Result::ok) {
            std::thread::spawn(move || answer(stream));
        }
    });
    port
}

#[tokio::test]
async fn a_server_that_is_down_is_unreachable() {
    let port = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap().local_addr().unwrap().port();
    refused(&at(port), ErrorKind::Unreachable, "is a Redis server running there").await;
    let cluster = format!("redis+cluster://u:{SECRET}@127.0.0.1:{port},127.0.0.1:{port}");
    refused(&cluster, ErrorKind::Unreachable, "could not reach").await;
    let sentinel = format!("redis+sentinel://u:{SECRET}@127.0.0.1:{port}/main?sentinel_password={SECRET}");
    refused(&sentinel, ErrorKind::Unreachable, "could not reach").await;
    refused("redis://no.such.host.invalid", ErrorKind::Unreachable, "could not reach").await;
}

#[tokio::test]
async fn a_server_that_is_not_redis_is_not_retried() {
    let echo = answering(|stream| {
        let _ = std::io::copy(&mut &stream, &mut &stream);
    });
    refused(&at(echo), ErrorKind::BadConfig, "does not reply as a Redis server").await;
    let web = answering(|mut stream| {
        use std::io::{Read, Write};
        let _ = stream.read(&mut [0; 1024]);
        let _ = stream.write_all(b"HTTP/1.1 400 Bad Request\r\nConnection: close\r\n\r\n");
    });
    refused(&at(web), ErrorKind::BadConfig, "does not reply as a Redis server").await;
    let silent = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    refused(&at(silent.local_addr().unwrap().port()), ErrorKind::Unreachable, "could not reach").await;
}

#[tokio::test]
async fn a_wrong_password_is_denied() {
    let port = guarded().port();
    refused(&at(port), ErrorKind::Denied, "does not accept this user and password").await;
    refused(&format!("redis://no-rights:{SECRET}@127.0.0.1:{port}"), ErrorKind::Denied, "user and password")
        .await;
    refused(&format!("redis://:{SECRET}@127.0.0.1:{port}"), ErrorKind::Denied, "user and password").await;
    refused(&format!("redis://127.0.0.1:{port}"), ErrorKind::Denied, "user and password").await;
}

#[tokio::test]
async fn a_missing_right_is_named() {
    let server = RedisServer::start(&RedisServerConfig::plain().with_user("app", SECRET, "+@all ~* &*"));
    let url = server.url_as("app");
    for right in ["script|load", "get", "set", "subscribe"] {
        server.cli(&["ACL", "SETUSER", "app", &format!("-{right}")]);
        refused(&url, ErrorKind::Denied, right).await;
        server.cli(&["ACL", "SETUSER", "app", &format!("+{right}")]);
    }
    server.cli(&["ACL", "SETUSER", "app", "resetchannels"]);
    refused(&url, ErrorKind::Denied, "channel").await;
    server.cli(&["ACL", "SETUSER", "app", "allchannels", "resetkeys"]);
    refused(&url, ErrorKind::Denied, "key").await;
    server.cli(&["ACL", "SETUSER", "app", "allkeys"]);
    let client = fencepost_redis::connect(&url).await.unwrap();
    for right in ["evalsha", "get", "time", "exists"] {
        server.cli(&["ACL", "SETUSER", "app", &format!("-{right}")]);
        let error = client.lock("a").try_acquire().await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Denied, "{error}");
        // The server does not name the right that a script lacks.
        assert!(error.hint().unwrap().contains("fencepost rights"), "{error}");
        server.cli(&["ACL", "SETUSER", "app", &format!("+{right}")]);
    }
    assert!(client.lock("a").try_acquire().await.unwrap().is_some());
}

#[tokio::test]
async fn a_missing_right_to_wait_for_replicas_is_named() {
    let server = RedisServer::start(&RedisServerConfig::plain().with_user("app", SECRET, "+@all ~* &*"));
    let url = format!("{}?replicas=1", server.url_as("app"));
    server.cli(&["ACL", "SETUSER", "app", "-wait"]);
    refused(&url, ErrorKind::Denied, "wait").await;
}

#[tokio::test]
async fn tls_needs_the_right_certificates() {
    let server = encrypted();
    let made = server.certificates();
    let path = |path: &Path| path.to_str().unwrap().to_owned();
    let (ca, other_ca) = (path(&made.ca), path(&made.other_ca));
    let url = |options: &str| format!("rediss://localhost:{}?{options}", server.tls_port());
    let known = certificates(server);
    let connects = |options: String| async move { fencepost_redis::connect(&url(&options)).await.map(drop) };
    connects(format!("namespace=tls{known}")).await.unwrap();
    let with_other_ca = known.replace(&ca, &other_ca);
    refused(&url(&with_other_ca), ErrorKind::Denied, "which CA signed its certificate").await;
    refused(&url(&format!("tls_ca={ca}")), ErrorKind::Denied, "tls_cert").await;
    connects(format!("{known}&tls_server_name=localhost")).await.unwrap();
    refused(&url(&format!("{known}&tls_server_name=other")), ErrorKind::Denied, "certificate").await;
    connects(format!("{with_other_ca}&tls_server_name=other&tls_insecure=true")).await.unwrap();
    refused(&url("tls_ca=/no/such/file"), ErrorKind::BadConfig, "/no/such/file").await;
    let swapped = format!("tls_ca={ca}&tls_cert={}&tls_key={ca}", path(&made.client_cert));
    refused(&url(&swapped), ErrorKind::BadConfig, "key").await;
}

#[tokio::test]
async fn no_client_certificate_is_needed_where_none_is_required() {
    let server = RedisServer::start(&RedisServerConfig::plain().with_tls(TlsClients::All));
    let url = format!("{}?tls_ca={}", server.tls_url(), server.certificates().ca.display());
    let client = fencepost_redis::connect(&url).await.unwrap();
    assert!(client.lock("a").try_acquire().await.unwrap().is_some());
    refused(&server.tls_url(), ErrorKind::Denied, "tls_ca").await;
}

#[tokio::test]
async fn tls_on_a_plain_port_and_the_other_way_round() {
    let plain = shared().port();
    refused(&format!("rediss://u:{SECRET}@localhost:{plain}"), ErrorKind::Unreachable, "is it a TLS port")
        .await;
    refused(&at(encrypted().tls_port()), ErrorKind::Unreachable, "rediss://").await;
}

#[tokio::test]
async fn a_server_that_does_not_speak_resp3() {
    let server = RedisServer::start(&RedisServerConfig::plain().with_config("rename-command HELLO \"\""));
    refused(&server.url(), ErrorKind::Unsupported, "Redis 6 or newer").await;
}

#[tokio::test]
async fn the_scheme_must_match_a_single_server_or_a_cluster() {
    let single = format!("redis+cluster://127.0.0.1:{}", shared().port());
    refused(&single, ErrorKind::BadConfig, "redis:// is for a single server").await;
    for port in spread().ports() {
        refused(&format!("redis://127.0.0.1:{port}"), ErrorKind::BadConfig, "redis+cluster://").await;
    }
}

/// An `about` key of another program or of another format is not overwritten.
#[tokio::test]
async fn a_namespace_of_another_program_or_format_is_left_alone() {
    let server = RedisServer::start(&RedisServerConfig::plain());
    let id = "00112233445566778899aabbccddeeff";
    for (about, words) in
        [("theirs", "is invalid"), ("1 theirs", "is invalid"), (&format!("2 {id}"), "format 2")]
    {
        server.cli(&["SET", "fencepost:about", about]);
        refused(&server.url(), ErrorKind::Backend, words).await;
        refused(&server.url(), ErrorKind::Backend, "?namespace=NAME").await;
        assert_eq!(server.cli(&["GET", "fencepost:about"]).trim(), about);
    }
    server.cli(&["SET", "fencepost:about", &format!("1 {id}")]);
    let client = fencepost_redis::connect(&server.url()).await.unwrap();
    let guard = client.lock("a").try_acquire().await.unwrap().unwrap();
    assert_eq!(guard.storage_id().to_string(), id);
}

/// Tokens of different data sets are not ordered, so a client does not continue with another one.
#[tokio::test]
async fn data_whose_identity_changes_is_rejected() {
    let server = RedisServer::start(&RedisServerConfig::plain());
    let client = fencepost_redis::connect(&server.url()).await.unwrap();
    server.cli(&["SET", "fencepost:about", "1 00112233445566778899aabbccddeeff"]);
    server.cli(&["CLIENT", "KILL", "TYPE", "pubsub"]);
    wait::until("the other identity is noticed", async || {
        let refused = client.lock("a").try_acquire().await.err();
        refused.is_some_and(|error| error.to_string().contains("its identity has changed"))
    })
    .await;
}

#[tokio::test]
async fn the_scheme_must_match_a_server_or_a_sentinel() {
    let group = watched();
    let sentinel = group.sentinel_ports()[0];
    refused(&format!("redis://127.0.0.1:{sentinel}"), ErrorKind::BadConfig, "redis+sentinel://").await;
    let server = format!("redis+sentinel://127.0.0.1:{}/{}", shared().port(), "main");
    refused(&server, ErrorKind::BadConfig, "sentinel").await;
    let other = sentinel_url(group).replace("/fencepost", "/other");
    refused(&other, ErrorKind::BadConfig, "know no such primary").await;
}

/// Sentinels that are down or do not answer do not matter if another one answers.
#[tokio::test]
async fn one_sentinel_that_answers_is_enough() {
    let [.., last] = watched().sentinel_ports();
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let silent = listener.local_addr().unwrap().port();
    let url = format!("redis+sentinel://127.0.0.1:1,127.0.0.1:{silent},127.0.0.1:{last}/fencepost");
    fencepost_redis::connect(&url).await.unwrap();
}
