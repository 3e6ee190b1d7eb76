//! The part of the behaviour suite that runs on each deployment of Redis.

use std::path::Path;
use std::sync::OnceLock;

use fencepost_testkit::behavior_suite;
use fencepost_testkit::servers::redis::{
    Cluster, RedisServer, RedisServerConfig, Replicas, Sentinels, TlsClients,
};

use crate::bench::RedisBench;

/// Defines a function that returns the servers of one deployment, shared by all its tests.
macro_rules! shared {
    ($name:ident, $server:ty, $start:expr) => {
        pub(crate) fn $name() -> &'static $server {
            static SHARED: OnceLock<$server> = OnceLock::new();
            SHARED.get_or_init(|| $start)
        }
    };
}

shared!(guarded, RedisServer, {
    RedisServer::start(&RedisServerConfig::plain().with_password("boss").with_user(
        "no-rights",
        "word",
        "-@all",
    ))
});
shared!(
    encrypted,
    RedisServer,
    RedisServer::start(&RedisServerConfig::plain().with_tls(TlsClients::WithCertificate))
);
shared!(watched, Sentinels, Sentinels::start());
shared!(spread, Cluster, Cluster::start(Replicas::None));

/// A bench whose user has the rights that `fencepost rights` prints, and no others.
fn as_a_user() -> RedisBench {
    let server = guarded();
    let user = format!("app-{:016x}", rand::random::<u64>());
    let url = format!("redis://{user}:p%40ss%3Aw%2Frd@127.0.0.1:{}", server.port());
    let bench = RedisBench::at(&url, "", [server.url()]);
    let rights = fencepost_redis::rights(bench.url()).expect("the URL is valid");
    let line = rights.lines().find(|line| line.starts_with("ACL SETUSER USER on ")).expect("it is printed");
    let line = line.replace("SETUSER USER", &format!("SETUSER {user}")).replace("PASSWORD", "p@ss:w/rd");
    server.cli(&line.split_whitespace().collect::<Vec<_>>());
    bench
}

/// Returns the URL options for a server's certificates.
pub(crate) fn certificates(server: &RedisServer) -> String {
    let made = server.certificates();
    let path = |path: &Path| path.to_str().expect("the path is UTF-8").to_owned();
    let (ca, cert, key) = (path(&made.ca), path(&made.client_cert), path(&made.client_key));
    format!("&tls_ca={ca}&tls_cert={cert}&tls_key={key}")
}

fn over_tls() -> RedisBench {
    let server = encrypted();
    RedisBench::at(&server.tls_url(), &certificates(server), [server.url()])
}

fn in_another_database() -> RedisBench {
    let server = fencepost_testkit::servers::redis::shared();
    let url = format!("{}/7", server.url());
    RedisBench::at(&url, "", [url.clone()])
}

pub(crate) fn sentinel_url(group: &Sentinels) -> String {
    let sentinels = group.sentinel_ports().map(|port| format!("127.0.0.1:{port}"));
    format!("redis+sentinel://{}/{}", sentinels.join(","), Sentinels::NAME)
}

fn behind_sentinels() -> RedisBench {
    RedisBench::at(&sentinel_url(watched()), "", [watched().primary().url()])
}

fn on_a_replica_too() -> RedisBench {
    RedisBench::at(&sentinel_url(watched()), "&replicas=1", [watched().primary().url()])
}

/// A bench on this cluster that reads keys from its primaries.
pub(crate) fn on(cluster: &Cluster) -> RedisBench {
    let ports = cluster.ports();
    let seeds = ports.iter().map(|port| format!("127.0.0.1:{port}")).collect::<Vec<_>>().join(",");
    let nodes = (0..3).map(|node| cluster.node(node).url());
    RedisBench::at(&format!("redis+cluster://{seeds}"), "", nodes)
}

fn in_a_cluster() -> RedisBench {
    on(spread())
}

behavior_suite!(user, as_a_user, only [core features several]);
behavior_suite!(tls, over_tls, only[core]);
behavior_suite!(database, in_another_database, only [core features]);
behavior_suite!(sentinel, behind_sentinels, only[core]);
behavior_suite!(replicas, on_a_replica_too, only [core features several]);
behavior_suite!(cluster, in_a_cluster, only [core features spread]);
