//! Those who lock, wait and look on in the tests.

use std::time::Duration;

use fencepost_core::clock::Moment;
use fencepost_core::{Client, Guard, Lock, Result};
use tokio::task::JoinHandle;

use crate::wait;

/// A lease that does not end while a test is patient: whoever must wait for its end fails.
pub const LONG_TTL: Duration = Duration::from_secs(120);

/// Somebody who waits for a lock in a task of its own.
pub type Waiter = JoinHandle<Result<Guard>>;

/// Takes the lock.
///
/// # Panics
/// If it is not granted.
pub async fn hold(lock: &Lock) -> Guard {
    wait::within_timeout("the lock is granted", lock.acquire()).await.expect("the lock is granted")
}

/// Somebody who waits, or will soon.
pub fn spawn_waiter(lock: Lock) -> Waiter {
    tokio::spawn(async move { lock.acquire().await })
}

/// Somebody who waits, seen by the observer to be the last of so many.
///
/// # Panics
/// If there are never so many.
pub async fn enqueue(observer: &Client, lock: Lock, name: &str, count: usize) -> Waiter {
    let waiter = spawn_waiter(lock);
    until_queued(observer, name, count).await;
    waiter
}

/// What a waiter is granted.
///
/// # Panics
/// If it is not.
pub async fn granted(waiter: Waiter) -> Guard {
    let outcome = wait::within_timeout("a waiter is granted the lock", waiter).await;
    outcome.expect("the task is not cancelled").expect("the waiter is granted the lock")
}

/// Waits until so many stand in line. The storage may be away for a while.
///
/// # Panics
/// If there are never so many.
pub async fn until_queued(observer: &Client, name: &str, count: usize) {
    wait::until(&format!("{count} stand in line for {name}"), async || {
        observer.inspect(name).await.is_ok_and(|state| state.waiter_count == count)
    })
    .await;
}

/// Waits until nobody holds the lock and nobody wants it. The storage may be away for a while.
///
/// # Panics
/// If somebody stays.
pub async fn until_idle(observer: &Client, name: &str) {
    wait::until(&format!("nobody has {name}"), async || {
        observer.inspect(name).await.is_ok_and(|state| state.is_idle())
    })
    .await;
}

/// Waits until the lock was renewed once more.
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
