//! Foreign clients at a lock's node that do not exclude Fencepost: a conflict, or a remark.

use fencepost_core::{Client, ErrorKind, Severity};
use fencepost_testkit::wait;
use zookeeper_client::{self as zk, Acls, CreateMode};

use crate::actions::{LONG_TTL, SHORT_TTL, connect, enqueue, hold, until_renewed};
use crate::bench::ZooKeeperBench;

const ID: &str = "0f1e2d3c-4b5a-6978-8796-a5b4c3d2e1f0";

/// A connected client of another library.
struct ForeignClient {
    driver: zk::Client,
    lock: String,
}

impl ForeignClient {
    /// Connects, and creates the node of the lock `a`.
    async fn of(bench: &ZooKeeperBench) -> Self {
        let foreign = Self { driver: bench.driver().await, lock: bench.lock_path("a") };
        foreign.create("", CreateMode::Container).await;
        foreign
    }

    /// Creates a node below the lock's, and returns its path.
    async fn create(&self, name: &str, mode: CreateMode) -> String {
        let path = if name.is_empty() { self.lock.clone() } else { format!("{}/{name}", self.lock) };
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
    let Err(error) = outcome else { panic!("no conflict with {named}") };
    assert_eq!(error.kind(), ErrorKind::Conflict, "{error:?}");
    assert!(error.to_string().contains(named) && error.hint().is_some(), "{error:?}");
}

async fn expect_free(client: &Client, bench: &ZooKeeperBench, foreign: &ForeignClient) {
    let guard = hold(&client.lock("a").ttl(LONG_TTL)).await;
    guard.release().await.unwrap();
    let nodes = bench.contenders(&foreign.driver, "a").await;
    assert!(!nodes.iter().any(|node| node.contains("-lock-")), "{nodes:?}");
}

/// Scenario 69: live entries of recipes that do not exclude Fencepost are conflicts, and the rejected attempt leaves no
/// node.
#[tokio::test]
async fn live_entries_of_other_recipes_are_conflicts() {
    let bench = ZooKeeperBench::plain();
    let (client, foreign) = (connect(&bench.direct()).await, ForeignClient::of(&bench).await);
    let curator = |kind: &str| format!("_c_{ID}-{kind}");
    let entries = [
        (curator("__READ__"), CreateMode::EphemeralSequential),
        (curator("__WRIT__"), CreateMode::EphemeralSequential),
        (curator("latch-"), CreateMode::EphemeralSequential),
        ("0f1e2d3c4b5a69788796a5b4c3d2e1f0__rlock__".to_owned(), CreateMode::EphemeralSequential),
        ("0f1e2d3c4b5a69788796a5b4c3d2e1f0".to_owned(), CreateMode::Ephemeral),
    ];
    for (name, mode) in entries {
        let entry = foreign.create(&name, mode).await;
        expect_conflict(client.lock("a").ttl(LONG_TTL).try_acquire().await, &entry);
        expect_conflict(client.lock("a").ttl(LONG_TTL).acquire().await, &entry);
        foreign.remove(&entry).await;
        expect_free(&client, &bench, &foreign).await;
    }
}

/// Scenario 69: Curator's semaphores have two permanent nodes; only their children count.
#[tokio::test]
async fn held_semaphores_of_curator_are_conflicts() {
    let bench = ZooKeeperBench::plain();
    let (client, foreign) = (connect(&bench.direct()).await, ForeignClient::of(&bench).await);
    for (parent, name) in [("leases", "lease-"), ("locks", "lock-")] {
        let parent = foreign.create(parent, CreateMode::Persistent).await;
        let below = parent.rsplit('/').next().unwrap();
        let entry = foreign.create(&format!("{below}/_c_{ID}-{name}"), CreateMode::EphemeralSequential).await;
        expect_conflict(client.lock("a").ttl(LONG_TTL).try_acquire().await, &parent);
        foreign.remove(&entry).await;
        expect_free(&client, &bench, &foreign).await;
    }
}

/// Other libraries nest locks: a node below a lock's may be another lock, held or not.
#[tokio::test]
async fn a_nested_lock_of_another_library_is_another_lock() {
    let bench = ZooKeeperBench::plain();
    let (client, foreign) = (connect(&bench.direct()).await, ForeignClient::of(&bench).await);
    foreign.create("1234567890", CreateMode::Container).await;
    foreign.create("b", CreateMode::Container).await;
    foreign.create(&format!("b/_c_{ID}-lock-"), CreateMode::EphemeralSequential).await;
    expect_free(&client, &bench, &foreign).await;
}

/// Scenario 69: a holder keeps the lock, and a waiter is rejected when it would be granted.
#[tokio::test]
async fn holders_keep_the_lock_and_waiters_are_rejected() {
    let bench = ZooKeeperBench::plain();
    let (client, other) = (connect(&bench.direct()).await, connect(&bench.direct()).await);
    let guard = hold(&client.lock("a").ttl(SHORT_TTL * 3)).await;
    let waiter = enqueue(&other, other.lock("a").ttl(LONG_TTL), "a", 1).await;
    let foreign = ForeignClient { driver: bench.driver().await, lock: bench.lock_path("a") };
    let entry =
        foreign.create("0f1e2d3c4b5a69788796a5b4c3d2e1f0__rlock__", CreateMode::EphemeralSequential).await;
    until_renewed(&guard).await;
    guard.release().await.unwrap();
    expect_conflict(wait::within_timeout("the waiter is rejected", waiter).await.unwrap(), &entry);
    foreign.remove(&entry).await;
    hold(&other.lock("a").ttl(LONG_TTL)).await.release().await.unwrap();
}

/// Curator never waits for nodes in kazoo's dialect: attempts are rejected.
#[tokio::test]
async fn curator_nodes_are_a_conflict_in_the_kazoo_dialect() {
    let bench = ZooKeeperBench::plain();
    let client = connect(&format!("{}?dialect=kazoo", bench.direct())).await;
    let foreign = ForeignClient::of(&bench).await;
    let entry = foreign.create(&format!("_c_{ID}-lock-"), CreateMode::EphemeralSequential).await;
    expect_conflict(client.lock("a").ttl(LONG_TTL).try_acquire().await, &entry);
    let found = client.locate("a").await.unwrap();
    let finding = found.iter().find(|finding| finding.check == "foreign nodes").unwrap();
    assert_eq!(finding.severity, Severity::Problem, "{finding}");
    assert!(finding.advice.as_deref().unwrap().contains("dialect=curator"), "{finding:?}");
    foreign.remove(&entry).await;
    hold(&client.lock("a").ttl(LONG_TTL)).await.release().await.unwrap();
}

/// kazoo may be configured to wait for Fencepost's nodes or not: that is remarked, once. Clients of Fencepost with
/// another dialect do wait.
#[tokio::test]
async fn kazoo_nodes_are_remarked_in_the_curator_dialect() {
    let bench = ZooKeeperBench::plain();
    let client = connect(&bench.direct()).await;
    let kazoo_client = connect(&format!("{}?dialect=kazoo", bench.direct())).await;
    let guard = hold(&kazoo_client.lock("a").ttl(LONG_TTL)).await;
    assert!(client.lock("a").try_acquire().await.unwrap().is_none());
    assert!(client.remarks("a").await.unwrap().is_empty());
    guard.release().await.unwrap();

    let foreign = ForeignClient { driver: bench.driver().await, lock: bench.lock_path("a") };
    let entry =
        foreign.create("0f1e2d3c4b5a69788796a5b4c3d2e1f0__lock__", CreateMode::EphemeralSequential).await;
    assert!(client.lock("a").try_acquire().await.unwrap().is_none());
    foreign.remove(&entry).await;
    hold(&client.lock("a").ttl(LONG_TTL)).await.release().await.unwrap();
    let remarks = client.remarks("a").await.unwrap();
    let [remark] = &remarks[..] else { panic!("{remarks:?}") };
    assert!(remark.found.contains(&entry) && remark.advice.as_deref().unwrap().contains("dialect=kazoo"));
    assert!(client.remarks("a").await.unwrap().is_empty(), "the remark was taken");
}
