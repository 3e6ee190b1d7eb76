//! Cluster: locks in one slot or in several, slots that migrate, nodes that die.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use fencepost_core::{Client, ErrorKind, Keep, Mode};
use fencepost_testkit::TestBench;
use fencepost_testkit::history::History;
use fencepost_testkit::servers::redis::{Cluster, RedisServerConfig, Replicas};
use fencepost_testkit::suite::assert_clean;
use fencepost_testkit::wait;

use crate::actions::{
    LONG_TTL, SHORT, connect, enqueue, granted, hold, spawn_waiter, until_queued, until_renewed,
};
use crate::deployments::{on, spread};
use crate::refusals::refusals_of;

#[tokio::test]
async fn names_with_one_hash_tag_are_acquired_together() {
    let bench = on(spread());
    let (ours, theirs) = (bench.client().await, bench.client().await);
    let both = ["{order42}/pay", "{order42}/ship"];
    let guard = hold(&ours.lock_all(both).ttl(LONG_TTL)).await;
    assert!(theirs.lock(both[1]).try_acquire().await.unwrap().is_none());
    let waiter = enqueue(&ours, theirs.lock_all(both).ttl(LONG_TTL), both[0], 1).await;
    guard.release().await.unwrap();
    granted(waiter).await.release().await.unwrap();
    let any = hold(&ours.lock_any(both).ttl(LONG_TTL)).await;
    assert!(both.contains(&any.name().as_str()));
    any.release().await.unwrap();
    assert_clean(&bench).await;
}

#[tokio::test]
async fn names_of_several_slots_are_rejected() {
    let bench = on(spread());
    let client = bench.client().await;
    for lock in [client.lock_all(["a", "b"]), client.lock_any(["{a}x", "{b}x"])] {
        let error = lock.try_acquire().await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
        assert!(error.hint().unwrap().contains("hash tag"), "{error}");
    }
    assert_clean(&bench).await;
}

/// Everything that a cluster keeps of a lock that is not in use expires.
#[tokio::test]
async fn the_counter_of_an_unused_lock_expires() {
    let bench = on(spread());
    let client = bench.client().await;
    let many = (0..300).map(|number| spawn_waiter(client.lock(format!("once/{number}")).ttl(LONG_TTL)));
    for one in many.collect::<Vec<_>>() {
        granted(one).await.release().await.unwrap();
    }
    let keys = bench.keys().await;
    let counters: Vec<&String> = keys.iter().filter(|key| !key.ends_with(":about")).collect();
    assert_eq!(counters.len(), 300, "one counter for each");
    for key in counters {
        let node = spread().owner_of(spread().slot_of(key));
        let left: i64 = spread().cli(node, &["TTL", key]).parse().unwrap();
        assert!((1..=3600).contains(&left), "{key} is kept for {left} s");
        if key.ends_with("9}:c") {
            break;
        }
    }
}

/// Acquires and releases two locks of one slot in turn, until `is_over` is set.
async fn take_turns(client: Client, who: String, history: Arc<History>, is_over: Arc<AtomicBool>) {
    let mut round = 0;
    while !is_over.load(Ordering::Relaxed) {
        round += 1;
        let name = format!("{{m}}/{}", round % 2);
        let lock = client.lock(name).ttl(SHORT * 12);
        let guard = hold(&lock).await;
        let record = history.granted(&who, &guard, Mode::Exclusive);
        tokio::task::yield_now().await;
        history.still_held(record, &guard);
        let outcome = wait::within_timeout("it is released", guard.release()).await;
        if let Err(error) = outcome {
            assert_eq!(error.kind(), ErrorKind::OutcomeUnknown, "{error}");
        }
    }
}

