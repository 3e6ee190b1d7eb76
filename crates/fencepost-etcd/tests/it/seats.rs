//! The keys of a client are used again: a server walks over every key that a line has ever had, until it compacts.

use std::collections::BTreeSet;
use std::time::Duration;

use fencepost_core::{ErrorKind, Mode};
use fencepost_testkit::suite::assert_clean;
use fencepost_testkit::{TestBench, WireBench};

use crate::actions::{LONG_TTL, granted, hold, spawn_waiter, until_queued};
use crate::bench::EtcdBench;

/// Of a request whose answer is lost something is remembered for twice as long, and is to be gone before a test is over.
const DOUBTFUL: Duration = Duration::from_secs(6);

/// However often a lock is taken, its line has had no more keys than there were contenders at once.
#[tokio::test]
async fn a_line_does_not_grow_with_every_attempt() {
    let bench = EtcdBench::plain();
    let client = bench.client().await;
    for (name, lock) in
        [("a", client.lock("a")), ("b", client.lock("b").mode(Mode::Semaphore { permits: 2 }))]
    {
        let mut ever = BTreeSet::new();
        for _ in 0..10 {
            let guard = hold(&lock.clone().ttl(LONG_TTL)).await;
            ever.extend(bench.line(name));
            guard.release().await.unwrap();
        }
        assert_eq!(ever.len(), 1, "{ever:?}");
    }
    let (mut ever, both) = (BTreeSet::new(), client.lock_all(["a", "b"]).ttl(LONG_TTL));
    for _ in 0..5 {
        let holder = hold(&client.lock("a").ttl(LONG_TTL)).await;
        let waiter = spawn_waiter(both.clone());
        until_queued(&client, "a", 1).await;
        ever.extend(bench.line("a"));
        holder.release().await.unwrap();
        granted(waiter).await.release().await.unwrap();
    }
    assert_eq!(ever.len(), 2, "{ever:?}");
    assert_clean(&bench).await;
}

/// Whoever finds somebody in the seat that it had before takes another one, and stands behind.
#[tokio::test]
async fn a_seat_that_is_taken_is_left_to_whoever_sits_there() {
    let bench = EtcdBench::plain();
    let client = bench.client().await;
    let locks = [
        client.lock("a").ttl(LONG_TTL),
        client.lock_any(["a", "b"]).ttl(LONG_TTL),
        client.lock_all(["a", "c"]).ttl(LONG_TTL),
    ];
    for lock in locks {
        let guard = hold(&client.lock("a").ttl(LONG_TTL)).await;
        let seat = bench.line("a").remove(0);
        guard.release().await.unwrap();
        let other = hold(&client.lock("b").ttl(LONG_TTL)).await;
        bench.ctl(&["put", &seat, "somebody"]);
        assert!(lock.try_acquire().await.unwrap().is_none());
        let waiter = spawn_waiter(lock);
        until_queued(&client, "a", 1).await;
        let line = bench.line("a");
        assert_eq!((line.len(), &line[0]), (2, &seat));
        bench.ctl(&["del", &seat]);
        let guard = granted(waiter).await;
        assert_eq!(bench.line("a"), line[1..]);
        guard.release().await.unwrap();
        other.release().await.unwrap();
    }
    assert_clean(&bench).await;
}

/// A release whose answer was lost, and which is sent again, does not take away the key of whoever has the seat now.
#[tokio::test]
async fn a_release_without_an_answer_harms_nobody_in_the_same_seat() {
    let bench = EtcdBench::plain();
    let client = bench.client().await;
    for _ in 0..5 {
        let guard = hold(&client.lock("a").ttl(DOUBTFUL)).await;
        let seat = bench.line("a");
        let next = spawn_waiter(client.lock("a").ttl(DOUBTFUL));
        until_queued(&client, "a", 1).await;
        bench.wire().lose_reply_to(b"/lock/a/x/");
        // The second finds that it is gone, unless it was another answer that got lost.
        let unsure = guard.release().await.err().map(|error| error.kind());
        assert!(matches!(unsure, None | Some(ErrorKind::OutcomeUnknown)), "{unsure:?}");
        let next = granted(next).await;
        let again = spawn_waiter(client.lock("a").ttl(DOUBTFUL));
        until_queued(&client, "a", 1).await;
        assert_eq!(bench.line("a")[1..], seat, "the seat is used again");
        assert!(next.is_valid());
        next.release().await.unwrap();
        granted(again).await.release().await.unwrap();
    }
    assert_clean(&bench).await;
}
