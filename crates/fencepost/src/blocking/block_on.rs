//! Blocks the calling thread on a future. No runtime is needed: everything the futures of a client wait for happens on the
//! client's own thread.

use std::pin::{Pin, pin};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;

use fencepost_core::clock::{Clock, Moment};

/// The longest sleep before the clock is read again, which advances while the machine is suspended.
const MAX_SLEEP: Duration = Duration::from_secs(3600);

/// Blocks until the future is ready.
pub(super) fn block_on<T>(future: impl Future<Output = T>) -> T {
    let mut future = pin!(future);
    loop {
        if let Some(out) = wait(future.as_mut(), Moment::NEVER) {
            return out;
        }
    }
}

/// Blocks until the future is ready, or for this long.
pub(super) fn block_on_for<T>(future: impl Future<Output = T>, wait_for: Duration) -> Option<T> {
    wait(pin!(future), Clock::system().now() + wait_for)
}

fn wait<T>(future: Pin<&mut impl Future<Output = T>>, until: Moment) -> Option<T> {
    // In a tokio task that has used up its budget, tokio's channels would return pending and expect the task to yield, which it
    // cannot: its thread is blocked here.
    let mut future = pin!(tokio::task::unconstrained(future));
    let notification = Arc::new(Notification::default());
    let waker = Waker::from(notification.clone());
    loop {
        if let Poll::Ready(out) = future.as_mut().poll(&mut Context::from_waker(&waker)) {
            return Some(out);
        }
        if !notification.notified_before(until) {
            return None;
        }
    }
}

/// Not the thread's own `park`: its token may belong to an executor on this thread.
#[derive(Default)]
struct Notification {
    notified: Mutex<bool>,
    changed: Condvar,
}

impl Notification {
    /// Waits for a notification and resets it; returns false if the time was over first.
    fn notified_before(&self, until: Moment) -> bool {
        let clock = Clock::system();
        let mut notified = self.notified.lock().unwrap_or_else(PoisonError::into_inner);
        while !*notified {
            let left = until.since(clock.now());
            if left.is_zero() {
                return false;
            }
            let waited = self.changed.wait_timeout(notified, left.min(MAX_SLEEP));
            notified = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
        *notified = false;
        true
    }
}

impl Wake for Notification {
    fn wake(self: Arc<Self>) {
        *self.notified.lock().unwrap_or_else(PoisonError::into_inner) = true;
        self.changed.notify_one();
    }
}

#[cfg(test)]
mod tests {
    use std::future::{pending, poll_fn, ready};

    use super::*;

    #[test]
    fn a_future_that_is_ready_is_not_waited_for() {
        assert_eq!(block_on(ready(7)), 7);
        assert_eq!(block_on_for(ready(7), Duration::ZERO), Some(7));
    }

    #[test]
    fn a_wake_up_before_the_wait_is_not_missed() {
        let mut polls = 0;
        let out = block_on(poll_fn(|cx| {
            polls += 1;
            cx.waker().wake_by_ref();
            if polls < 3 { Poll::Pending } else { Poll::Ready(polls) }
        }));
        assert_eq!(out, 3);
    }

    #[test]
    fn another_thread_wakes_it() {
        let (sender, receiver) = tokio::sync::oneshot::channel();
        let thread = std::thread::spawn(move || sender.send(7));
        assert_eq!(block_on(receiver), Ok(7));
        thread.join().unwrap().unwrap();
    }

    #[test]
    fn a_bounded_wait_ends() {
        assert_eq!(block_on_for(pending::<()>(), Duration::from_millis(1)), None);
    }

    #[test]
    fn it_leaves_the_parking_token_of_its_thread_alone() {
        std::thread::current().unpark();
        assert_eq!(block_on_for(pending::<()>(), Duration::from_millis(1)), None);
        // It would hang here if the token had been used up.
        std::thread::park();
    }
}