/// A slot migrates key by key while its locks are in use: renewals succeed all the time, everything else when the migration
/// is finished at the latest, and nothing is granted twice.
#[tokio::test]
async fn locks_migrate_with_their_slot() {
    let cluster = Cluster::start(Replicas::None);
    let bench = on(&cluster);
    let (ours, theirs) = (bench.client().await, bench.client().await);
    let held = hold(&ours.lock("{m}").ttl(SHORT * 2)).await;
    held.write_cell(*b"kept", Keep::Always).await.unwrap();
    let first = enqueue(&ours, theirs.lock("{m}").ttl(SHORT * 12), "{m}", 1).await;
    let second = enqueue(&ours, ours.lock("{m}").ttl(SHORT * 12), "{m}", 2).await;
    let key = |kind: &str| format!("{}:{{m}}:{kind}", bench.namespace());
    let slot = cluster.slot_of(&key("c"));
    let from = cluster.owner_of(slot);
    let (history, is_over) = (Arc::new(History::default()), Arc::new(AtomicBool::new(false)));
    let workers: Vec<_> = [&ours, &theirs, &ours, &theirs].into_iter().enumerate().collect();
    let workers: Vec<_> = workers
        .into_iter()
        .map(|(number, client)| {
            let (client, who) = (client.clone(), format!("worker {number}"));
            tokio::spawn(take_turns(client, who, history.clone(), is_over.clone()))
        })
        .collect();
    wait::until("all are busy", async || history.len() > 40).await;
    let migration = cluster.migrate_slot(slot, from, (from + 1) % 3);
    until_renewed(&held).await;
    for moved in ["l:{m}", "q:{m}", "c", "v:{m}"] {
        migration.move_keys(&[&key(moved)]);
        until_renewed(&held).await;
        until_renewed(&held).await;
    }
    migration.finish();
    let before = history.len();
    wait::until("all are busy again", async || history.len() > before + 40).await;
    is_over.store(true, Ordering::Relaxed);
    for worker in workers {
        worker.await.unwrap();
    }
    history.check().unwrap_or_else(|violation| panic!("{violation}"));
    assert!(held.is_valid());
    until_queued(&ours, "{m}", 2).await;
    let cell = theirs.read_cell("{m}").await.unwrap().expect("the cell has migrated too");
    assert_eq!(&*cell.bytes, b"kept");
    let mut newest = held.token();
    held.release().await.unwrap();
    for waiter in [first, second] {
        let guard = granted(waiter).await;
        assert!(guard.token() > newest, "a waiter was overtaken");
        newest = guard.token();
        guard.release().await.unwrap();
    }
    // A new client, and one that learns only now where the slot is.
    for client in [bench.client().await, theirs] {
        assert!(hold(&client.lock("{m}").ttl(LONG_TTL)).await.token() > newest);
    }
}

/// Scenario 66: a slot migrates for longer than the timeout of one call. Acquires of its locks are retried until the end.
#[tokio::test]
async fn an_acquire_outlasts_the_migration_of_its_slot() {
    let cluster = Cluster::start(Replicas::None);
    let bench = on(&cluster);
    let (ours, theirs) = (bench.client().await, bench.client().await);
    hold(&ours.lock("{m}").ttl(SHORT)).await.release().await.unwrap();
    let counter = format!("{}:{{m}}:c", bench.namespace());
    let slot = cluster.slot_of(&counter);
    let from = cluster.owner_of(slot);
    let to = (from + 1) % 3;
    let migration = cluster.migrate_slot(slot, from, to);
    let mut attempts = Vec::new();
    for (moved, client) in [(0, &ours), (1, &theirs)] {
        if moved == 1 {
            migration.move_keys(&[&counter]);
        }
        for mode in [Mode::Exclusive, Mode::Shared, Mode::Exclusive] {
            let lock = client.lock("{m}").ttl(SHORT).mode(mode);
            attempts.push(tokio::spawn(async move { lock.acquire().await?.release().await }));
        }
        // A call is retried fifty times at most before its timeout.
        let refusing = cluster.node(if moved == 1 { to } else { from });
        let before = refusals_of(refusing, "TRYAGAIN");
        wait::until("more than one call has timed out", async || {
            refusals_of(refusing, "TRYAGAIN") > before + 150
        })
        .await;
        assert!(attempts.iter().all(|attempt| !attempt.is_finished()));
    }
    migration.finish();
    for attempt in attempts {
        wait::within_timeout("its turn comes", attempt).await.unwrap().unwrap();
    }
    assert_clean(&bench).await;
}

/// A node dies and its replica takes over: the lock and its queue are kept.
#[tokio::test]
async fn a_lock_outlives_its_node() {
    let cluster = Cluster::start(Replicas::OneEach);
    let bench = on(&cluster);
    let (ours, theirs) = (bench.client().await, bench.client().await);
    let held = hold(&ours.lock("a").ttl(LONG_TTL)).await;
    let waiter = enqueue(&ours, theirs.lock("a").ttl(LONG_TTL), "a", 1).await;
    let node = cluster.owner_of(cluster.slot_of(&format!("{}:{{a}}:c", bench.namespace())));
    let known = held.valid_until();
    cluster.node(node).kill();
    crate::actions::until_renewed_since(&held, known).await;
    let token = held.token();
    wait::within_timeout("it is released", held.release()).await.unwrap();
    let next = granted(waiter).await;
    assert!(next.token() > token);
    next.release().await.unwrap();
    let other = hold(&theirs.lock("another slot").ttl(LONG_TTL)).await;
    other.release().await.unwrap();
}

