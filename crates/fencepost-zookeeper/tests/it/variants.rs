//! Configuration variants: dialects, users, encryption, ttl ranges.

use fencepost_core::ErrorKind;
use fencepost_testkit::servers::TlsClients;
use fencepost_testkit::servers::zookeeper::{ZooKeeperServer, ZooKeeperServerConfig, shared};

use crate::actions::{LONG_TTL, connect, hold};
use crate::bench::ZooKeeperBench;

fn kazoo() -> ZooKeeperBench {
    ZooKeeperBench::with(shared(), "?dialect=kazoo")
}

fn plain_names() -> ZooKeeperBench {
    ZooKeeperBench::with(shared(), "?dialect=plain")
}

fencepost_testkit::behavior_suite!(dialect_kazoo, kazoo, only[dialect]);
fencepost_testkit::behavior_suite!(dialect_plain, plain_names, only[dialect]);

/// Contenders of all dialects share one queue.
#[tokio::test]
async fn dialects_exclude_each_other() {
    let bench = ZooKeeperBench::plain();
    let url = bench.direct();
    let dialects = ["curator", "kazoo", "plain"];
    for holder in dialects {
        let guard = hold(&connect(&format!("{url}?dialect={holder}")).await.lock("a").ttl(LONG_TTL)).await;
        for other in dialects {
            let client = connect(&format!("{url}?dialect={other}")).await;
            assert!(client.lock("a").try_acquire().await.unwrap().is_none(), "{holder}, {other}");
        }
        guard.release().await.unwrap();
    }
}

/// Only the user that created the nodes has access to them.
#[tokio::test]
async fn nodes_belong_to_their_user() {
    let url =
        |user: &str| format!("zk://{user}127.0.0.1:{}/users-{:x}", shared().port(), rand::random::<u64>());
    let (ann, ben, anonymous) = (url("ann:secret@"), "ben:secret@", "");
    let client = connect(&ann).await;
    let guard = hold(&client.lock("a").ttl(LONG_TTL)).await;
    for other in [ben, anonymous] {
        let rejected = fencepost_zookeeper::connect(&ann.replace("ann:secret@", other)).await;
        let error = rejected.expect_err("the user is rejected");
        assert_eq!(error.kind(), ErrorKind::Denied, "{error:?}");
        assert!(error.hint().is_some() && !format!("{error:?}").contains("secret"));
    }
    guard.release().await.unwrap();
}

/// Users in the list of the servers.
#[tokio::test]
async fn sasl_accepts_the_right_password_only() {
    let server = ZooKeeperServer::start(&ZooKeeperServerConfig::plain().with_sasl_user("ann", "secret"));
    let url = server.sasl_url_as("ann");
    let client = connect(&url).await;
    hold(&client.lock("a").ttl(LONG_TTL)).await.release().await.unwrap();
    let rejected = fencepost_zookeeper::connect(&url.replace(":secret@", ":wrong@")).await;
    assert_eq!(rejected.expect_err("the user is rejected").kind(), ErrorKind::Denied);
}

/// TLS with a private CA.
#[tokio::test]
async fn tls_with_a_private_ca() {
    let server = ZooKeeperServer::start(&ZooKeeperServerConfig::plain().with_tls(TlsClients::All));
    let client =
        connect(&format!("{}&tls_ca={}", server.tls_url(), server.certificates().ca.display())).await;
    hold(&client.lock("a").ttl(LONG_TTL)).await.release().await.unwrap();
    assert_eq!(client.info().location, format!("zk://localhost:{}/fencepost?tls=true", server.tls_port()));
}

/// A ttl outside the range of the servers is rejected.
#[tokio::test]
async fn the_servers_define_the_range_of_ttls() {
    let server = ZooKeeperServer::start(
        &ZooKeeperServerConfig::plain()
            .with_config("minSessionTimeout=2000")
            .with_config("maxSessionTimeout=5000"),
    );
    let client = connect(&server.url()).await;
    let info = client.info();
    assert_eq!((info.min_ttl.as_millis(), info.max_ttl.as_millis()), (2000, 5000));
    let lock = client.lock("a");
    for ttl in [info.min_ttl, info.max_ttl] {
        hold(&lock.clone().ttl(ttl)).await.release().await.unwrap();
        for rejected in [ttl * 2, ttl / 4] {
            if rejected < info.min_ttl || rejected > info.max_ttl {
                let error = lock.clone().ttl(rejected).try_acquire().await.unwrap_err();
                assert_eq!(error.kind(), ErrorKind::BadConfig);
            }
        }
    }
}
