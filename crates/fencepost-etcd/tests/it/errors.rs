//! Errors while connecting name the reason and a hint, and never contain the password.

use std::error::Error as _;
use std::net::{Ipv4Addr, TcpListener};
use std::path::Path;

use fencepost_core::{Error, ErrorKind};
use fencepost_testkit::TestBench;
use fencepost_testkit::servers::etcd::{EtcdServer, EtcdServerConfig, TlsClients, shared};
use fencepost_testkit::wait;
use fencepost_testkit::wire::Wire;

use crate::actions::{LONG_TTL, connect, hold};
use crate::bench::{EtcdBench, Server};
use crate::configurations::{certificates, secured};

const SECRET: &str = "hunter2hunter2";

/// Returns everything that an error prints, and checks that the password is not in it.
fn text_of(error: &Error) -> String {
    let sources = std::iter::successors(error.source(), |source| (*source).source());
    let sources: Vec<String> = sources.map(|source| format!("{source} {source:?}")).collect();
    let text =
        format!("{error} {error:?} {error:#?} {} {:?} {sources:?}", error.full_message(), error.hint());
    assert!(!text.contains(SECRET), "{text}");
    text
}

/// Expects that connecting fails with an error of this kind whose text contains these words.
async fn refused(url: &str, kind: ErrorKind, words: &str) {
    let Err(error) = fencepost_etcd::connect(url).await else {
        panic!("it connected");
    };
    let text = text_of(&error);
    assert_eq!(error.kind(), kind, "{text}");
    assert!(text.contains(words), "{text}");
}

fn at(port: u16) -> String {
    format!("etcd://u:{SECRET}@127.0.0.1:{port}")
}

fn closed_port() -> u16 {
    TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap().local_addr().unwrap().port()
}

/// Returns a port where a server that is not etcd listens until the process ends.
fn listen(serve: impl Fn(std::net::TcpStream) + Send + Copy + 'static) -> u16 {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let port = listener.local_addr().unwrap().port();
    std::thread::spawn(move || {
        for stream in listener.incoming().map_while(Result::ok) {
            std::thread::spawn(move || serve(stream));
        }
    });
    port
}

#[tokio::test]
async fn a_closed_port_is_unreachable_with_a_hint() {
    let (one, two) = (closed_port(), closed_port());
    refused(&at(one), ErrorKind::Unreachable, "not reachable").await;
    refused(&at(one), ErrorKind::Unreachable, "2379").await;
    let both = format!("etcd://u:{SECRET}@127.0.0.1:{one},127.0.0.1:{two}");
    refused(&both, ErrorKind::Unreachable, "not reachable").await;
    refused("etcd://no.such.host.invalid", ErrorKind::Unreachable, "not reachable").await;
}

/// Members that are down or do not respond do not matter if another one responds.
#[tokio::test]
async fn one_responding_member_is_enough() {
    let silent = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let silent = silent.local_addr().unwrap().port();
    let (closed, good) = (closed_port(), shared().port());
    connect(&format!("etcd://127.0.0.1:{closed},127.0.0.1:{silent},127.0.0.1:{good}?namespace=errors")).await;
}

#[tokio::test]
async fn a_server_that_is_not_etcd_is_unreachable_with_a_hint() {
    let echo = listen(|stream| {
        let _ = std::io::copy(&mut &stream, &mut &stream);
    });
    refused(&at(echo), ErrorKind::Unreachable, "is it an etcd server").await;
    let web = listen(|mut stream| {
        use std::io::{Read, Write};
        let _ = stream.read(&mut [0; 1024]);
        let _ = stream.write_all(b"HTTP/1.1 400 Bad Request\r\nConnection: close\r\n\r\n");
    });
    refused(&at(web), ErrorKind::Unreachable, "is it an etcd server").await;
    let silent = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    refused(&at(silent.local_addr().unwrap().port()), ErrorKind::Unreachable, "not reachable").await;
}

#[tokio::test]
async fn a_wrong_password_is_denied() {
    let server = secured();
    refused(&at(server.port()), ErrorKind::Denied, "rejects the user or the password").await;
    let wrong = format!("etcd://guest:{SECRET}@127.0.0.1:{}", server.port());
    refused(&wrong, ErrorKind::Denied, "rejects the user or the password").await;
    let without = format!("etcd://127.0.0.1:{}", server.port());
    refused(&without, ErrorKind::Denied, "etcd://USER:PASSWORD@HOST").await;
}