/// A node is paused. Locks on other nodes are not affected, however many calls wait for the paused one; when it is resumed,
/// its own locks are still held.
#[tokio::test]
async fn a_paused_node_does_not_block_the_others() {
    // Otherwise the other nodes would reject calls too, because the cluster is not complete.
    let config = RedisServerConfig::plain().with_config("cluster-require-full-coverage no");
    let cluster = Cluster::start_with(&config, Replicas::None);
    let bench = on(&cluster);
    let client = bench.client().await;
    let node_of =
        |name: &str| cluster.owner_of(cluster.slot_of(&format!("{}:{{{name}}}:c", bench.namespace())));
    let there = node_of("there");
    let here = (0..100).map(|number| format!("here {number}")).find(|name| node_of(name) != there).unwrap();
    let far = hold(&client.lock("there").ttl(LONG_TTL)).await;
    let near = hold(&client.lock(&here).ttl(SHORT)).await;
    cluster.node(there).pause();
    let stuck: Vec<_> = (0..20)
        .map(|number| spawn_waiter(client.lock(format!("{{there}}/{number}")).ttl(LONG_TTL)))
        .collect();
    for _ in 0..10 {
        until_renewed(&near).await;
    }
    cluster.node(there).resume();
    for waiter in stuck {
        // Some may fail as unreachable; all others are granted.
        if let Ok(guard) = wait::within_timeout("it is over", waiter).await.unwrap() {
            guard.release().await.unwrap();
        }
    }
    let again = hold(&client.lock("{there}/0").ttl(LONG_TTL)).await;
    assert!(far.is_valid() && near.is_valid());
    for guard in [again, far, near] {
        guard.release().await.unwrap();
    }
    assert_clean(&bench).await;
}

/// Pushes reach a client through every node of a cluster, but the script knows only the subscriptions on its own node. A waiter
/// that is not subscribed there is skipped, and must not receive a grant through another node.
#[tokio::test]
async fn a_skipped_waiter_receives_no_grant_through_another_node() {
    let cluster = spread();
    let bench = on(cluster);
    let user = format!("unsubscribed-{}", bench.namespace());
    let on_node = |node: usize, command: &[&str]| cluster.cli(node, command);
    (0..3).for_each(|node| {
        on_node(node, &["ACL", "SETUSER", &user, "on", ">word", "+@all", "~*", "&*"]);
    });
    let url = bench.url().replace("redis+cluster://", &format!("redis+cluster://{user}:word@"));
    let (ours, unsubscribed) = (bench.client().await, connect(&url).await);
    let held = hold(&ours.lock("a").ttl(LONG_TTL)).await;
    let waiter = enqueue(&ours, unsubscribed.lock("a").ttl(LONG_TTL), "a", 1).await;
    let node = cluster.owner_of(cluster.slot_of(&format!("{}:{{a}}:c", bench.namespace())));
    on_node(node, &["ACL", "SETUSER", &user, "off"]);
    on_node(node, &["CLIENT", "KILL", "USER", &user]);
    let token = held.token();
    held.release().await.unwrap();
    let next = ours.lock("a").ttl(LONG_TTL).try_acquire().await.unwrap().expect("the waiter is skipped");
    deliver_pushes(&ours).await;
    assert!(!waiter.is_finished(), "the skipped waiter received a grant");
    on_node(node, &["ACL", "SETUSER", &user, "on"]);
    wait::until("it is subscribed again", async || bench.listeners().await == Some(2)).await;
    next.release().await.unwrap();
    let last = granted(waiter).await;
    assert!(last.token() > token);
    last.release().await.unwrap();
    assert_clean(&bench).await;
}

/// Renews and hands over another lock: all earlier pushes have arrived by then.
async fn deliver_pushes(client: &Client) {
    let other = hold(&client.lock("other").ttl(SHORT)).await;
    let waiter = enqueue(client, client.lock("other").ttl(SHORT), "other", 1).await;
    until_renewed(&other).await;
    other.release().await.unwrap();
    granted(waiter).await.release().await.unwrap();
}
