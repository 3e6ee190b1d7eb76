//! The keys of a client are reused: a server scans every key that ever existed in a queue, until it compacts.

use std::collections::BTreeSet;
use std::time::Duration;

use fencepost_core::{ErrorKind, Mode};
use fencepost_testkit::suite::assert_clean;
use fencepost_testkit::{TestBench, WireBench};

use crate::actions::{LONG_TTL, granted, hold, spawn_waiter, until_queued};
use crate::bench::EtcdBench;

/// The ttl of attempts whose responses may be lost. A tombstone is remembered for twice as long, and must be gone before a
/// test ends.
const UNKNOWN_TTL: Duration = Duration::from_secs(6);

/// However often a lock is acquired, its queue has had no more keys than concurrent contenders.
#[tokio::test]
async fn a_queue_does_not_grow_with_every_attempt() {
    let bench = EtcdBench::plain();
    let client = bench.client().await;
    for (name, lock) in
        [("a", client.lock("a")), ("b", client.lock("b").mode(Mode::Semaphore { permits: 2 }))]
    {
        let mut keys = BTreeSet::new();
        for _ in 0..10 {
            let guard = hold(&lock.clone().ttl(LONG_TTL)).await;
            keys.extend(bench.queue(name));
            guard.release().await.unwrap();
        }
        assert_eq!(keys.len(), 1, "{keys:?}");
    }
    let (mut keys, both) = (BTreeSet::new(), client.lock_all(["a", "b"]).ttl(LONG_TTL));
    for _ in 0..5 {
        let holder = hold(&client.lock("a").ttl(LONG_TTL)).await;
        let waiter = spawn_waiter(both.clone());
        until_queued(&client, "a", 1).await;
        keys.extend(bench.queue("a"));
        holder.release().await.unwrap();
        granted(waiter).await.release().await.unwrap();
    }
    assert_eq!(keys.len(), 2, "{keys:?}");
    assert_clean(&bench).await;
}

/// An attempt whose key exists already uses another suffix, and waits behind that key.
#[tokio::test]
async fn an_occupied_suffix_is_not_used() {
    let bench = EtcdBench::plain();
    let client = bench.client().await;
    let locks = [
        client.lock("a").ttl(LONG_TTL),
        client.lock_any(["a", "b"]).ttl(LONG_TTL),
        client.lock_all(["a", "c"]).ttl(LONG_TTL),
    ];
    for lock in locks {
        let guard = hold(&client.lock("a").ttl(LONG_TTL)).await;
        let key = bench.queue("a").remove(0);
        guard.release().await.unwrap();
        let other = hold(&client.lock("b").ttl(LONG_TTL)).await;
        bench.ctl(&["put", &key, "foreign"]);
        assert!(lock.try_acquire().await.unwrap().is_none());
        let waiter = spawn_waiter(lock);
        until_queued(&client, "a", 1).await;
        let queue = bench.queue("a");
        assert_eq!((queue.len(), &queue[0]), (2, &key));
        bench.ctl(&["del", &key]);
        let guard = granted(waiter).await;
        assert_eq!(bench.queue("a"), queue[1..]);
        guard.release().await.unwrap();
        other.release().await.unwrap();
    }
    assert_clean(&bench).await;
}

/// A release whose response was lost, and which is sent again, does not delete the key of a later attempt with the same
/// suffix.
#[tokio::test]
async fn a_repeated_release_does_not_delete_a_later_key_with_the_same_suffix() {
    let bench = EtcdBench::plain();
    let client = bench.client().await;
    for _ in 0..5 {
        let guard = hold(&client.lock("a").ttl(UNKNOWN_TTL)).await;
        let queue = bench.queue("a");
        let next = spawn_waiter(client.lock("a").ttl(UNKNOWN_TTL));
        until_queued(&client, "a", 1).await;
        bench.wire().lose_reply_to(b"/lock/a/x/");
        // The repeated release finds no key, unless another response was lost.
        let failed = guard.release().await.err().map(|error| error.kind());
        assert!(matches!(failed, None | Some(ErrorKind::OutcomeUnknown)), "{failed:?}");
        let next = granted(next).await;
        let again = spawn_waiter(client.lock("a").ttl(UNKNOWN_TTL));
        until_queued(&client, "a", 1).await;
        assert_eq!(bench.queue("a")[1..], queue, "the suffix is reused");
        assert!(next.is_valid());
        next.release().await.unwrap();
        granted(again).await.release().await.unwrap();
    }
    assert_clean(&bench).await;
}
