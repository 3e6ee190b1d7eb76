//! Any executor, any thread, or none: the client works on a thread of its own.

use super::{LONG_TTL, hold, supported};
use crate::test_bench::TestBench;
use crate::wait;

/// Scenario 33: the application blocks its only thread for three ttls; the lease is kept.
pub async fn a_blocked_runtime_keeps_its_leases<B: TestBench>(bench: &B) {
    let (client, other) = (bench.client().await, bench.client().await);
    let ttl = bench.ttl() * 2;
    let single_threaded = std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let guard = client.lock("a").ttl(ttl).acquire().await.unwrap();
            wait::block_thread_for(ttl * 3);
            assert!(guard.is_valid());
            guard.release().await
        })
    });
    wait::until("the lock is held", async || super::is_held(&other, "a").await).await;
    assert!(other.lock("a").try_acquire().await.unwrap().is_none());
    let released = tokio::task::spawn_blocking(|| single_threaded.join().unwrap()).await.unwrap();
    released.expect("it was held until the end");
}

/// Every call works on an executor without tokio.
pub async fn every_call_works_without_tokio<B: TestBench>(bench: &B) {
    let connecting = bench.connect();
    let elsewhere = std::thread::spawn(|| {
        futures_executor::block_on(async {
            let client = fencepost_core::Client::connect_with(connecting).await.unwrap();
            let guard = client.lock("a").ttl(LONG_TTL).acquire().await.unwrap();
            supported(guard.write_cell(*b"hello", fencepost_core::Keep::WhileHeld).await);
            assert!(supported(client.read_cell("a").await).is_none_or(|cell| cell.is_some()));
            assert!(client.lock("a").try_acquire().await.unwrap().is_none());
            assert_eq!(client.inspect("a").await.unwrap().holders[0].token, Some(guard.token()));
            guard.release().await.unwrap();
            let out = client.lock("a").run(async |guard| guard.token()).await.unwrap();
            assert!(out.get() > 0);
            client.close().await;
        });
    });
    tokio::task::spawn_blocking(|| elsewhere.join().unwrap()).await.unwrap();
}

/// A client and its guards keep working after the end of the runtime that created the client.
pub async fn a_client_outlives_the_runtime_that_made_it<B: TestBench>(bench: &B) {
    let connecting = bench.connect();
    let ttl = bench.ttl() * 2;
    let elsewhere = std::thread::spawn(move || {
        let runtime =
            tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        let (client, guard) = runtime.block_on(async {
            let client = fencepost_core::Client::connect_with(connecting).await.unwrap();
            let guard = client.lock("a").ttl(ttl).acquire().await.unwrap();
            (client, guard)
        });
        drop(runtime);
        wait::block_thread_for(ttl * 2);
        assert!(guard.is_valid(), "it is renewed all the while");
        futures_executor::block_on(async {
            guard.release().await.unwrap();
            client.lock("b").acquire().await.unwrap().release().await.unwrap();
        });
        (client, ())
    });
    let (client, ()) = tokio::task::spawn_blocking(|| elsewhere.join().unwrap()).await.unwrap();
    hold(&client.lock("a")).await.release().await.unwrap();
}

/// A guard may be dropped outside of any runtime.
pub async fn a_guard_may_be_dropped_anywhere<B: TestBench>(bench: &B) {
    let client = bench.client().await;
    let guard = hold(&client.lock("a").ttl(LONG_TTL)).await;
    std::thread::spawn(move || drop(guard)).join().unwrap();
    super::until_free(&client, "a").await;
}
