//! Further configurations of etcd servers.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, TcpStream};
use std::process::Command;
use std::time::Duration;

use fencepost_testkit::servers::etcd::{EtcdCluster, EtcdServer, EtcdServerConfig, TlsClients};
use fencepost_testkit::wait;

use crate::servers::state;

/// Reads a key that does not exist; succeeds if the server replies.
const LOOK: [&str; 3] = ["get", "nothing", "--command-timeout=1s"];

#[test]
fn a_user_has_exactly_the_rights_it_is_given() {
    let server = EtcdServer::start(&EtcdServerConfig::plain().with_user("app", "word"));
    assert!(server.try_ctl_as("app", &["get", "app/x"]).unwrap_err().contains("permission denied"));
    for line in [
        "etcdctl role add locks",
        "etcdctl role grant-permission locks --prefix=true readwrite 'app/'",
        "etcdctl user grant-role app locks",
    ] {
        server.run_shell(line);
    }
    assert_eq!(server.try_ctl_as("app", &["put", "app/x", "1"]), Ok("OK".into()));
    assert!(server.try_ctl_as("app", &["put", "other", "1"]).unwrap_err().contains("permission denied"));
    assert_eq!(server.ctl(&["get", "app/x", "--print-value-only"]), "1");
    assert_eq!(server.url_as("app"), format!("etcd://app:word@127.0.0.1:{}", server.port()));
    server.restart();
    assert_eq!(server.try_ctl_as("app", &["get", "app/x", "--print-value-only"]), Ok("1".into()));
}

#[test]
#[should_panic(expected = "failed")]
fn a_failing_shell_line_panics() {
    EtcdServer::start(&EtcdServerConfig::plain()).run_shell("etcdctl role get unknown");
}

#[test]
fn clients_without_a_password_are_rejected_if_there_are_users() {
    let server = EtcdServer::start(&EtcdServerConfig::plain().with_user("app", "word"));
    let mut anonymous = Command::new("etcdctl");
    anonymous.env("ETCDCTL_API", "3").args(["--endpoints", &format!("127.0.0.1:{}", server.port())]);
    let refused = anonymous.args(["get", "app"]).output().unwrap();
    assert!(String::from_utf8_lossy(&refused.stderr).contains("user name is empty"), "{refused:?}");
}

/// Posts JSON to the server, with additional header lines, and returns its reply.
fn post(server: &EtcdServer, path: &str, head: &str, json: &str) -> String {
    let mut stream = TcpStream::connect((Ipv4Addr::LOCALHOST, server.port())).unwrap();
    let length = json.len();
    let head = format!("POST {path} HTTP/1.0\r\nHost: etcd\r\n{head}Content-Length: {length}\r\n");
    write!(stream, "{head}\r\n{json}").unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    answer
}

#[test]
fn an_unused_token_expires_after_its_ttl() {
    let setup = EtcdServerConfig::plain().with_user("app", "word").with_token_ttl(1);
    let server = EtcdServer::start(&setup.with_option("--enable-grpc-gateway=true"));
    let log_in = || {
        let given = post(&server, "/v3/auth/authenticate", "", r#"{"name":"root","password":"root-secret"}"#);
        let token = given.split("\"token\":\"").nth(1).and_then(|rest| rest.split('"').next());
        token.unwrap_or_else(|| panic!("there is no token in {given}")).to_owned()
    };
    let look = |token: &str| {
        post(&server, "/v3/kv/range", &format!("Authorization: {token}\r\n"), r#"{"key":"YQ=="}"#)
    };
    let mut token = String::new();
    wait::block_until("a token is used before it has ended", || {
        token = log_in();
        look(&token).contains("200 OK")
    });
    wait::block_until("the token has ended", || {
        // Each read is a use, which extends the token by another ttl.
        wait::block_thread_for(Duration::from_secs(3));
        look(&token).contains("invalid auth token")
    });
}

#[test]
fn tls_accepts_the_configured_clients() {
    for clients in [TlsClients::All, TlsClients::WithCertificate] {
        let server = EtcdServer::start(&EtcdServerConfig::plain().with_tls(clients));
        let made = server.certificates();
        let path = |path: &std::path::Path| path.to_str().unwrap().to_owned();
        let (ca, other_ca) = (path(&made.ca), path(&made.other_ca));
        let (cert, key) = (path(&made.client_cert), path(&made.client_key));
        let endpoint = server.tls_url().replace("etcds://", "https://");
        let look = |args: &[&str]| {
            let mut etcdctl = Command::new("etcdctl");
            etcdctl.env("ETCDCTL_API", "3").args(["--endpoints", &endpoint]).args(args).args(LOOK);
            etcdctl.output().unwrap().status.success()
        };
        assert!(look(&["--cacert", &ca, "--cert", &cert, "--key", &key]));
        assert_eq!(look(&["--cacert", &ca]), clients == TlsClients::All);
        assert!(!look(&["--cacert", &other_ca, "--cert", &cert, "--key", &key]));
        assert!(server.try_ctl(&LOOK).is_ok(), "it also speaks without TLS");
    }
}

#[test]
fn a_cluster_serves_without_a_killed_leader_which_follows_after_its_restart() {
    let cluster = EtcdCluster::start();
    let old = cluster.leader();
    cluster.member(old).ctl(&["put", "here", "1"]);
    cluster.member(old).kill();
    let others: Vec<usize> = (0..3).filter(|member| *member != old).collect();
    let new = cluster.leader_among(&others);
    assert_ne!(new, old);
    assert_eq!(cluster.member(new).ctl(&["get", "here"]), "here\n1");
    cluster.member(new).ctl(&["put", "here", "2"]);
    cluster.member(old).restart();
    assert_eq!(cluster.member(old).ctl(&["get", "here"]), "here\n2");
    cluster.wait_until_healthy();
    assert_ne!(cluster.follower(), cluster.leader());
}

#[test]
fn a_cluster_serves_while_its_leader_is_paused() {
    let cluster = EtcdCluster::start();
    let old = cluster.leader();
    cluster.member(old).pause();
    wait::block_until("the process is stopped", || state(cluster.member(old).pid()) == Some('T'));
    let others: Vec<usize> = (0..3).filter(|member| *member != old).collect();
    let new = cluster.leader_among(&others);
    cluster.member(new).ctl(&["put", "here", "1"]);
    cluster.member(old).resume();
    cluster.wait_until_healthy();
    assert_eq!(cluster.member(old).ctl(&["get", "here"]), "here\n1");
}

#[test]
fn one_of_three_does_not_serve_and_all_of_them_keep_their_data() {
    let cluster = EtcdCluster::start();
    assert!(cluster.url().ends_with(&format!(",127.0.0.1:{}", cluster.ports()[2])));
    cluster.member(0).ctl(&["put", "here", "1"]);
    cluster.member(1).kill();
    cluster.member(2).kill();
    assert!(cluster.member(0).try_ctl(&LOOK).is_err());
    cluster.restart();
    cluster.wait_until_healthy();
    assert_eq!(cluster.member(0).ctl(&["get", "here"]), "here\n1");
}
