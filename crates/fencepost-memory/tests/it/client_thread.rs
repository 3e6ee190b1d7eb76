//! The client's thread: it starves no input, blocks on no caller, and ends when it should.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::task::{Context, Waker};
use std::time::Duration;

use fencepost_core::{ErrorKind, Page};
use fencepost_memory::Memory;
use fencepost_testkit::proxy::OpKind;
use fencepost_testkit::{TestBench, wait};

use crate::bench::MemoryBench;

const LONG: Duration = Duration::from_secs(120);

/// Of two sends the second was granted and released; then the first arrives.
#[tokio::test]
async fn a_stuck_acquire_does_nothing_after_its_resend_was_granted_and_released() {
    let bench = MemoryBench::new();
    let (client, proxy) = bench.proxied().await;
    proxy.strand(OpKind::Acquire);
    let guard = client.lock("a").ttl(Duration::from_secs(2)).acquire().await.unwrap();
    guard.release().await.unwrap();
    wait::until("the late acquire to be undone", async || proxy.count(OpKind::Leave) == 1).await;
    assert!(client.read_cell("a").await.unwrap().is_none());
    let late = proxy.deliver_stranded().await;
    assert!(client.inspect("a").await.unwrap().is_idle(), "an orphan holds the lock: {late:?}");
}

/// A program that cancels a wait, drops its guard and ends.
#[test]
fn dropping_the_last_handle_releases_locks_although_an_attempt_was_just_dropped() {
    for _ in 0..100 {
        let memory = Memory::new();
        let client = memory.client().unwrap();
        let guard = futures_executor::block_on(client.lock("a").ttl(LONG).acquire()).unwrap();
        let lock = client.lock("b").ttl(LONG);
        let mut waiting = Box::pin(lock.acquire());
        // Mostly the request is still in flight; if it was granted already, its guard is dropped here.
        drop(waiting.as_mut().poll(&mut Context::from_waker(Waker::noop())));
        drop(waiting);
        drop((lock, guard, client));
        let count = memory.count();
        assert_eq!((count.holders, count.tickets), (0, 0), "the program ended without releasing its locks");
    }
}

/// A backend that replies at once keeps the thread busy; it processes pushes and requests all the same. Measured in operations of
/// the busy tasks, which does not depend on the speed of the host.
#[test]
fn pushes_and_requests_are_processed_under_load() {
    let memory = Memory::new();
    let (busy, other) = (memory.client().unwrap(), memory.client().unwrap());
    let stop = Arc::new(AtomicBool::new(false));
    let cycles = Arc::new(AtomicUsize::new(0));
    let load = |number: usize| {
        let (client, stop, cycles) = (busy.clone(), stop.clone(), cycles.clone());
        std::thread::spawn(move || {
            let mut round = 0;
            while !stop.load(Ordering::Relaxed) {
                round += 1;
                let lock = client.lock(format!("busy/{number}/{}", round % 16));
                drop(futures_executor::block_on(lock.acquire()).unwrap());
                cycles.fetch_add(1, Ordering::Relaxed);
            }
        })
    };
    let threads: Vec<_> = (0..8).map(load).collect();
    let mut overtaken = 0;
    futures_executor::block_on(async {
        for _ in 0..20 {
            let guard = other.lock("a").ttl(LONG).acquire().await.unwrap();
            let lock = busy.lock("a").ttl(LONG);
            let waiter =
                std::thread::spawn(move || drop(futures_executor::block_on(lock.acquire()).unwrap()));
            while other.inspect("a").await.unwrap().waiter_count == 0 {}
            let before = cycles.load(Ordering::Relaxed);
            guard.release().await.unwrap();
            waiter.join().unwrap();
            busy.inspect("a").await.unwrap();
            overtaken += cycles.load(Ordering::Relaxed) - before;
        }
    });
    stop.store(true, Ordering::Relaxed);
    for thread in threads {
        thread.join().unwrap();
    }
    // Some hundreds if it is fair; some hundred thousands if replies take precedence over all other input.
    assert!(overtaken < 20_000, "{overtaken} cycles of other tasks preceded twenty hand-overs and requests");
}

#[tokio::test]
async fn a_closing_client_rejects_requests() {
    let bench = MemoryBench::new();
    let (client, proxy) = bench.proxied().await;
    let guard = client.lock("a").ttl(Duration::from_secs(6)).acquire().await.unwrap();
    proxy.lose_request(OpKind::Release);
    let closing = tokio::spawn({
        let client = client.clone();
        async move { client.close().await }
    });
    wait::until("the client to be closing", async || guard.lost_reason().is_some()).await;
    assert_eq!(client.read_cell("a").await.unwrap_err().kind(), ErrorKind::Closed);
    wait::within_timeout("the client to be closed", closing).await.unwrap();
}

/// An operation without a reply fails after its own ttl, whatever else is in the same flight.
#[tokio::test]
async fn a_try_without_a_reply_fails_after_its_own_ttl() {
    let bench = MemoryBench::new();
    let (client, proxy) = bench.proxied().await;
    let long = client.lock("long").ttl(Duration::from_secs(24 * 3600));
    proxy.pause();
    let mut slow = Box::pin(long.acquire());
    assert!(slow.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
    let short = client.lock("short").ttl(Duration::from_millis(200));
    let error = wait::within_timeout("the try to fail", short.try_acquire()).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::OutcomeUnknown);
}

/// One descriptor each would exhaust the limit of the process, which is often 1024.
#[cfg(target_os = "linux")]
#[tokio::test]
async fn watches_and_pending_requests_do_not_use_a_descriptor_each() {
    const MANY: usize = 1000;
    let open = || std::fs::read_dir("/proc/self/fd").unwrap().count();
    let bench = MemoryBench::new();
    let (client, proxy) = bench.proxied().await;
    let before = open();
    let watches: Vec<_> = (0..MANY).map(|_| client.watch("").every(LONG)).collect();
    let watching =
        watches.into_iter().map(|mut watch| tokio::spawn(async move { watch.next().await.map(drop) }));
    let watching: Vec<_> = watching.collect();
    // Each watch has read the list once, and waits for its next interval.
    tokio::task::yield_now().await;
    client.list("", Page::new(1)).await.unwrap();
    proxy.pause();
    let requests = (0..MANY)
        .map(|_| client.clone())
        .map(|client| tokio::spawn(async move { client.inspect("a").await }));
    let requests: Vec<_> = requests.collect();
    wait::elapse(Duration::from_millis(100)).await;
    let opened = open().saturating_sub(before);
    assert!(opened < MANY / 2, "{opened} descriptors for {MANY} watches and {MANY} requests");
    proxy.resume();
    for request in requests {
        request.await.unwrap().unwrap();
    }
    watching.iter().for_each(tokio::task::JoinHandle::abort);
}
