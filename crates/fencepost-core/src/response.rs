//! A oneshot channel from the client's thread to a caller that waits. Sending and waking are two steps: the response is
//! readable at once, and the sender wakes the returned task later, together with others (`batch_waker.rs`).

use std::mem;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, Waker};

use crate::error::{Error, Result};

/// A task that waits for a response: its waker, and the tokio runtime it was polled in, if any.
#[derive(Debug)]
pub(crate) struct WaitingTask {
    pub(crate) waker: Waker,
    pub(crate) runtime: Option<tokio::runtime::Handle>,
}

impl WaitingTask {
    fn here(waker: &Waker) -> Self {
        Self { waker: waker.clone(), runtime: tokio::runtime::Handle::try_current().ok() }
    }
}

/// The sending half. Dropped without a response, it sends that the client is closed.
pub(crate) struct Responder<T>(Option<Arc<Slot<T>>>);

/// The receiving half.
///
/// # Cancel safety
/// A response that has been sent is dropped with it.
pub(crate) struct Response<T>(Arc<Slot<T>>);

struct Slot<T>(Mutex<State<T>>);

enum State<T> {
    /// Neither sent nor polled yet.
    Empty,
    Waiting(WaitingTask),
    Sent(Result<T>),
    /// Received, or the receiver was dropped.
    Done,
}

/// Creates a channel for one response.
pub(crate) fn response<T>() -> (Responder<T>, Response<T>) {
    let slot = Arc::new(Slot(Mutex::new(State::Empty)));
    (Responder(Some(slot.clone())), Response(slot))
}

impl<T> Slot<T> {
    /// Changes the state under the mutex; values are dropped and tasks woken by the caller, outside of it.
    fn change<R>(&self, act: impl FnOnce(&mut State<T>) -> R) -> R {
        act(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Stores the response unless there is one, and returns the task to wake.
    fn respond(&self, outcome: Result<T>) -> Option<WaitingTask> {
        let before = self.change(|state| match state {
            State::Empty | State::Waiting(_) => mem::replace(state, State::Sent(outcome)),
            State::Sent(_) | State::Done => State::Sent(outcome),
        });
        match before {
            State::Waiting(task) => Some(task),
            _ => None,
        }
    }
}

impl<T> Responder<T> {
    /// Sends the response and returns the task to wake; without a receiver the response is dropped.
    #[must_use = "a task may have to be woken"]
    pub(crate) fn respond(mut self, outcome: Result<T>) -> Option<WaitingTask> {
        self.0.take()?.respond(outcome)
    }
}

impl<T> Drop for Responder<T> {
    fn drop(&mut self) {
        if let Some(task) = self.0.take().and_then(|slot| slot.respond(Err(Error::closed()))) {
            task.waker.wake();
        }
    }
}

impl<T> Future for Response<T> {
    type Output = Result<T>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let before = self.0.change(|state| match state {
            State::Waiting(task) if task.waker.will_wake(cx.waker()) => None,
            State::Empty | State::Waiting(_) => {
                Some(mem::replace(state, State::Waiting(WaitingTask::here(cx.waker()))))
            }
            State::Sent(_) | State::Done => Some(mem::replace(state, State::Done)),
        });
        match before {
            Some(State::Sent(outcome)) => Poll::Ready(outcome),
            Some(State::Done) => Poll::Ready(Err(Error::closed())),
            _ => Poll::Pending,
        }
    }
}

impl<T> Drop for Response<T> {
    fn drop(&mut self) {
        drop(self.0.change(|state| mem::replace(state, State::Done)));
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use futures_util::FutureExt;

    use super::*;
    use crate::error::ErrorKind;

    #[derive(Default)]
    struct Count(AtomicUsize);

    impl std::task::Wake for Count {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    #[test]
    fn a_response_is_readable_before_the_task_is_woken() {
        let count = Arc::new(Count::default());
        let (response, mut receiver) = response();
        assert!(receiver.poll_unpin(&mut Context::from_waker(&count.clone().into())).is_pending());
        let task = response.respond(Ok(7)).expect("a task waits");
        assert_eq!(count.0.load(Ordering::Relaxed), 0);
        assert_eq!(receiver.now_or_never().unwrap().unwrap(), 7);
        task.waker.wake();
        assert_eq!(count.0.load(Ordering::Relaxed), 1);
    }

    #[test]
    fn the_newest_waker_counts() {
        let (old, new) = (Arc::new(Count::default()), Arc::new(Count::default()));
        let (response, mut receiver) = response::<()>();
        for count in [&old, &new] {
            assert!(receiver.poll_unpin(&mut Context::from_waker(&count.clone().into())).is_pending());
        }
        drop(response);
        assert_eq!((old.0.load(Ordering::Relaxed), new.0.load(Ordering::Relaxed)), (0, 1));
        let error = receiver.now_or_never().unwrap().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Closed);
    }

    #[test]
    fn a_response_without_a_receiver_is_dropped() {
        let value = Arc::new(());
        for give_first in [false, true] {
            let (response, receiver) = response();
            if give_first {
                assert!(response.respond(Ok(value.clone())).is_none());
                drop(receiver);
            } else {
                drop(receiver);
                assert!(response.respond(Ok(value.clone())).is_none());
            }
            assert_eq!(Arc::strong_count(&value), 1);
        }
    }
}