#[tokio::test]
async fn a_user_without_permissions_gets_a_hint() {
    refused(&secured().url_as("guest"), ErrorKind::Denied, "fencepost rights").await;
    let server = EtcdServer::start(&EtcdServerConfig::plain().with_user("app", SECRET));
    let url = format!("{}?namespace=mine", server.url_as("app"));
    refused(&url, ErrorKind::Denied, "fencepost rights").await;
    server.ctl(&["role", "add", "mine"]);
    server.ctl(&["user", "grant-role", "app", "mine"]);
    server.ctl(&["role", "grant-permission", "mine", "--prefix=true", "readwrite", "mine/"]);
    let client = connect(&url).await;
    server.ctl(&["role", "revoke-permission", "mine", "--prefix=true", "mine/"]);
    let error = client.lock("a").try_acquire().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Denied, "{error}");
    assert!(text_of(&error).contains("fencepost rights"), "{error}");
    let error = client.inspect("a").await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Denied, "{error}");
}

#[tokio::test]
async fn tls_needs_the_right_certificates() {
    let server = secured();
    let made = server.certificates();
    let path = |path: &Path| path.to_str().unwrap().to_owned();
    let (ca, other_ca) = (path(&made.ca), path(&made.other_ca));
    let url = |options: &str| {
        format!("etcds://root:root-secret@localhost:{}?namespace=tls&{options}", server.tls_port())
    };
    let known = certificates(server);
    let known = known.trim_start_matches('&');
    let connects = |options: String| async move { fencepost_etcd::connect(&url(&options)).await.map(drop) };
    connects(known.to_owned()).await.unwrap();
    let misled = known.replace(&ca, &other_ca);
    refused(&url(&misled), ErrorKind::Denied, "which CA signed its certificate").await;
    refused(&url(&format!("tls_ca={ca}")), ErrorKind::Denied, "tls_cert").await;
    connects(format!("{known}&tls_server_name=localhost")).await.unwrap();
    refused(&url(&format!("{known}&tls_server_name=other")), ErrorKind::Denied, "certificate").await;
    connects(format!("{misled}&tls_server_name=other&tls_insecure=true")).await.unwrap();
    refused(&url("tls_ca=/no/such/file"), ErrorKind::BadConfig, "/no/such/file").await;
    let swapped = format!("tls_ca={ca}&tls_cert={}&tls_key={ca}", path(&made.client_cert));
    refused(&url(&swapped), ErrorKind::BadConfig, "key").await;
}

#[tokio::test]
async fn no_client_certificate_is_needed_where_none_is_required() {
    let server = EtcdServer::start(&EtcdServerConfig::plain().with_tls(TlsClients::All));
    let url = format!("{}?tls_ca={}", server.tls_url(), server.certificates().ca.display());
    let client = connect(&url).await;
    assert!(client.lock("a").try_acquire().await.unwrap().is_some());
    refused(&server.tls_url(), ErrorKind::Denied, "tls_ca").await;
}

#[tokio::test]
async fn tls_on_a_plain_port_and_the_other_way_round() {
    let plain = shared().port();
    refused(&format!("etcds://u:{SECRET}@localhost:{plain}"), ErrorKind::Unreachable, "is it a TLS port")
        .await;
    refused(&at(secured().tls_port()), ErrorKind::Unreachable, "etcds://").await;
}

/// Another cluster responds at one of the addresses: no request is sent to it, and the error has a hint.
#[tokio::test]
async fn another_cluster_is_rejected() {
    let (first, second) =
        (EtcdServer::start(&EtcdServerConfig::plain()), EtcdServer::start(&EtcdServerConfig::plain()));
    let (to_first, to_second) = (Wire::to(first.port()), Wire::to(second.port()));
    let url = format!("etcd://127.0.0.1:{},127.0.0.1:{}?namespace=ns", to_first.port(), to_second.port());
    let client = connect(&url).await;
    let guard = hold(&client.lock("a").ttl(LONG_TTL)).await;
    to_first.cut();
    let error = client.lock("b").ttl(LONG_TTL).try_acquire().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Backend, "{error}");
    assert!(text_of(&error).contains("another cluster") && error.hint().is_some(), "{error}");
    assert_eq!(second.ctl(&["get", "--prefix", "ns/", "--keys-only"]), "");
    to_first.heal();
    wait::within_timeout("it is released", guard.release()).await.unwrap();
}

/// A key `about` that another program has written is not overwritten.
#[tokio::test]
async fn a_namespace_of_another_program_is_not_overwritten() {
    let bench = EtcdBench::at(&shared().url(), "", Server::Shared(shared()));
    let about = format!("{}/about", bench.namespace());
    bench.ctl(&["put", &about, "foreign"]);
    refused(bench.url(), ErrorKind::Backend, "namespace").await;
    bench.ctl(&["put", &about, "{\"format\":999,\"storage_id\":\"1\"}"]);
    refused(bench.url(), ErrorKind::Backend, "format 999").await;
    assert_eq!(bench.keys(), ["about"]);
    bench.ctl(&["del", &about]);
    bench.client().await;
}
