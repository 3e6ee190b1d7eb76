//! The foreign layouts: keys below the name of the lock (`raw`), and a single key (`single`).

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use fencepost_core::{Client, ErrorKind, Keep, LostReason, Mode, Page};
use fencepost_testkit::servers::etcd::{EtcdServer, shared};
use fencepost_testkit::wait;
use futures_util::future::{join, join_all};

const LONG: Duration = Duration::from_secs(60);
/// So long that no waiter polls during the test: a waiter that is not woken makes the test fail.
const LONGER: Duration = Duration::from_secs(3600);

/// A prefix of lock names for one test.
struct Fixture {
    /// The prefix of the lock names of this test.
    prefix: String,
    url: String,
    server: &'static EtcdServer,
}

impl Fixture {
    fn new(layout: &str) -> Self {
        let prefix = format!("test-{:016x}", rand::random::<u64>());
        let server = shared();
        let url = format!("{}?layout={layout}&namespace={prefix}-own", server.url());
        Self { prefix, url, server }
    }

    async fn client(&self) -> Client {
        fencepost_etcd::connect(&self.url).await.expect("the server accepts the client")
    }

    fn name(&self, name: &str) -> String {
        format!("{}/{name}", self.prefix)
    }

    /// Returns all keys of this test's locks.
    fn keys(&self) -> Vec<String> {
        let found = self.server.ctl(&["get", "--prefix", &format!("{}/", self.prefix), "--keys-only"]);
        found.lines().filter(|line| !line.is_empty()).map(str::to_owned).collect()
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_single_key_is_created_and_deleted() {
    let fixture = Fixture::new("single");
    let (client, other) = (fixture.client().await, fixture.client().await);
    let guard = client.lock(fixture.name("a")).ttl(LONG).try_acquire().await.unwrap().unwrap();
    assert_eq!(fixture.keys(), [fixture.name("a")]);
    assert!(other.lock(fixture.name("a")).try_acquire().await.unwrap().is_none());
    assert_eq!(other.inspect(fixture.name("a")).await.unwrap().holders[0].token, Some(guard.token()));
    let listed = other.list(&fixture.prefix, Page::new(10)).await.unwrap();
    assert_eq!(
        listed.locks.iter().map(|lock| lock.name.to_string()).collect::<Vec<_>>(),
        [fixture.name("a")]
    );
    guard.release().await.unwrap();
    assert!(fixture.keys().is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn waiters_for_a_single_key_are_woken_by_its_deletion() {
    let fixture = Fixture::new("single");
    let clients = [fixture.client().await, fixture.client().await];
    let guard = clients[0].lock(fixture.name("a")).ttl(LONGER).acquire().await.unwrap();
    let mut tasks = Vec::new();
    for client in &clients {
        for _ in 0..3 {
            let lock = client.lock(fixture.name("a")).ttl(LONGER);
            tasks.push(tokio::spawn(async move { lock.acquire().await.unwrap().token() }));
        }
    }
    wait::until("all wait", async || {
        let waiters = async |client: &Client| client.inspect(fixture.name("a")).await.unwrap().waiter_count;
        waiters(&clients[0]).await == 3 && waiters(&clients[1]).await == 3
    })
    .await;
    let first = guard.token();
    guard.release().await.unwrap();
    let mut tokens = vec![first];
    for task in tasks {
        tokens.push(wait::within_timeout("the waiter is granted", task).await.unwrap());
    }
    tokens.sort();
    tokens.dedup();
    assert_eq!(tokens.len(), 7);
    wait::until("no key is left", async || fixture.keys().is_empty()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_foreign_key_blocks_the_lock() {
    let fixture = Fixture::new("single");
    let client = fixture.client().await;
    fixture.server.ctl(&["put", &fixture.name("a"), "foreign"]);
    assert!(client.lock(fixture.name("a")).try_acquire().await.unwrap().is_none());
    let lock = client.lock(fixture.name("a")).ttl(LONG);
    let waiter = tokio::spawn(async move { lock.acquire().await.unwrap() });
    wait::until("it waits", async || client.inspect(fixture.name("a")).await.unwrap().waiter_count == 1)
        .await;
    fixture.server.ctl(&["del", &fixture.name("a")]);
    let guard = wait::within_timeout("the key is deleted", waiter).await.unwrap();
    // A key that was deleted and created again is another client's.
    fixture.server.ctl(&["del", &fixture.name("a")]);
    fixture.server.ctl(&["put", &fixture.name("a"), "foreign"]);
    assert_eq!(wait::within_timeout("it is lost", guard.lost()).await, LostReason::NotHeld);
    drop(guard);
    client.close().await;
    assert_eq!(fixture.keys(), [fixture.name("a")]);
    fixture.server.ctl(&["del", &fixture.name("a")]);
}

/// Scenario 71: a program that polls once per second, as tooz does, acquires the lock although Fencepost clients wait for
/// it all the time and acquire it again at once.
#[tokio::test(flavor = "multi_thread")]
async fn a_foreign_client_that_polls_once_per_second_acquires_the_lock() {
    const GRANTS: usize = 3;
    const POLLS: usize = 25;
    let fixture = Fixture::new("single");
    let (server, name) = (fixture.server, fixture.name("a"));
    let clients = [fixture.client().await, fixture.client().await, fixture.client().await];
    let is_over = AtomicBool::new(false);
    let fencepost = join_all(clients.iter().map(async |client| {
        while !is_over.load(Ordering::Relaxed) {
            let guard = client.lock(fixture.name("a")).ttl(LONG).acquire().await.unwrap();
            wait::elapse(Duration::from_millis(150)).await;
            guard.release().await.unwrap();
        }
    }));
    let acquire = format!("etcdctl txn <<END\ncreate(\"{name}\") = \"0\"\n\nput {name} foreign\n\n\nEND");
    let foreign = tokio::task::spawn_blocking(move || {
        let mut grants = 0;
        for _ in 0..POLLS {
            wait::block_thread_for(Duration::from_secs(1));
            if server.run_shell(&acquire).starts_with("SUCCESS") {
                server.ctl(&["del", &name]);
                grants += 1;
            }
            if grants == GRANTS {
                break;
            }
        }
        grants
    });
    let granted = async {
        let outcome = foreign.await;
        is_over.store(true, Ordering::Relaxed);
        outcome
    };
    let (_, granted) = join(fencepost, granted).await;
    assert_eq!(granted.unwrap(), GRANTS, "in {POLLS} polls");
    assert!(fixture.keys().is_empty());
}

/// The process that broke the lock has died before it deleted the key: the holder deletes it.
#[tokio::test(flavor = "multi_thread")]
async fn a_key_that_is_marked_as_broken_is_deleted_by_its_holder() {
    for layout in ["single", "raw"] {
        let fixture = Fixture::new(layout);
        let client = fixture.client().await;
        let guard = client.lock(fixture.name("a")).ttl(LONG).acquire().await.unwrap();
        let kept = client.lock(fixture.name("b")).ttl(LONG).acquire().await.unwrap();
        let key = fixture.keys().into_iter().find(|key| key.starts_with(&fixture.name("a"))).unwrap();
        fixture.server.ctl(&["put", "--ignore-lease", &key, "broken"]);
        assert_eq!(wait::within_timeout("it is lost", guard.lost()).await, LostReason::Broken);
        wait::until("its key is gone", async || !fixture.keys().contains(&key)).await;
        assert_eq!(kept.lost_reason(), None);
        drop(guard);
        kept.release().await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_waiter_for_a_single_key_that_times_out_leaves_nothing() {
    let fixture = Fixture::new("single");
    let client = fixture.client().await;
    let guard = client.lock(fixture.name("a")).ttl(LONG).acquire().await.unwrap();
    let short = Duration::from_millis(100);
    let error = client.lock(fixture.name("a")).ttl(LONG).wait(short).acquire().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::WaitTimeout);
    guard.release().await.unwrap();
    assert!(client.lock(fixture.name("a")).try_acquire().await.unwrap().is_some());
}

#[tokio::test(flavor = "multi_thread")]
async fn unsupported_requests_are_rejected_with_a_hint() {
    let kind = |error: fencepost_core::Error| {
        assert!(error.hint().is_some(), "{error}");
        error.kind()
    };
    for layout in ["single", "raw"] {
        let fixture = Fixture::new(layout);
        let client = fixture.client().await;
        let shared = client.lock(fixture.name("a")).mode(Mode::Shared).try_acquire().await;
        assert_eq!(kind(shared.expect_err("it is rejected")), ErrorKind::Unsupported);
        let reserved = client.lock(format!("{}-own/about", fixture.prefix)).try_acquire().await;
        assert_eq!(kind(reserved.expect_err("it is rejected")), ErrorKind::BadName);
    }
    let fixture = Fixture::new("single");
    let client = fixture.client().await;
    let guard = client.lock(fixture.name("a")).acquire().await.unwrap();
    let cell = guard.write_cell(*b"x", Keep::WhileHeld).await;
    assert_eq!(kind(cell.unwrap_err()), ErrorKind::Unsupported);
    let both = client.lock_all([fixture.name("b"), fixture.name("c")]).try_acquire().await;
    assert_eq!(kind(both.expect_err("it is rejected")), ErrorKind::Unsupported);
}

/// With `layout=raw`, `a` and `a/b` are not independent: an acquire of `a` waits for `a/b`, as with `etcdctl lock`.
#[tokio::test(flavor = "multi_thread")]
async fn the_official_recipe_and_fencepost_exclude_each_other() {
    let fixture = Fixture::new("raw");
    let client = fixture.client().await;
    let lease = fixture.server.ctl(&["lease", "grant", "60"]);
    let lease = lease.split_whitespace().nth(1).expect("it has a number").to_owned();
    let foreign_key = fixture.name(&format!("a/{lease}"));
    fixture.server.ctl(&["put", "--lease", &lease, &foreign_key, ""]);
    let state = client.inspect(fixture.name("a")).await.unwrap();
    assert!(state.holders[0].label.contains(&foreign_key), "{state:?}");
    let lock = client.lock(fixture.name("a")).ttl(LONG);
    let waiter = tokio::spawn(async move { lock.acquire().await.unwrap() });
    wait::until("it waits", async || client.inspect(fixture.name("a")).await.unwrap().waiter_count == 1)
        .await;
    fixture.server.ctl(&["lease", "revoke", &lease]);
    let guard = wait::within_timeout("the foreign key is gone", waiter).await.unwrap();
    assert!(fixture.keys()[0].starts_with(&fixture.name("a/")));
    guard.release().await.unwrap();
    assert!(fixture.keys().is_empty());
}
