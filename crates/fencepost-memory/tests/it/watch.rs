//! The changes that a watch returns, on a manual clock.

use std::pin::pin;
use std::time::Duration;

use fencepost_core::clock::ManualClock;
use fencepost_core::{Change, Client, ErrorKind, Keep, Watch};
use fencepost_memory::Memory;
use fencepost_testkit::wait;
use futures_util::FutureExt;

use crate::manual_clock::{enqueue, on_a_manual_clock};

const SECOND: Duration = Duration::from_secs(1);
const TTL: Duration = Duration::from_secs(30);

/// Returns the next changes as text.
async fn next_changes(watch: &mut Watch, count: usize) -> Vec<String> {
    let mut texts = Vec::new();
    for _ in 0..count {
        texts.push(match watch.next().await.unwrap() {
            Change::Held { name, holder } => format!("{name} held by {}", holder.label),
            Change::Ended { name, holder, .. } => format!("{name} no longer held by {}", holder.label),
            Change::Waiters { name, count } => format!("{name} waiters {count}"),
            Change::Cell { name, cell } => format!("{name} cell {}", cell.is_some()),
            other => format!("{other:?}"),
        });
    }
    texts
}

/// Whether the watch has no change to return now.
fn is_pending(watch: &mut Watch) -> bool {
    watch.next().now_or_never().is_none()
}

/// Waits until every read that is due was done: the read of a new watch comes after it.
async fn reads_done(client: &Client) {
    assert!(client.watch("marker").next().await.is_ok());
}

#[test]
fn the_first_read_returns_all_locks_and_later_ones_the_changes() {
    on_a_manual_clock(async |memory, clock| {
        let client = memory.client().unwrap();
        let one = client.lock("a").ttl(TTL).label("one").acquire().await.unwrap();
        let mut watch = client.watch("");
        assert_eq!(next_changes(&mut watch, 1).await, ["a held by one"]);

        let two = enqueue(&client, "a", TTL).await;
        one.write_cell(*b"x", Keep::Always).await.unwrap();
        clock.advance(SECOND);
        assert_eq!(next_changes(&mut watch, 2).await, ["a waiters 1", "a cell true"]);

        one.release().await.unwrap();
        let two = two.await.unwrap().unwrap();
        clock.advance(SECOND);
        let label = two.label().to_owned();
        assert_eq!(
            next_changes(&mut watch, 3).await,
            ["a no longer held by one", &format!("a held by {label}"), "a waiters 0"]
        );
    });
}

#[test]
fn a_watch_returns_all_pages_of_its_prefix_and_no_other_names() {
    on_a_manual_clock(async |memory, _| {
        let client = memory.client().unwrap();
        let names: Vec<String> = (0..1201).map(|number| format!("lock/{number:04}")).collect();
        let mut guards = Vec::new();
        for name in names.iter().chain([&"other".to_owned()]) {
            guards.push(client.lock(name).label("me").acquire().await.unwrap());
        }
        let expected: Vec<String> = names.iter().map(|name| format!("{name} held by me")).collect();
        assert_eq!(next_changes(&mut client.watch("lock/"), 1201).await, expected);
    });
}

#[test]
fn renewals_are_not_changes() {
    on_a_manual_clock(async |memory, clock| {
        let client = memory.client().unwrap();
        let _held = client.lock("a").ttl(TTL).label("me").acquire().await.unwrap();
        let _marker = client.lock("marker").ttl(TTL).acquire().await.unwrap();
        let mut watch = client.watch("a");
        assert_eq!(next_changes(&mut watch, 1).await, ["a held by me"]);
        for _ in 0..100 {
            clock.advance(SECOND);
            assert!(is_pending(&mut watch));
            reads_done(&client).await;
            assert!(is_pending(&mut watch));
        }
    });
}

#[test]
fn changes_between_two_reads_are_merged() {
    on_a_manual_clock(async |memory, clock| {
        let client = memory.client().unwrap();
        let hold = async |label: &str| client.lock("a").label(label.to_owned()).acquire().await.unwrap();
        let one = hold("one").await;
        let mut watch = client.watch("").every(5 * SECOND);
        assert_eq!(next_changes(&mut watch, 1).await, ["a held by one"]);
        one.release().await.unwrap();
        hold("unseen").await.release().await.unwrap();
        let _three = hold("three").await;
        clock.advance(4 * SECOND);
        assert!(is_pending(&mut watch));
        clock.advance(SECOND);
        assert_eq!(next_changes(&mut watch, 2).await, ["a no longer held by one", "a held by three"]);
    });
}

