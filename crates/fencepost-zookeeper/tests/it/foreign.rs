//! Other programs at a lock's place, which do not exclude ours: refused, or remarked.

use fencepost_core::{Client, ErrorKind, Severity};
use fencepost_testkit::wait;
use zookeeper_client::{self as zk, Acls, CreateMode};

use crate::actions::{LONG_TTL, SHORT, connect, enqueue, hold, until_renewed};
use crate::bench::ZooKeeperBench;

const ID: &str = "0f1e2d3c-4b5a-6978-8796-a5b4c3d2e1f0";

/// A client of another library that is connected.
struct Peer {
    driver: zk::Client,
    lock: String,
}

impl Peer {
    /// At the lock `a`, whose node is there.
    async fn of(bench: &ZooKeeperBench) -> Self {
        let peer = Self { driver: bench.driver().await, lock: bench.line("a") };
        peer.make("", CreateMode::Container).await;
        peer
    }

    /// Makes a node below the lock's, and returns its path.
    async fn make(&self, called: &str, mode: CreateMode) -> String {
        let path = if called.is_empty() { self.lock.clone() } else { format!("{}/{called}", self.lock) };
        let (_, number) =
            self.driver.create(&path, b"host", &mode.with_acls(Acls::anyone_all())).await.unwrap();
        if mode == CreateMode::EphemeralSequential { format!("{path}{number}") } else { path }
    }

    async fn remove(&self, path: &str) {
        self.driver.delete(path, None).await.unwrap();
    }
}

#[track_caller]
fn expect_conflict<T>(outcome: fencepost_core::Result<T>, named: &str) {
    let Err(error) = outcome else { panic!("it is granted or busy beside {named}") };
    assert_eq!(error.kind(), ErrorKind::Conflict, "{error:?}");
    assert!(error.to_string().contains(named) && error.hint().is_some(), "{error:?}");
}

async fn a_free_lock(client: &Client, bench: &ZooKeeperBench, peer: &Peer) {
    let guard = hold(&client.lock("a").ttl(LONG_TTL)).await;
    guard.release().await.unwrap();
    let left = bench.contenders(&peer.driver, "a").await;
    assert!(!left.iter().any(|node| node.contains("-lock-")), "{left:?}");
}

/// Scenario 69: entries of recipes that do not exclude ours are refused while they live, and leave no node of ours.
#[tokio::test]
async fn entries_of_other_recipes_are_refused_while_they_live() {
    let bench = ZooKeeperBench::plain();
    let (client, peer) = (connect(&bench.direct()).await, Peer::of(&bench).await);
    let curator = |kind: &str| format!("_c_{ID}-{kind}");
    let entries = [
        (curator("__READ__"), CreateMode::EphemeralSequential),
        (curator("__WRIT__"), CreateMode::EphemeralSequential),
        (curator("latch-"), CreateMode::EphemeralSequential),
        ("0f1e2d3c4b5a69788796a5b4c3d2e1f0__rlock__".to_owned(), CreateMode::EphemeralSequential),
        ("0f1e2d3c4b5a69788796a5b4c3d2e1f0".to_owned(), CreateMode::Ephemeral),
    ];
    for (called, mode) in entries {
        let entry = peer.make(&called, mode).await;
        expect_conflict(client.lock("a").ttl(LONG_TTL).try_acquire().await, &entry);
        expect_conflict(client.lock("a").ttl(LONG_TTL).acquire().await, &entry);
        peer.remove(&entry).await;
        a_free_lock(&client, &bench, &peer).await;
    }
}

/// Scenario 69: Curator's semaphores have two nodes that stay; only what is below them counts.
#[tokio::test]
async fn semaphores_of_curator_are_refused_while_they_are_held() {
    let bench = ZooKeeperBench::plain();
    let (client, peer) = (connect(&bench.direct()).await, Peer::of(&bench).await);
    for (parent, called) in [("leases", "lease-"), ("locks", "lock-")] {
        let parent = peer.make(parent, CreateMode::Persistent).await;
        let below = parent.rsplit('/').next().unwrap();
        let entry = peer.make(&format!("{below}/_c_{ID}-{called}"), CreateMode::EphemeralSequential).await;
        expect_conflict(client.lock("a").ttl(LONG_TTL).try_acquire().await, &parent);
        peer.remove(&entry).await;
        a_free_lock(&client, &bench, &peer).await;
    }
}

