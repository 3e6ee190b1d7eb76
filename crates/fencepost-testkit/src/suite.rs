//! Runs the behaviours.

use std::sync::mpsc::{RecvTimeoutError, sync_channel};
use std::time::Duration;

use fencepost_core::Client;

use crate::test_bench::{StoredCounts, TestBench};
use crate::wait;

/// A behaviour that takes longer hangs.
const WATCHDOG: Duration = Duration::from_secs(60);

/// Runs one behaviour on a fresh bench: on a small runtime, under a watchdog. Afterwards nothing may be left in the backend.
///
/// # Panics
/// If the behaviour panics, if it hangs, or if it leaves something behind.
pub fn run<B: TestBench>(
    name: &'static str,
    make: impl FnOnce() -> B + Send + 'static,
    behavior: impl AsyncFnOnce(&B) + Send + 'static,
) {
    under_watchdog(name, move || {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
        runtime.expect("a runtime can be created").block_on(async {
            let bench = make();
            behavior(&bench).await;
            assert_clean(&bench).await;
        });
    });
}

/// Runs a test on a thread of its own, and fails if it hangs.
///
/// # Panics
/// If the test panics, or if it hangs.
pub fn under_watchdog(name: &str, test: impl FnOnce() + Send + 'static) {
    let (finished, wait) = sync_channel::<()>(1);
    let thread = std::thread::Builder::new().name(name.into()).spawn(move || {
        let _tells_when_dropped = finished;
        test();
    });
    let thread = thread.expect("a thread can be started");
    let hangs = wait.recv_timeout(WATCHDOG) == Err(RecvTimeoutError::Timeout);
    assert!(!hangs, "{name} hangs: it did not end in {WATCHDOG:?}");
    if let Err(panic) = thread.join() {
        std::panic::resume_unwind(panic);
    }
}

/// Waits until nothing is left in the backend. Some expired entries are only removed by later operations, so a client sends
/// some.
///
/// # Panics
/// If something is left.
pub async fn assert_clean<B: TestBench>(bench: &B) {
    let client = bench.client().await;
    let mut left = StoredCounts::default();
    let clean = wait::until("nothing is left in the backend", async || {
        send_operations(&client).await;
        left = bench.peek().await;
        left.is_empty()
    });
    let clean = std::panic::AssertUnwindSafe(clean);
    let outcome = futures_util::FutureExt::catch_unwind(clean).await;
    assert!(outcome.is_ok(), "left in the backend: {left:?}");
    client.close().await;
}

async fn send_operations(client: &Client) {
    for _ in 0..10 {
        if let Ok(Some(guard)) = client.lock("cleanup").try_acquire().await {
            let _ = guard.release().await;
        }
    }
}
