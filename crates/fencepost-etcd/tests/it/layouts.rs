//! Locks in the layouts of others: below their names, as the official recipe has them, and as a single key.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use fencepost_core::{Client, ErrorKind, Keep, LostReason, Mode, Page};
use fencepost_testkit::servers::etcd::{EtcdServer, shared};
use fencepost_testkit::wait;
use futures_util::future::{join, join_all};

const LONG: Duration = Duration::from_secs(60);
/// So long that nobody who waits looks by itself while the test does: whoever is not woken waits in vain.
const LONGER: Duration = Duration::from_secs(3600);

struct Place {
    /// What the names of this test begin with.
    prefix: String,
    url: String,
    server: &'static EtcdServer,
}

impl Place {
    fn new(layout: &str) -> Self {
        let prefix = format!("test-{:016x}", rand::random::<u64>());
        let server = shared();
        let url = format!("{}?layout={layout}&namespace={prefix}-own", server.url());
        Self { prefix, url, server }
    }

    async fn client(&self) -> Client {
        fencepost_etcd::connect(&self.url).await.expect("it connects")
    }

    fn name(&self, name: &str) -> String {
        format!("{}/{name}", self.prefix)
    }

    /// All keys of this test's locks.
    fn keys(&self) -> Vec<String> {
        let found = self.server.ctl(&["get", "--prefix", &format!("{}/", self.prefix), "--keys-only"]);
        found.lines().filter(|line| !line.is_empty()).map(str::to_owned).collect()
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn one_key_is_taken_and_given_back() {
    let place = Place::new("single");
    let (client, other) = (place.client().await, place.client().await);
    let guard = client.lock(place.name("a")).ttl(LONG).try_acquire().await.unwrap().unwrap();
    assert_eq!(place.keys(), [place.name("a")]);
    assert!(other.lock(place.name("a")).try_acquire().await.unwrap().is_none());
    assert_eq!(other.inspect(place.name("a")).await.unwrap().holders[0].token, Some(guard.token()));
    let listed = other.list(&place.prefix, Page::new(10)).await.unwrap();
    assert_eq!(listed.locks.iter().map(|lock| lock.name.to_string()).collect::<Vec<_>>(), [place.name("a")]);
    guard.release().await.unwrap();
    assert!(place.keys().is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn whoever_waits_for_one_key_is_woken_by_its_end() {
    let place = Place::new("single");
    let clients = [place.client().await, place.client().await];
    let guard = clients[0].lock(place.name("a")).ttl(LONGER).acquire().await.unwrap();
    let mut tasks = Vec::new();
    for client in &clients {
        for _ in 0..3 {
            let lock = client.lock(place.name("a")).ttl(LONGER);
            tasks.push(tokio::spawn(async move { lock.acquire().await.unwrap().token() }));
        }
    }
    wait::until("all wait", async || {
        let waiters = async |client: &Client| client.inspect(place.name("a")).await.unwrap().waiter_count;
        waiters(&clients[0]).await == 3 && waiters(&clients[1]).await == 3
    })
    .await;
    let first = guard.token();
    guard.release().await.unwrap();
    let mut tokens = vec![first];
    for task in tasks {
        tokens.push(wait::within_timeout("a turn comes", task).await.unwrap());
    }
    tokens.sort();
    tokens.dedup();
    assert_eq!(tokens.len(), 7);
    wait::until("nothing is left", async || place.keys().is_empty()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_key_that_somebody_else_has_made_keeps_us_out() {
    let place = Place::new("single");
    let client = place.client().await;
    place.server.ctl(&["put", &place.name("a"), "theirs"]);
    assert!(client.lock(place.name("a")).try_acquire().await.unwrap().is_none());
    let lock = client.lock(place.name("a")).ttl(LONG);
    let waiter = tokio::spawn(async move { lock.acquire().await.unwrap() });
    wait::until("it waits", async || client.inspect(place.name("a")).await.unwrap().waiter_count == 1).await;
    place.server.ctl(&["del", &place.name("a")]);
    let guard = wait::within_timeout("the key is free", waiter).await.unwrap();
    // Whoever overwrites our key has not made it; whoever makes it anew has.
    place.server.ctl(&["del", &place.name("a")]);
    place.server.ctl(&["put", &place.name("a"), "theirs"]);
    assert_eq!(wait::within_timeout("it is lost", guard.lost()).await, LostReason::NotHeld);
    drop(guard);
    client.close().await;
    assert_eq!(place.keys(), [place.name("a")]);
    place.server.ctl(&["del", &place.name("a")]);
}

/// Scenario 71: a program that looks once in a second, as tooz does, gets the lock although our clients wait for it all the time
/// and acquire it again at once.
#[tokio::test(flavor = "multi_thread")]
async fn a_peer_that_looks_once_in_a_second_gets_its_turns() {
    const TURNS: usize = 3;
    const LOOKS: usize = 25;
    let place = Place::new("single");
    let (server, name) = (place.server, place.name("a"));
    let clients = [place.client().await, place.client().await, place.client().await];
    let is_over = AtomicBool::new(false);
    let ours = join_all(clients.iter().map(async |client| {
        while !is_over.load(Ordering::Relaxed) {
            let guard = client.lock(place.name("a")).ttl(LONG).acquire().await.unwrap();
            wait::elapse(Duration::from_millis(150)).await;
            guard.release().await.unwrap();
        }
    }));
    let take = format!("etcdctl txn <<END\ncreate(\"{name}\") = \"0\"\n\nput {name} theirs\n\n\nEND");
    let peer = tokio::task::spawn_blocking(move || {
        let mut turns = 0;
        for _ in 0..LOOKS {
            wait::block_thread_for(Duration::from_secs(1));
            if server.run_shell(&take).starts_with("SUCCESS") {
                server.ctl(&["del", &name]);
                turns += 1;
            }
            if turns == TURNS {
                break;
            }
        }
        turns
    });
    let theirs = async {
        let outcome = peer.await;
        is_over.store(true, Ordering::Relaxed);
        outcome
    };
    let (_, theirs) = join(ours, theirs).await;
    assert_eq!(theirs.unwrap(), TURNS, "in {LOOKS} looks");
    assert!(place.keys().is_empty());
}

/// Whoever broke the lock has died before it removed the key: its holder does.
#[tokio::test(flavor = "multi_thread")]
async fn a_key_that_is_marked_as_broken_is_removed_by_its_holder() {
    for layout in ["single", "raw"] {
        let place = Place::new(layout);
        let client = place.client().await;
        let guard = client.lock(place.name("a")).ttl(LONG).acquire().await.unwrap();
        let kept = client.lock(place.name("b")).ttl(LONG).acquire().await.unwrap();
        let key = place.keys().into_iter().find(|key| key.starts_with(&place.name("a"))).unwrap();
        place.server.ctl(&["put", "--ignore-lease", &key, "broken"]);
        assert_eq!(wait::within_timeout("it is lost", guard.lost()).await, LostReason::Broken);
        wait::until("its key is gone", async || !place.keys().contains(&key)).await;
        assert_eq!(kept.lost_reason(), None);
        drop(guard);
        kept.release().await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_waiter_for_one_key_that_gives_up_leaves_nothing() {
    let place = Place::new("single");
    let client = place.client().await;
    let guard = client.lock(place.name("a")).ttl(LONG).acquire().await.unwrap();
    let short = Duration::from_millis(100);
    let error = client.lock(place.name("a")).ttl(LONG).wait(short).acquire().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::WaitTimeout);
    guard.release().await.unwrap();
    assert!(client.lock(place.name("a")).try_acquire().await.unwrap().is_some());
}

#[tokio::test(flavor = "multi_thread")]
async fn what_such_locks_cannot_do_is_said() {
    let kind = |error: fencepost_core::Error| {
        assert!(error.hint().is_some(), "{error}");
        error.kind()
    };
    for layout in ["single", "raw"] {
        let place = Place::new(layout);
        let client = place.client().await;
        let shared = client.lock(place.name("a")).mode(Mode::Shared).try_acquire().await;
        assert_eq!(kind(shared.expect_err("it is refused")), ErrorKind::Unsupported);
        let ours = client.lock(format!("{}-own/about", place.prefix)).try_acquire().await;
        assert_eq!(kind(ours.expect_err("it is refused")), ErrorKind::BadName);
    }
    let place = Place::new("single");
    let client = place.client().await;
    let guard = client.lock(place.name("a")).acquire().await.unwrap();
    let cell = guard.write_cell(*b"x", Keep::WhileHeld).await;
    assert_eq!(kind(cell.unwrap_err()), ErrorKind::Unsupported);
    let both = client.lock_all([place.name("b"), place.name("c")]).try_acquire().await;
    assert_eq!(kind(both.expect_err("it is refused")), ErrorKind::Unsupported);
}

/// In the official recipe's form `a` and `a/b` are not independent: whoever wants `a` waits for `a/b`, as with `etcdctl lock`.
#[tokio::test(flavor = "multi_thread")]
async fn the_official_recipe_and_ours_wait_for_each_other() {
    let place = Place::new("raw");
    let client = place.client().await;
    let lease = place.server.ctl(&["lease", "grant", "60"]);
    let lease = lease.split_whitespace().nth(1).expect("it has a number").to_owned();
    let theirs = place.name(&format!("a/{lease}"));
    place.server.ctl(&["put", "--lease", &lease, &theirs, ""]);
    let state = client.inspect(place.name("a")).await.unwrap();
    assert!(state.holders[0].label.contains(&theirs), "{state:?}");
    let lock = client.lock(place.name("a")).ttl(LONG);
    let waiter = tokio::spawn(async move { lock.acquire().await.unwrap() });
    wait::until("it waits", async || client.inspect(place.name("a")).await.unwrap().waiter_count == 1).await;
    place.server.ctl(&["lease", "revoke", &lease]);
    let guard = wait::within_timeout("they are gone", waiter).await.unwrap();
    assert!(place.keys()[0].starts_with(&place.name("a/")));
    guard.release().await.unwrap();
    assert!(place.keys().is_empty());
}
