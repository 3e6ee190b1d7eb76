//! Waits for a future on the calling thread. It brings no runtime: everything the futures of a client wait for
//! happens on the client's own thread.

use std::pin::{Pin, pin};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;

use fencepost_core::clock::{Clock, Moment};

/// Longer than this nobody sleeps without a look at the clock, which goes on while the machine sleeps.
const NAP: Duration = Duration::from_secs(3600);

/// Waits until the future is ready.
pub(super) fn block_on<T>(future: impl Future<Output = T>) -> T {
    let mut future = pin!(future);
    loop {
        if let Some(out) = wait(future.as_mut(), Moment::NEVER) {
            return out;
        }
    }
}

/// Waits until the future is ready, or for this long.
pub(super) fn block_on_for<T>(future: impl Future<Output = T>, wait_for: Duration) -> Option<T> {
    wait(pin!(future), Clock::system().now() + wait_for)
}

fn wait<T>(future: Pin<&mut impl Future<Output = T>>, until: Moment) -> Option<T> {
    // In a task of tokio that has used up its turn, tokio's channels would ask us to come back later, and the task
    // cannot: its thread waits here.
    let mut future = pin!(tokio::task::unconstrained(future));
    let bell = Arc::new(Bell::default());
    let waker = Waker::from(bell.clone());
    loop {
        if let Poll::Ready(out) = future.as_mut().poll(&mut Context::from_waker(&waker)) {
            return Some(out);
        }
        if !bell.rung_before(until) {
            return None;
        }
    }
}

/// Not the thread's own `park`: its token belongs to whoever else waits on this thread, such as an executor.
#[derive(Default)]
struct Bell {
    rung: Mutex<bool>,
    changed: Condvar,
}

impl Bell {
    /// Waits until it is rung, and is ready to be rung again; false if the time was over first.
    fn rung_before(&self, until: Moment) -> bool {
        let clock = Clock::system();
        let mut rung = self.rung.lock().unwrap_or_else(PoisonError::into_inner);
        while !*rung {
            let left = until.since(clock.now());
            if left.is_zero() {
                return false;
            }
            let waited = self.changed.wait_timeout(rung, left.min(NAP));
            rung = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
        *rung = false;
        true
    }
}

impl Wake for Bell {
    fn wake(self: Arc<Self>) {
        *self.rung.lock().unwrap_or_else(PoisonError::into_inner) = true;
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
        let (told, heard) = tokio::sync::oneshot::channel();
        let teller = std::thread::spawn(move || told.send(7));
        assert_eq!(block_on(heard), Ok(7));
        teller.join().unwrap().unwrap();
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
