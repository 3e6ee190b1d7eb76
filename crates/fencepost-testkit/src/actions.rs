//! Steps that tests repeat: hold a lock, queue for it, wait until it is granted, renewed or idle.

use std::time::Duration;

use fencepost_core::clock::Moment;
use fencepost_core::{Client, Guard, Lock, Result};
use tokio::task::JoinHandle;

use crate::wait;

/// A ttl longer than any test: a test that has to wait for such a lease to expire fails.
pub const LONG_TTL: Duration = Duration::from_secs(120);

/// A task that waits for a lock.
pub type Waiter = JoinHandle<Result<Guard>>;

/// Acquires the lock.
///
/// # Panics
/// If it is not granted.
pub async fn hold(lock: &Lock) -> Guard {
    wait::within_timeout("the lock is granted", lock.acquire()).await.expect("the lock is granted")
}

/// Starts a task that acquires the lock.
pub fn spawn_waiter(lock: Lock) -> Waiter {
    tokio::spawn(async move { lock.acquire().await })
}

/// Like [`spawn_waiter`], and waits until the lock has this many waiters.
///
/// # Panics
/// If there are never so many, or if the wait ends.
pub async fn enqueue(observer: &Client, lock: Lock, name: &str, count: usize) -> Waiter {
    let mut waiter = spawn_waiter(lock);
    tokio::select! {
        () = until_queued(observer, name, count) => waiter,
        outcome = &mut waiter => panic!("the wait has ended: {outcome:?}"),
    }
}

/// Waits until the lock is granted to the waiter.
///
/// # Panics
/// If it is not.
pub async fn granted(waiter: Waiter) -> Guard {
    let outcome = wait::within_timeout("a waiter is granted the lock", waiter).await;
    outcome.expect("the task is not cancelled").expect("the waiter is granted the lock")
}

/// Waits until the lock has this many waiters. The backend may be unreachable for a while.
///
/// # Panics
/// If there are never so many.
pub async fn until_queued(observer: &Client, name: &str, count: usize) {
    wait::until(&format!("{count} wait for {name}"), async || {
        observer.inspect(name).await.is_ok_and(|state| state.waiter_count == count)
    })
    .await;
}

/// Waits until the lock has neither holder nor waiter. The backend may be unreachable for a while.
///
/// # Panics
/// If it does not become idle.
pub async fn until_idle(observer: &Client, name: &str) {
    wait::until(&format!("{name} is idle"), async || {
        observer.inspect(name).await.is_ok_and(|state| state.is_idle())
    })
    .await;
}

/// Waits for the next renewal of the lock.
///
/// # Panics
/// If it is not.
pub async fn until_renewed(guard: &Guard) {
    until_renewed_since(guard, guard.valid_until()).await;
}

/// Waits until the lock is valid for longer than this.
///
/// # Panics
/// If it is not.
pub async fn until_renewed_since(guard: &Guard, known: Moment) {
    let renewal = wait::within_timeout("it is renewed", guard.renewed(known)).await;
    renewal.expect("it is still held");
}
