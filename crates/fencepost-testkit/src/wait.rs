//! Waiting for a condition: the only place where a test sleeps. No timing decides a test: a condition that does not
//! come true within the patience of this module is a failure that says what was waited for.

use std::time::Duration;

use fencepost_core::clock::Clock;

/// How long a condition may take. Far longer than anything that is waited for.
pub const TIMEOUT: Duration = Duration::from_secs(30);
const STEP: Duration = Duration::from_millis(2);

/// Waits until the condition holds.
///
/// # Panics
/// If it does not for [`TIMEOUT`], with `what` was waited for.
#[allow(clippy::disallowed_methods, reason = "this is the place")]
pub async fn until(what: &str, mut condition: impl AsyncFnMut() -> bool) {
    let clock = Clock::system();
    let give_up = clock.now() + TIMEOUT;
    while !condition().await {
        assert!(clock.now() < give_up, "waited in vain for this: {what}");
        tokio::time::sleep(STEP).await;
    }
}

/// Waits until so much time has passed, for leases to be renewed or to end in it.
pub async fn elapse(time: Duration) {
    let clock = Clock::system();
    let end = clock.now() + time;
    until("time passes", async || clock.now() >= end).await;
}

/// Blocks the thread until so much time has passed, as an application does that computes without awaiting.
#[allow(clippy::disallowed_methods, reason = "this is the place")]
pub fn block_thread_for(time: Duration) {
    let clock = Clock::system();
    let end = clock.now() + time;
    while clock.now() < end {
        std::thread::sleep(STEP);
    }
}

/// Blocks the thread until the condition holds, for what is not async: processes and their files.
///
/// # Panics
/// If it does not for [`TIMEOUT`], with `what` was waited for.
pub fn block_until(what: &str, condition: impl FnMut() -> bool) {
    block_until_else(|| what.to_owned(), condition);
}

/// Like [`block_until`], for a failure that says more than what was waited for.
///
/// # Panics
/// If the condition does not hold for [`TIMEOUT`], with what `say` says then.
#[allow(clippy::disallowed_methods, reason = "this is the place")]
pub fn block_until_else(say: impl Fn() -> String, mut condition: impl FnMut() -> bool) {
    let clock = Clock::system();
    let give_up = clock.now() + TIMEOUT;
    while !condition() {
        assert!(clock.now() < give_up, "waited in vain for this: {}", say());
        std::thread::sleep(STEP);
    }
}

/// Awaits the future, which is expected to be ready in time.
///
/// # Panics
/// If it is not within [`TIMEOUT`], with `what` was waited for.
pub async fn within_timeout<T>(what: &str, future: impl Future<Output = T>) -> T {
    let in_time = tokio::time::timeout(TIMEOUT, future).await;
    in_time.unwrap_or_else(|_| panic!("waited in vain for this: {what}"))
}
