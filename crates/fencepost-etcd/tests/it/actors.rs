//! Those who lock, wait and look on in the tests.

use std::time::Duration;

use fencepost_core::clock::Moment;
use fencepost_core::{Client, Guard, Lock, Result};
use fencepost_testkit::wait;
use tokio::task::JoinHandle;

/// A lease that does not end while a test is patient: whoever must wait for its end fails.
pub(crate) const LONG: Duration = Duration::from_secs(120);
/// A lease that is short, but long enough to be kept on a busy machine. etcd counts in whole seconds.
pub(crate) const SHORT: Duration = Duration::from_secs(2);

/// Somebody who waits for a lock in a task of its own.
pub(crate) type Waiter = JoinHandle<Result<Guard>>;

pub(crate) async fn connect(url: &str) -> Client {
    fencepost_etcd::connect(url).await.expect("the server lets us in")
}

pub(crate) async fn hold(lock: &Lock) -> Guard {
    wait::within_patience("the lock is granted", lock.acquire()).await.expect("the lock is granted")
}

pub(crate) fn waiting(lock: Lock) -> Waiter {
    tokio::spawn(async move { lock.acquire().await })
}

/// Somebody who waits, seen by the observer to be the last of so many.
pub(crate) async fn joined(observer: &Client, lock: Lock, name: &str, count: usize) -> Waiter {
    let waiter = waiting(lock);
    in_line(observer, name, count).await;
    waiter
}

pub(crate) async fn granted(waiter: Waiter) -> Guard {
    let outcome = wait::within_patience("a waiter is granted the lock", waiter).await;
    outcome.expect("the task is not cancelled").expect("the waiter is granted the lock")
}

/// Waits until so many stand in line.
pub(crate) async fn in_line(observer: &Client, name: &str, count: usize) {
    wait::until(&format!("{count} stand in line for {name}"), async || {
        observer.inspect(name).await.is_ok_and(|state| state.waiters == count)
    })
    .await;
}

pub(crate) async fn until_idle(observer: &Client, name: &str) {
    wait::until("nobody has the lock", async || {
        observer.inspect(name).await.is_ok_and(|state| state.is_idle())
    })
    .await;
}

/// Waits until the lock was renewed once more.
pub(crate) async fn renewed(guard: &Guard) {
    renewed_since(guard, guard.valid_until()).await;
}

/// Waits until the lock is valid for longer than this.
pub(crate) async fn renewed_since(guard: &Guard, known: Moment) {
    let renewal = wait::within_patience("it is renewed", guard.renewed(known)).await;
    renewal.expect("it is still held");
}