/// Returns how much was left of the lease of `a` when it was no longer held.
async fn lease_left(watch: &mut Watch) -> Duration {
    match watch.next().await.unwrap() {
        Change::Ended { lease_left, .. } => lease_left,
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_released_lock_is_distinguished_from_one_that_may_have_expired() {
    on_a_manual_clock(async |memory, clock| {
        let (client, holder) = (memory.client().unwrap(), memory.client().unwrap());
        let mut watch = client.watch("");
        let guard = holder.lock("a").ttl(TTL).label("me").acquire().await.unwrap();
        assert_eq!(next_changes(&mut watch, 1).await, ["a held by me"]);
        guard.release().await.unwrap();
        clock.advance(SECOND);
        assert_eq!(lease_left(&mut watch).await, TTL.checked_sub(SECOND).unwrap());

        let guard = holder.lock("a").ttl(TTL).label("me").acquire().await.unwrap();
        clock.advance(SECOND);
        assert_eq!(next_changes(&mut watch, 1).await, ["a held by me"]);
        clock.jump(TTL);
        assert_eq!(lease_left(&mut watch).await, Duration::ZERO);
        drop(guard);
    });
}

#[test]
fn a_watch_survives_an_outage() {
    on_a_manual_clock(async |memory, clock| {
        let client = memory.client().unwrap();
        let mut watch = client.watch("");
        memory.faults().cut();
        for _ in 0..3 {
            assert_eq!(watch.next().await.unwrap_err().kind(), ErrorKind::Unreachable);
            assert!(is_pending(&mut watch), "it must not read again before its interval");
            clock.advance(SECOND);
        }
        memory.faults().heal();
        let _held = client.lock("a").label("me").acquire().await.unwrap();
        assert_eq!(next_changes(&mut watch, 1).await, ["a held by me"]);
    });
}

#[test]
fn a_dropped_call_loses_no_change() {
    on_a_manual_clock(async |memory, clock| {
        let client = memory.client().unwrap();
        let _held = client.lock("a").label("me").acquire().await.unwrap();
        let mut watch = client.watch("");
        let mut calls = 0;
        let first = loop {
            calls += 1;
            match pin!(watch.next()).now_or_never() {
                Some(change) => break change.unwrap(),
                None => tokio::task::yield_now().await,
            }
        };
        assert!(matches!(first, Change::Held { .. }), "{first:?} after {calls} calls");
        clock.advance(SECOND);
        assert!(is_pending(&mut watch));
    });
}

#[test]
fn a_closed_client_ends_the_watch_also_while_it_waits() {
    on_a_manual_clock(async |memory, _: ManualClock| {
        let client = memory.client().unwrap();
        let _held = client.lock("a").label("me").acquire().await.unwrap();
        let mut watch = client.watch("").every(Duration::from_secs(3600));
        assert_eq!(next_changes(&mut watch, 1).await, ["a held by me"]);
        assert!(is_pending(&mut watch), "it waits for its next read");
        client.close().await;
        for _ in 0..2 {
            assert_eq!(watch.next().await.unwrap_err().kind(), ErrorKind::Closed);
        }
    });
}

#[test]
fn a_watch_continues_through_another_client() {
    on_a_manual_clock(async |memory: Memory, clock| {
        let (old, new) = (memory.client().unwrap(), memory.client().unwrap());
        let held = new.lock("a").label("me").acquire().await.unwrap();
        let mut watch = old.watch("");
        assert_eq!(next_changes(&mut watch, 1).await, ["a held by me"]);
        old.close().await;
        assert_eq!(watch.next().await.unwrap_err().kind(), ErrorKind::Closed);
        let mut watch = watch.with_client(&new);
        held.release().await.unwrap();
        clock.advance(SECOND);
        assert_eq!(next_changes(&mut watch, 1).await, ["a no longer held by me"]);
    });
}

/// Otherwise a loop that continues after an error would spin.
#[test]
fn a_read_after_a_failed_one_waits_for_the_interval_too() {
    on_a_manual_clock(async |memory, clock| {
        let client = memory.client().unwrap();
        let mut watch = client.watch("");
        assert!(is_pending(&mut watch));
        memory.faults().cut();
        for _ in 0..3 {
            assert_eq!(watch.next().await.unwrap_err().kind(), ErrorKind::Unreachable);
            // One step to set the timer, one to request the list, one to receive it.
            for _ in 0..3 {
                assert!(is_pending(&mut watch), "it has read again at once");
                wait::elapse(Duration::from_millis(5)).await;
            }
            clock.advance(SECOND);
        }
    });
}
