//! A cluster: locks in one slot or in several, slots that move, nodes that die.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use fencepost_core::{Client, ErrorKind, Keep, Mode};
use fencepost_testkit::TestBench;
use fencepost_testkit::history::History;
use fencepost_testkit::servers::redis::{Cluster, Replicas};
use fencepost_testkit::suite::assert_clean;
use fencepost_testkit::wait;

use crate::actors::{LONG, SHORT, granted, hold, in_line, joined, renewed, waiting};
use crate::setups::{on, spread};

#[tokio::test]
async fn names_with_one_hash_tag_are_taken_together() {
    let bench = on(spread());
    let (ours, theirs) = (bench.client().await, bench.client().await);
    let both = ["{order42}/pay", "{order42}/ship"];
    let guard = hold(&ours.lock_all(both).ttl(LONG)).await;
    assert!(theirs.lock(both[1]).try_acquire().await.unwrap().is_none());
    let waiter = joined(&ours, theirs.lock_all(both).ttl(LONG), both[0], 1).await;
    guard.release().await.unwrap();
    granted(waiter).await.release().await.unwrap();
    let any = hold(&ours.lock_any(both).ttl(LONG)).await;
    assert!(both.contains(&any.name().as_str()));
    any.release().await.unwrap();
    assert_clean(&bench).await;
}

#[tokio::test]
async fn names_of_several_slots_are_not() {
    let bench = on(spread());
    let client = bench.client().await;
    for lock in [client.lock_all(["a", "b"]), client.lock_any(["{a}x", "{b}x"])] {
        let error = lock.try_acquire().await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
        assert!(error.hint().unwrap().contains("hash tag"), "{error}");
    }
    assert_clean(&bench).await;
}

/// What a cluster remembers of a lock that is not in use, it forgets after a time.
#[tokio::test]
async fn everything_that_is_left_of_a_lock_ends() {
    let bench = on(spread());
    let client = bench.client().await;
    let many = (0..300).map(|number| waiting(client.lock(format!("once/{number}")).ttl(SHORT)));
    for one in many.collect::<Vec<_>>() {
        granted(one).await.release().await.unwrap();
    }
    let keys = bench.keys().await;
    let counters: Vec<&String> = keys.iter().filter(|key| !key.ends_with(":about")).collect();
    assert_eq!(counters.len(), 300, "one counter for each");
    for key in counters {
        let node = spread().owner_of(spread().slot_of(key));
        let left: i64 = spread().cli(node, &["TTL", key]).parse().unwrap();
        assert!((1..=3600).contains(&left), "{key} stays for {left} s");
        if key.ends_with("9}:c") {
            break;
        }
    }
}

/// Takes turns on a few locks of one slot until told to stop.
async fn take_turns(client: Client, who: String, history: Arc<History>, is_over: Arc<AtomicBool>) {
    let mut round = 0;
    while !is_over.load(Ordering::Relaxed) {
        round += 1;
        let name = format!("{{m}}/{}", round % 2);
        let lock = client.lock(name).ttl(SHORT * 12);
        let guard = match wait::within_patience("a turn, or an error", lock.acquire()).await {
            Ok(guard) => guard,
            // The slot is on its way for longer than a call is patient.
            Err(error) if error.kind() == ErrorKind::Unreachable => continue,
            Err(error) => panic!("{error}"),
        };
        let record = history.granted(&who, &guard, Mode::Exclusive);
        tokio::task::yield_now().await;
        history.still_held(record, &guard);
        let outcome = wait::within_patience("it is given back", guard.release()).await;
        if let Err(error) = outcome {
            assert_eq!(error.kind(), ErrorKind::OutcomeUnknown, "{error}");
        }
    }
}

/// A slot moves key by key while its locks are in use: renewals go on all the time, everything else goes on at the end
/// at the latest, and nothing is granted twice.
#[tokio::test]
async fn locks_move_with_their_slot() {
    let cluster = Cluster::start(Replicas::None);
    let bench = on(&cluster);
    let (ours, theirs) = (bench.client().await, bench.client().await);
    let held = hold(&ours.lock("{m}").ttl(SHORT * 2)).await;
    held.write_cell(*b"kept", Keep::Always).await.unwrap();
    let first = joined(&ours, theirs.lock("{m}").ttl(SHORT * 2), "{m}", 1).await;
    let second = joined(&ours, ours.lock("{m}").ttl(SHORT * 2), "{m}", 2).await;
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
    renewed(&held).await;
    for moved in ["l:{m}", "q:{m}", "c", "v:{m}"] {
        migration.move_keys(&[&key(moved)]);
        renewed(&held).await;
        renewed(&held).await;
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
    in_line(&ours, "{m}", 2).await;
    let cell = theirs.read_cell("{m}").await.unwrap().expect("it has moved too");
    assert_eq!(&*cell.bytes, b"kept");
    let mut newest = held.token();
    held.release().await.unwrap();
    for waiter in [first, second] {
        let guard = granted(waiter).await;
        assert!(guard.token() > newest, "somebody was overtaken");
        newest = guard.token();
        guard.release().await.unwrap();
    }
    // A client that comes now, and one that only learns now where the slot is.
    for client in [bench.client().await, theirs] {
        assert!(hold(&client.lock("{m}").ttl(LONG)).await.token() > newest);
    }
}

/// A node dies and its replica takes over: the lock is kept, and so is the line.
#[tokio::test]
async fn a_lock_outlives_its_node() {
    let cluster = Cluster::start(Replicas::OneEach);
    let bench = on(&cluster);
    let (ours, theirs) = (bench.client().await, bench.client().await);
    let held = hold(&ours.lock("a").ttl(LONG)).await;
    let waiter = joined(&ours, theirs.lock("a").ttl(LONG), "a", 1).await;
    let node = cluster.owner_of(cluster.slot_of(&format!("{}:{{a}}:c", bench.namespace())));
    let known = held.valid_until();
    cluster.node(node).kill();
    crate::actors::renewed_since(&held, known).await;
    let token = held.token();
    wait::within_patience("it is given back", held.release()).await.unwrap();
    let next = granted(waiter).await;
    assert!(next.token() > token);
    next.release().await.unwrap();
    let other = hold(&theirs.lock("another slot").ttl(LONG)).await;
    other.release().await.unwrap();
}
