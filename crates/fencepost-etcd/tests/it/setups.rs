//! The part of the suite that shows, for each way to set etcd up, that the locks are the same.

use std::path::Path;
use std::sync::OnceLock;

use fencepost_testkit::behavior_suite;
use fencepost_testkit::servers::etcd::{EtcdCluster, EtcdServer, EtcdServerConfig, TlsClients};

use crate::bench::{EtcdBench, Server};

/// With TLS, certificates for clients, and users.
pub(crate) fn guarded() -> &'static EtcdServer {
    static SHARED: OnceLock<EtcdServer> = OnceLock::new();
    let setup = EtcdServerConfig::plain().with_tls(TlsClients::WithCertificate).with_user("nobody", "word");
    SHARED.get_or_init(|| EtcdServer::start(&setup))
}

fn spread() -> &'static EtcdCluster {
    static SHARED: OnceLock<EtcdCluster> = OnceLock::new();
    SHARED.get_or_init(EtcdCluster::start)
}

/// The options that name a server's certificates.
pub(crate) fn certificates(server: &EtcdServer) -> String {
    let made = server.certificates();
    let path = |path: &Path| path.to_str().expect("it is made of plain letters").to_owned();
    let (ca, cert, key) = (path(&made.ca), path(&made.client_cert), path(&made.client_key));
    format!("&tls_ca={ca}&tls_cert={cert}&tls_key={key}")
}

/// Says the lines that give the rights for this URL to a user, as an administrator would.
pub(crate) fn give_rights(server: &EtcdServer, url: &str, user: &str, password: &str, name: &str) {
    let rights = fencepost_etcd::rights(url).expect("the URL is fine");
    for line in rights.lines().filter(|line| line.starts_with("etcdctl ") && !line.contains("PREFIX")) {
        let line = line.replace("USER", user).replace("PASSWORD", password).replace("NAME", name);
        server.run_shell(&line);
    }
}

/// With a certificate, and a user who has the rights that we say are needed, and no others.
fn as_a_user() -> EtcdBench {
    let server = guarded();
    let user = format!("app-{:016x}", rand::random::<u64>());
    let url = format!("etcds://{user}:p%40ss%3Aw%2Frd@localhost:{}", server.tls_port());
    let bench = EtcdBench::at(&url, &certificates(server), Server::Shared(server));
    give_rights(server, bench.url(), &user, "p@ss:w/rd", "");
    bench
}

fn of_three() -> EtcdBench {
    EtcdBench::at(&spread().url(), "", Server::SharedCluster(spread()))
}

behavior_suite!(user_with_certificate, as_a_user, only [core features several]);
behavior_suite!(three_members, of_three, only [core features several]);
behavior_suite!(raw, EtcdBench::raw, only [core several]);