/// Peers nest: what is below a lock's node may be another lock, held or not.
#[tokio::test]
async fn a_lock_that_a_peer_has_below_is_another_lock() {
    let bench = ZooKeeperBench::plain();
    let (client, peer) = (connect(&bench.direct()).await, Peer::of(&bench).await);
    peer.make("1234567890", CreateMode::Container).await;
    peer.make("b", CreateMode::Container).await;
    peer.make(&format!("b/_c_{ID}-lock-"), CreateMode::EphemeralSequential).await;
    a_free_lock(&client, &bench, &peer).await;
}

/// Scenario 69: whoever holds already goes on, and whoever waits is told when it would be its turn.
#[tokio::test]
async fn holders_are_left_alone_and_waiters_are_refused() {
    let bench = ZooKeeperBench::plain();
    let (client, other) = (connect(&bench.direct()).await, connect(&bench.direct()).await);
    let guard = hold(&client.lock("a").ttl(SHORT * 3)).await;
    let waiter = enqueue(&other, other.lock("a").ttl(LONG_TTL), "a", 1).await;
    let peer = Peer { driver: bench.driver().await, lock: bench.line("a") };
    let entry = peer.make("0f1e2d3c4b5a69788796a5b4c3d2e1f0__rlock__", CreateMode::EphemeralSequential).await;
    until_renewed(&guard).await;
    guard.release().await.unwrap();
    expect_conflict(wait::within_timeout("it is told", waiter).await.unwrap(), &entry);
    peer.remove(&entry).await;
    hold(&other.lock("a").ttl(LONG_TTL)).await.release().await.unwrap();
}

/// Curator never waits for nodes in kazoo's form: ours refuse to come there.
#[tokio::test]
async fn curator_is_refused_where_our_nodes_are_those_of_kazoo() {
    let bench = ZooKeeperBench::plain();
    let client = connect(&format!("{}?dialect=kazoo", bench.direct())).await;
    let peer = Peer::of(&bench).await;
    let entry = peer.make(&format!("_c_{ID}-lock-"), CreateMode::EphemeralSequential).await;
    expect_conflict(client.lock("a").ttl(LONG_TTL).try_acquire().await, &entry);
    let found = client.locate("a").await.unwrap();
    let finding = found.iter().find(|finding| finding.check == "foreign nodes").unwrap();
    assert_eq!(finding.severity, Severity::Problem, "{finding}");
    assert!(finding.advice.as_deref().unwrap().contains("dialect=curator"), "{finding:?}");
    peer.remove(&entry).await;
    hold(&client.lock("a").ttl(LONG_TTL)).await.release().await.unwrap();
}

/// kazoo may or may not have been told to wait for ours: that is remarked, once. Ours with another dialect do wait.
#[tokio::test]
async fn kazoo_is_remarked_where_our_nodes_are_those_of_curator() {
    let bench = ZooKeeperBench::plain();
    let client = connect(&bench.direct()).await;
    let ours = connect(&format!("{}?dialect=kazoo", bench.direct())).await;
    let guard = hold(&ours.lock("a").ttl(LONG_TTL)).await;
    assert!(client.lock("a").try_acquire().await.unwrap().is_none());
    assert!(client.remarks("a").await.unwrap().is_empty());
    guard.release().await.unwrap();

    let peer = Peer { driver: bench.driver().await, lock: bench.line("a") };
    let entry = peer.make("0f1e2d3c4b5a69788796a5b4c3d2e1f0__lock__", CreateMode::EphemeralSequential).await;
    assert!(client.lock("a").try_acquire().await.unwrap().is_none());
    peer.remove(&entry).await;
    hold(&client.lock("a").ttl(LONG_TTL)).await.release().await.unwrap();
    let remarks = client.remarks("a").await.unwrap();
    let [remark] = &remarks[..] else { panic!("{remarks:?}") };
    assert!(remark.found.contains(&entry) && remark.advice.as_deref().unwrap().contains("dialect=kazoo"));
    assert!(client.remarks("a").await.unwrap().is_empty(), "it was told");
}
