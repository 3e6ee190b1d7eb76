//! Our workers: each has a client with its own thread and connection, as four processes would.

use std::thread::JoinHandle;
use std::time::Duration;

use crate::EACH;
use crate::counter::{Counter, OURS};

/// The ttl.
const TTL: Duration = Duration::from_secs(10);

/// Workers that run until the counter stops.
pub struct Workers(Vec<JoinHandle<()>>);

impl Workers {
    /// Starts the workers of one side, each in a thread with a runtime of its own.
    ///
    /// # Panics
    /// If a thread cannot be started.
    pub fn start<W>(work: impl Fn(usize) -> W) -> Self
    where
        W: AsyncFnOnce() + Send + 'static,
    {
        let spawn = |number| {
            let work = work(number);
            std::thread::spawn(move || {
                let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
                runtime.expect("a runtime can be made").block_on(work());
            })
        };
        Self((0..EACH).map(spawn).collect())
    }

    /// Waits until all have ended.
    ///
    /// # Panics
    /// If one of them failed.
    pub fn join(self) {
        for worker in self.0 {
            worker.join().expect("a worker fails");
        }
    }
}

/// Starts our workers on this backend, with the lock of this name.
///
/// # Panics
/// If it cannot be reached, or a lock is lost.
pub fn start(url: &str, name: &str, counter: &Counter) -> Workers {
    Workers::start(|number| {
        let (url, name, counter) = (url.to_owned(), name.to_owned(), counter.clone());
        async move || {
            let client = fencepost::connect(&url).await.expect("the server is there");
            let lock = client.lock(&name).ttl(TTL);
            let mut notes = counter.worker(OURS, number);
            counter.started().await;
            while counter.goes_on() {
                let guard = lock.acquire().await.expect("the lock is granted");
                notes.take_turn(guard.token().get()).await;
                guard.release().await.expect("the lock is held to the end");
            }
            client.close().await;
        }
    })
}
