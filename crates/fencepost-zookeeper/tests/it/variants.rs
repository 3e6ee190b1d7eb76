//! Other ways to set it up: dialects, users, encryption.

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

/// Contenders of all dialects stand in one line.
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

/// Nodes belong to the user that made them.
#[tokio::test]
async fn nodes_belong_to_their_user() {
    let url =
        |user: &str| format!("zk://{user}127.0.0.1:{}/users-{:x}", shared().port(), rand::random::<u64>());
    let (ann, ben, nobody) = (url("ann:secret@"), "ben:secret@", "");
    let client = connect(&ann).await;
    let guard = hold(&client.lock("a").ttl(LONG_TTL)).await;
    for other in [ben, nobody] {
        let refused = fencepost_zookeeper::connect(&ann.replace("ann:secret@", other)).await;
        let error = refused.expect_err("it is refused");
        assert_eq!(error.kind(), ErrorKind::Denied, "{error:?}");
        assert!(error.hint().is_some() && !format!("{error:?}").contains("secret"));
    }
    guard.release().await.unwrap();
}

/// Users that the servers know by themselves.
#[tokio::test]
async fn sasl_lets_in_who_has_the_password() {
    let server = ZooKeeperServer::start(&ZooKeeperServerConfig::plain().with_sasl_user("ann", "secret"));
    let url = server.sasl_url_as("ann");
    let client = connect(&url).await;
    hold(&client.lock("a").ttl(LONG_TTL)).await.release().await.unwrap();
    let refused = fencepost_zookeeper::connect(&url.replace(":secret@", ":wrong@")).await;
    assert_eq!(refused.expect_err("it is refused").kind(), ErrorKind::Denied);
}

/// Encryption, with a certificate of our own.
#[tokio::test]
async fn tls_with_an_authority_of_our_own() {
    let server = ZooKeeperServer::start(&ZooKeeperServerConfig::plain().with_tls(TlsClients::All));
    let client =
        connect(&format!("{}&tls_ca={}", server.tls_url(), server.certificates().ca.display())).await;
    hold(&client.lock("a").ttl(LONG_TTL)).await.release().await.unwrap();
    assert_eq!(client.info().location, format!("zk://localhost:{}/fencepost?tls=true", server.tls_port()));
}

/// A ttl that servers do not allow is refused with what they do.
#[tokio::test]
async fn the_servers_set_the_range_of_leases() {
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
        for refused in [ttl * 2, ttl / 4] {
            if refused < info.min_ttl || refused > info.max_ttl {
                let error = lock.clone().ttl(refused).try_acquire().await.unwrap_err();
                assert_eq!(error.kind(), ErrorKind::BadConfig);
            }
        }
    }
}
