//! Connections that are opened on demand and reopened when they are lost, by one caller for all waiting callers.

use std::time::Duration;

use fencepost_core::Result;
use fencepost_core::clock::{Clock, Moment};
use tokio::sync::Mutex;

/// Bounds connecting to one server, including the TLS handshake and the login.
pub const CONNECT_TIMEOUT: Duration = Duration::from_secs(2);

/// The first and shortest wait of a [`Backoff`].
const MIN_BACKOFF: Duration = Duration::from_millis(20);

/// The longest wait of a [`Backoff`].
const MAX_BACKOFF: Duration = Duration::from_secs(1);

/// A value that concurrent callers share: one attempt to obtain it at a time, whose failure is returned to all callers that were
/// waiting when it began.
pub struct Coalesced<T> {
    clock: Clock,
    /// When the last attempt began, and its outcome.
    last: Mutex<Option<(Moment, Result<T>)>>,
}

impl<T> Default for Coalesced<T> {
    fn default() -> Self {
        Self { clock: Clock::system(), last: Mutex::default() }
    }
}

impl<T: Clone> Coalesced<T> {
    /// Returns the last value if it is still `good`, or else the outcome of an attempt that began after this call.
    ///
    /// # Cancel safety
    /// If the future is dropped, so is its attempt, and the next caller makes one.
    pub async fn get<F: Future<Output = Result<T>>>(
        &self,
        good: impl Fn(&T) -> bool,
        attempt: impl FnOnce() -> F,
    ) -> Result<T> {
        let arrived = self.clock.now();
        let mut last = self.last.lock().await;
        match &*last {
            Some((_, Ok(value))) if good(value) => return Ok(value.clone()),
            Some((began, Err(error))) if *began > arrived => return Err(error.clone()),
            _ => *last = None,
        }
        let began = self.clock.now();
        // Boxed because every request's future contains this one, and almost none of them connects.
        let outcome = Box::pin(attempt()).await;
        *last = Some((began, outcome.clone()));
        outcome
    }

    /// Returns the last value, or `None` while an attempt is in progress.
    pub fn current(&self) -> Option<T> {
        self.last.try_lock().ok()?.as_ref()?.1.as_ref().ok().cloned()
    }

    /// Drops the value, so that the next caller makes an attempt.
    pub async fn clear(&self) {
        *self.last.lock().await = None;
    }
}

/// Waits between attempts to reconnect, each twice as long as the one before.
#[derive(Default)]
pub struct Backoff(Duration);

impl Backoff {
    /// Waits before the next attempt.
    pub async fn wait(&mut self, clock: &Clock) {
        self.0 = (self.0 * 2).clamp(MIN_BACKOFF, MAX_BACKOFF);
        // If the clock cannot sleep, the wait is only shorter than it should be.
        let _ = clock.sleep_until(clock.now() + self.0).await;
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use fencepost_core::{Error, ErrorKind};
    use futures_util::future::{join, join_all, pending};
    use tokio::sync::Notify;

    use super::*;

    fn unreachable() -> Error {
        Error::new(ErrorKind::Unreachable, "could not reach the server")
    }

    #[tokio::test]
    async fn a_value_is_obtained_again_only_if_it_is_no_longer_good() {
        let (coalesced, made) = (Coalesced::default(), AtomicUsize::new(0));
        let get = |is_good: bool| {
            let attempt = async { Ok(made.fetch_add(1, Ordering::Relaxed)) };
            coalesced.get(move |_| is_good, || attempt)
        };
        assert_eq!(coalesced.current(), None);
        assert_eq!(get(true).await.unwrap(), 0);
        assert_eq!(get(true).await.unwrap(), 0);
        assert_eq!((get(false).await.unwrap(), coalesced.current()), (1, Some(1)));
        coalesced.clear().await;
        assert_eq!((coalesced.current(), get(true).await.unwrap()), (None, 2));
    }

    #[tokio::test]
    async fn a_failure_is_returned_to_all_waiting_callers_and_to_no_later_one() {
        let (coalesced, tried, first_is_over) = (Coalesced::default(), AtomicUsize::new(0), Notify::new());
        let fail = || {
            coalesced.get(
                |()| true,
                async || {
                    tried.fetch_add(1, Ordering::Relaxed);
                    Err(unreachable())
                },
            )
        };
        let first = coalesced.get(
            |()| true,
            async || {
                first_is_over.notified().await;
                Err(unreachable())
            },
        );
        let waiting = async {
            // All of them wait when the second attempt begins, which the first of them makes.
            let callers = join_all([fail(), fail(), fail()]);
            let (outcomes, ()) = join(callers, async { first_is_over.notify_one() }).await;
            assert!(outcomes.iter().all(Result::is_err));
        };
        assert!(join(first, waiting).await.0.is_err());
        assert_eq!(tried.load(Ordering::Relaxed), 1);
        assert!(fail().await.is_err());
        assert_eq!(tried.load(Ordering::Relaxed), 2);
    }

    #[tokio::test]
    async fn a_dropped_attempt_does_not_block_the_next_caller() {
        let coalesced = Coalesced::default();
        let dropped = coalesced.get(|_| true, pending);
        assert!(tokio::time::timeout(Duration::ZERO, dropped).await.is_err());
        assert_eq!(coalesced.get(|_| true, async || Ok(7)).await.unwrap(), 7);
    }
}
