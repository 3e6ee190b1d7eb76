//! Conversion of format 1: done when no client of format 1 can hold anything, and never before.

use std::time::Duration;

use fencepost_core::{Client, ErrorKind, Options};
use fencepost_testkit::{WireBench, wait};
use zookeeper_client::{self as zk, Acls, CreateMode};

use crate::actions::{LONG_TTL, connect, hold};
use crate::bench::ZooKeeperBench;

const ABOUT: &str = r#"{"format":1,"storage_id":"00112233445566778899aabbccddeeff"}"#;

/// A chroot as clients of format 1 created it.
struct Format1Chroot {
    bench: ZooKeeperBench,
    driver: zk::Client,
}

impl Format1Chroot {
    async fn new() -> Self {
        let bench = ZooKeeperBench::plain();
        let old = Self { driver: bench.driver().await, bench };
        let chroot = old.bench.lock_path("").trim_end_matches('/').to_owned();
        let reserved = ["", "/cells", "/sessions", "/broken"].map(|node| old.path(node));
        for node in [chroot].into_iter().chain(reserved) {
            old.create(&node, "", CreateMode::Persistent).await.unwrap();
        }
        old.create(&old.path("/about"), ABOUT, CreateMode::Persistent).await.unwrap();
        old
    }

    fn path(&self, node: &str) -> String {
        format!("{}{node}", self.bench.lock_path("_fencepost"))
    }

    async fn create(&self, path: &str, data: &str, mode: CreateMode) -> Result<(), zk::Error> {
        create(&self.driver, path, data, mode).await
    }

    async fn about(&self) -> String {
        let (bytes, _) = self.driver.get_data(&self.path("/about")).await.unwrap();
        String::from_utf8(bytes).unwrap()
    }

    async fn nodes(&self, below: &str) -> Vec<String> {
        let mut nodes = self.driver.list_children(&self.path(below)).await.unwrap_or_default();
        nodes.sort();
        nodes
    }

    /// Opens a session like a client of format 1, which holds nothing without one.
    async fn open_session(&self, client: &zk::Client) -> Result<(), zk::Error> {
        let node = self.path(&format!("/sessions/{:x}", client.session_id().0));
        create(client, &node, "", CreateMode::Ephemeral).await
    }

    async fn connect(&self) -> fencepost_core::Result<Client> {
        fencepost_zookeeper::connect(&self.bench.direct()).await
    }

    #[track_caller]
    fn expect_rejected(rejected: fencepost_core::Result<Client>) {
        let error = rejected.expect_err("format 1 is rejected");
        assert_eq!(error.kind(), ErrorKind::Backend, "{error:?}");
        assert!(error.to_string().contains("format 1") && error.hint().is_some(), "{error:?}");
    }
}

async fn create(client: &zk::Client, path: &str, data: &str, mode: CreateMode) -> Result<(), zk::Error> {
    client.create(path, data.as_bytes(), &mode.with_acls(Acls::anyone_all())).await.map(drop)
}

/// An idle chroot of format 1 is converted: the storage id stays, persistent cells keep their names, and connected
/// clients of format 1 can hold nothing from then on.
#[tokio::test]
async fn an_idle_chroot_of_format_1_is_converted() {
    let old = Format1Chroot::new().await;
    let cells = [
        ("m%C3%BCller", "müller", "{\"token\":7}\none"),
        ("a%25b%2F%252F", "a%b/%2F", "{\"token\":8}\ntwo"),
        ("plain", "plain", "{\"token\":9,\"ms\":3600000}\nthree"),
        ("over", "over", "{\"token\":10,\"ms\":0}\nfour"),
    ];
    for (node, _, stored) in cells {
        old.create(&old.path(&format!("/cells/{node}")), stored, CreateMode::Persistent).await.unwrap();
    }
    let idle = old.bench.driver().await;
    let client = old.connect().await.unwrap();
    assert_eq!(client.info().storage_id.to_string(), "00112233445566778899aabbccddeeff");
    for (_, name, stored) in &cells[..3] {
        let cell = client.read_cell(name).await.unwrap().unwrap_or_else(|| panic!("{name} is kept"));
        assert!(stored.ends_with(std::str::from_utf8(&cell.bytes).unwrap()), "{name}");
        assert!(stored.contains(&format!(":{}", cell.token)), "{name}");
    }
    assert_eq!(client.read_cell("over").await.unwrap(), None);
    assert!(old.about().await.contains("\"format\":2") && !old.about().await.contains("converting"));
    assert_eq!(old.nodes("/cells").await, [""; 0]);

    // It read the format when it connected, and does not read it again.
    assert_eq!(old.open_session(&idle).await, Err(zk::Error::NoAuth));
    assert_eq!(
        create(&idle, &old.path("/sessions"), "", CreateMode::Persistent).await,
        Err(zk::Error::NodeExists)
    );
    hold(&client.lock("müller").ttl(LONG_TTL)).await.release().await.unwrap();
    connect(&old.bench.direct()).await;
}

