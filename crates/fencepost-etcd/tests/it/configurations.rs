//! The behaviour suite on other configurations of etcd.

use std::path::Path;
use std::sync::OnceLock;

use fencepost_testkit::behavior_suite;
use fencepost_testkit::servers::etcd::{EtcdCluster, EtcdServer, EtcdServerConfig, TlsClients};

use crate::bench::{EtcdBench, Server};

/// Returns a server with TLS, client certificates and authentication.
pub(crate) fn secured() -> &'static EtcdServer {
    static SHARED: OnceLock<EtcdServer> = OnceLock::new();
    let config = EtcdServerConfig::plain().with_tls(TlsClients::WithCertificate).with_user("guest", "word");
    SHARED.get_or_init(|| EtcdServer::start(&config))
}

fn cluster() -> &'static EtcdCluster {
    static SHARED: OnceLock<EtcdCluster> = OnceLock::new();
    SHARED.get_or_init(EtcdCluster::start)
}

/// Returns the URL options for the certificates of a server.
pub(crate) fn certificates(server: &EtcdServer) -> String {
    let files = server.certificates();
    let path = |path: &Path| path.to_str().expect("it is UTF-8").to_owned();
    let (ca, cert, key) = (path(&files.ca), path(&files.client_cert), path(&files.client_key));
    format!("&tls_ca={ca}&tls_cert={cert}&tls_key={key}")
}

/// Runs the commands that grant a user the permissions for this URL, as an administrator would.
pub(crate) fn give_rights(server: &EtcdServer, url: &str, user: &str, password: &str, name: &str) {
    let rights = fencepost_etcd::rights(url).expect("the URL is valid");
    for line in rights.lines().filter(|line| line.starts_with("etcdctl ") && !line.contains("PREFIX")) {
        let line = line.replace("USER", user).replace("PASSWORD", password).replace("NAME", name);
        server.run_shell(&line);
    }
}

/// Returns a bench with a client certificate and a user that has the documented permissions only.
fn as_a_user() -> EtcdBench {
    let server = secured();
    let user = format!("app-{:016x}", rand::random::<u64>());
    let url = format!("etcds://{user}:p%40ss%3Aw%2Frd@localhost:{}", server.tls_port());
    let bench = EtcdBench::at(&url, &certificates(server), Server::Shared(server));
    give_rights(server, bench.url(), &user, "p@ss:w/rd", "");
    bench
}

fn on_cluster() -> EtcdBench {
    EtcdBench::at(&cluster().url(), "", Server::SharedCluster(cluster()))
}

behavior_suite!(user_with_certificate, as_a_user, only [core features several]);
behavior_suite!(three_members, on_cluster, only [core features several]);
behavior_suite!(raw, EtcdBench::raw, only [core several]);
