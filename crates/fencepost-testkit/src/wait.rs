//! Waits for conditions: the only place where a test sleeps. No timing decides a test: a condition that is not true in
//! [`TIMEOUT`] is a failure that says what was waited for.

use std::time::Duration;

use fencepost_core::clock::Clock;

/// How long a condition may take: far longer than anything that is waited for.
pub const TIMEOUT: Duration = Duration::from_secs(30);
const STEP: Duration = Duration::from_millis(2);

/// Waits until the condition is true.
///
/// # Panics
/// If it is not in [`TIMEOUT`], with `what` was waited for.
#[allow(clippy::disallowed_methods, reason = "this is the place")]
pub async fn until(what: &str, mut condition: impl AsyncFnMut() -> bool) {
    let clock = Clock::system();
    let give_up = clock.now() + TIMEOUT;
    while !condition().await {
        assert!(clock.now() < give_up, "timed out waiting for: {what}");
        tokio::time::sleep(STEP).await;
    }
}

/// Waits for this long, for leases to be renewed or to expire meanwhile.
pub async fn elapse(time: Duration) {
    let clock = Clock::system();
    let end = clock.now() + time;
    until("the time has passed", async || clock.now() >= end).await;
}

/// Blocks the thread for this long, as an application does that computes without awaiting.
#[allow(clippy::disallowed_methods, reason = "this is the place")]
pub fn block_thread_for(time: Duration) {
    let clock = Clock::system();
    let end = clock.now() + time;
    while clock.now() < end {
        std::thread::sleep(STEP);
    }
}

/// Blocks the thread until the condition is true, for what is not async: processes and their files.
///
/// # Panics
/// If it is not in [`TIMEOUT`], with `what` was waited for.
pub fn block_until(what: &str, condition: impl FnMut() -> bool) {
    block_until_else(|| what.to_owned(), condition);
}

/// Like [`block_until`], with a message that is built at the time of the failure.
///
/// # Panics
/// If the condition is not true in [`TIMEOUT`], with this message.
#[allow(clippy::disallowed_methods, reason = "this is the place")]
pub fn block_until_else(say: impl Fn() -> String, mut condition: impl FnMut() -> bool) {
    let clock = Clock::system();
    let give_up = clock.now() + TIMEOUT;
    while !condition() {
        assert!(clock.now() < give_up, "timed out waiting for: {}", say());
        std::thread::sleep(STEP);
    }
}

/// Awaits a future that is expected to be ready in time.
///
/// # Panics
/// If it is not in [`TIMEOUT`], with `what` was waited for.
pub async fn within_timeout<T>(what: &str, future: impl Future<Output = T>) -> T {
    let in_time = tokio::time::timeout(TIMEOUT, future).await;
    in_time.unwrap_or_else(|_| panic!("timed out waiting for: {what}"))
}