/// While a client of format 1 has a session nothing is changed; not even while its connection is lost and restored.
#[tokio::test]
async fn a_client_of_format_1_that_reconnects_prevents_the_conversion() {
    let old = Format1Chroot::new().await;
    let before = old.nodes("").await;
    let wire = old.bench.wire();
    let connector = zk::Client::connector().with_session_timeout(Duration::from_secs(2));
    let format_1_client = connector.connect(&format!("127.0.0.1:{}", wire.port())).await.unwrap();
    old.open_session(&format_1_client).await.unwrap();
    Format1Chroot::expect_rejected(old.connect().await);
    wire.reset();
    Format1Chroot::expect_rejected(old.connect().await);
    let mut states = format_1_client.state_watcher();
    while format_1_client.state() != zk::SessionState::SyncConnected {
        states.changed().await;
    }
    Format1Chroot::expect_rejected(old.connect().await);
    assert_eq!((old.about().await.as_str(), old.nodes("").await), (ABOUT, before));

    wire.blackhole();
    wait::until("its session has ended", async || old.nodes("/sessions").await.is_empty()).await;
    let client = old.connect().await.unwrap();
    wire.heal();
    let again = zk::Client::connect(&format!("127.0.0.1:{}", wire.port())).await.unwrap();
    assert_eq!(old.open_session(&again).await, Err(zk::Error::NoAuth));
    hold(&client.lock("müller").ttl(LONG_TTL)).await.release().await.unwrap();
}

/// Of a client of format 1 that opens a session and a conversion at the same time, one succeeds.
#[tokio::test]
async fn a_session_of_format_1_and_a_conversion_exclude_each_other() {
    for round in 0..10 {
        let old = Format1Chroot::new().await;
        let format_1_client = old.bench.driver().await;
        let opened = async {
            wait::elapse(Duration::from_millis(round * 3)).await;
            old.open_session(&format_1_client).await
        };
        let (opened, connected) = tokio::join!(opened, old.connect());
        match (opened, connected) {
            (Ok(()), rejected @ Err(_)) => Format1Chroot::expect_rejected(rejected),
            (Err(zk::Error::NoAuth), Ok(_)) => {}
            (opened, connected) => panic!("round {round}: {opened:?}, {:?}", connected.map(drop)),
        }
    }
}

/// Several clients convert at the same time, and resume a conversion that was interrupted.
#[tokio::test]
async fn a_conversion_is_shared_and_resumed() {
    let old = Format1Chroot::new().await;
    for number in 0..30 {
        let cell = old.path(&format!("/cells/m%C3%BCller-{number}"));
        old.create(&cell, &format!("{{\"token\":{number}}}\nvalue"), CreateMode::Persistent).await.unwrap();
    }
    let stopped = ABOUT.replace("\"format\":1", "\"converting\":true,\"format\":2");
    old.driver.set_data(&old.path("/about"), stopped.as_bytes(), None).await.unwrap();
    let clients: Vec<Client> = futures_util::future::join_all((0..4).map(|_| old.connect()))
        .await
        .into_iter()
        .map(Result::unwrap)
        .collect();
    let ids: Vec<String> = clients.iter().map(|client| client.info().storage_id.to_string()).collect();
    assert_eq!(ids, ["00112233445566778899aabbccddeeff"; 4]);
    for number in 0..30 {
        let cell = clients[0].read_cell(format!("müller-{number}")).await.unwrap();
        assert_eq!(cell.expect("the cell is kept").token.get(), number);
    }
    assert!(!old.about().await.contains("converting"));
}

/// A read-only client converts nothing.
#[tokio::test]
async fn a_read_only_client_does_not_convert() {
    let old = Format1Chroot::new().await;
    let read_only = Options::new().only_existing();
    Format1Chroot::expect_rejected(fencepost_zookeeper::connect_with(&old.bench.direct(), read_only).await);
    assert_eq!(old.about().await, ABOUT);
}
