//! More waiters of one client than it may have keys in one line.

use std::time::Duration;

use fencepost_core::{Guard, Mode};
use fencepost_testkit::TestBench;
use fencepost_testkit::suite::assert_clean;
use fencepost_testkit::wait;
use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;

use crate::actions::{LONG_TTL, Waiter, granted, hold, spawn_waiter, until_queued};
use crate::bench::EtcdBench;

/// How many keys a client has in one line.
const MOST: usize = 64;

/// They all stand in line as far as others can see, with so many keys and no more; who is cancelled leaves, the others are
/// served, and no key is left.
#[tokio::test]
async fn a_crowd_beyond_the_line_is_cancelled_and_served() {
    const CROWD: usize = 200;
    let bench = EtcdBench::plain();
    let (client, other) = (bench.client().await, bench.client().await);
    let guard = hold(&other.lock("a").ttl(LONG_TTL)).await;
    let mut crowd: Vec<Waiter> = (0..CROWD).map(|_| spawn_waiter(client.lock("a").ttl(LONG_TTL))).collect();
    until_queued(&client, "a", CROWD).await;
    assert_eq!(bench.line("a").len(), 1 + MOST);
    let stranger = spawn_waiter(other.lock("a").ttl(LONG_TTL));
    until_queued(&other, "a", MOST + 1).await;
    // Some with keys go, and some without.
    let mut gone = 0;
    let mut stay = Vec::new();
    for (number, waiter) in crowd.drain(..).enumerate() {
        if number % 3 == 0 {
            waiter.abort();
            gone += 1;
        } else {
            stay.push(waiter);
        }
    }
    until_queued(&client, "a", CROWD - gone + 1).await;
    assert!(bench.line("a").len() <= 2 + MOST, "{} keys", bench.line("a").len());
    let mut newest = guard.token();
    guard.release().await.unwrap();
    let mut served = FuturesUnordered::from_iter(stay);
    served.push(stranger);
    while let Some(turn) = wait::within_timeout("the next is served", served.next()).await {
        let guard: Guard = turn.unwrap().unwrap();
        assert!(guard.token() > newest);
        newest = guard.token();
        guard.release().await.unwrap();
    }
    assert_clean(&bench).await;
}

/// Readers who leave all at once make room for as many others at once, not for one after the other.
#[tokio::test]
async fn those_beyond_the_line_enter_together() {
    let bench = EtcdBench::plain();
    let client = bench.client().await;
    let reader = || spawn_waiter(client.lock("a").mode(Mode::Shared).ttl(LONG_TTL));
    let mut first = Vec::new();
    for waiter in (0..MOST).map(|_| reader()).collect::<Vec<_>>() {
        first.push(granted(waiter).await);
    }
    let later: Vec<Waiter> = (0..MOST).map(|_| reader()).collect();
    until_queued(&client, "a", MOST).await;
    let leaving: Vec<_> = first.into_iter().map(|guard| tokio::spawn(guard.release())).collect();
    for left in leaving {
        left.await.unwrap().unwrap();
    }
    let mut all = Vec::new();
    for waiter in later {
        all.push(granted(waiter).await);
    }
    assert_eq!(client.inspect("a").await.unwrap().holders.len(), MOST);
    drop(all);
    assert_clean(&bench).await;
}

/// Many who give up at the same moment as they could be served leave nothing behind.
#[tokio::test]
async fn whoever_gives_up_in_the_crowd_leaves_nothing() {
    let bench = EtcdBench::plain();
    let client = bench.client().await;
    let guard = hold(&client.lock("a").ttl(LONG_TTL)).await;
    let impatient =
        |number: u64| client.lock("a").ttl(LONG_TTL).wait(Duration::from_millis(100 + number * 7));
    let crowd: Vec<Waiter> = (0..150).map(|number| spawn_waiter(impatient(number))).collect();
    wait::until("some have given up", async || crowd.iter().any(Waiter::is_finished)).await;
    guard.release().await.unwrap();
    for waiter in crowd {
        if let Ok(guard) = wait::within_timeout("it is over", waiter).await.unwrap() {
            guard.release().await.unwrap();
        }
    }
    assert_clean(&bench).await;
}
