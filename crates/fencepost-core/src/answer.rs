//! One answer, from the client's thread to the caller who waits for it. To give it and to wake the caller are two steps:
//! the answer is there at once, and whoever gave it sees to the waking (`relay.rs`).

use std::mem;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, Waker};

use crate::error::{Error, Result};

/// A caller who waits: how to wake it, and the runtime of tokio it was seen in, if any.
#[derive(Debug)]
pub(crate) struct Sleeper {
    pub(crate) waker: Waker,
    pub(crate) runtime: Option<tokio::runtime::Handle>,
}

impl Sleeper {
    fn here(waker: &Waker) -> Self {
        Self { waker: waker.clone(), runtime: tokio::runtime::Handle::try_current().ok() }
    }
}

/// The end that gives the answer. Dropped without one, it answers that the client is closed.
pub(crate) struct Answer<T>(Option<Arc<Slot<T>>>);

/// The end that waits for the answer.
///
/// # Cancel safety
/// An answer that has been given is dropped with it.
pub(crate) struct Awaited<T>(Arc<Slot<T>>);

struct Slot<T>(Mutex<State<T>>);

enum State<T> {
    /// Neither given nor waited for.
    Open,
    Waited(Sleeper),
    Given(Result<T>),
    /// Taken, or nobody wants it any more.
    Over,
}

/// The two ends of a new answer.
pub(crate) fn answer<T>() -> (Answer<T>, Awaited<T>) {
    let slot = Arc::new(Slot(Mutex::new(State::Open)));
    (Answer(Some(slot.clone())), Awaited(slot))
}

impl<T> Slot<T> {
    /// What is dropped or woken because of the change is so by the caller, outside of the lock.
    fn change<R>(&self, act: impl FnOnce(&mut State<T>) -> R) -> R {
        act(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Gives the answer unless there is one, and returns who is to be woken.
    fn give(&self, given: Result<T>) -> Option<Sleeper> {
        let before = self.change(|state| match state {
            State::Open | State::Waited(_) => mem::replace(state, State::Given(given)),
            State::Given(_) | State::Over => State::Given(given),
        });
        match before {
            State::Waited(sleeper) => Some(sleeper),
            _ => None,
        }
    }
}

impl<T> Answer<T> {
    /// Gives the answer and returns who is to be woken; an answer that nobody waits for any more is dropped.
    #[must_use = "somebody may have to be woken"]
    pub(crate) fn give(mut self, given: Result<T>) -> Option<Sleeper> {
        self.0.take()?.give(given)
    }
}

impl<T> Drop for Answer<T> {
    fn drop(&mut self) {
        if let Some(sleeper) = self.0.take().and_then(|slot| slot.give(Err(Error::closed()))) {
            sleeper.waker.wake();
        }
    }
}

impl<T> Future for Awaited<T> {
    type Output = Result<T>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let before = self.0.change(|state| match state {
            State::Waited(sleeper) if sleeper.waker.will_wake(cx.waker()) => None,
            State::Open | State::Waited(_) => {
                Some(mem::replace(state, State::Waited(Sleeper::here(cx.waker()))))
            }
            State::Given(_) | State::Over => Some(mem::replace(state, State::Over)),
        });
        match before {
            Some(State::Given(given)) => Poll::Ready(given),
            Some(State::Over) => Poll::Ready(Err(Error::closed())),
            _ => Poll::Pending,
        }
    }
}

impl<T> Drop for Awaited<T> {
    fn drop(&mut self) {
        drop(self.0.change(|state| mem::replace(state, State::Over)));
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
    fn it_is_there_before_anybody_is_woken() {
        let count = Arc::new(Count::default());
        let (answer, mut awaited) = answer();
        assert!(awaited.poll_unpin(&mut Context::from_waker(&count.clone().into())).is_pending());
        let sleeper = answer.give(Ok(7)).expect("somebody waits");
        assert_eq!(count.0.load(Ordering::Relaxed), 0);
        assert_eq!(awaited.now_or_never().unwrap().unwrap(), 7);
        sleeper.waker.wake();
        assert_eq!(count.0.load(Ordering::Relaxed), 1);
    }

    #[test]
    fn the_newest_waker_counts() {
        let (old, new) = (Arc::new(Count::default()), Arc::new(Count::default()));
        let (answer, mut awaited) = answer::<()>();
        for count in [&old, &new] {
            assert!(awaited.poll_unpin(&mut Context::from_waker(&count.clone().into())).is_pending());
        }
        drop(answer);
        assert_eq!((old.0.load(Ordering::Relaxed), new.0.load(Ordering::Relaxed)), (0, 1));
        let error = awaited.now_or_never().unwrap().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Closed);
    }

    #[test]
    fn what_nobody_takes_is_dropped() {
        let value = Arc::new(());
        for give_first in [false, true] {
            let (answer, awaited) = answer();
            if give_first {
                assert!(answer.give(Ok(value.clone())).is_none());
                drop(awaited);
            } else {
                drop(awaited);
                assert!(answer.give(Ok(value.clone())).is_none());
            }
            assert_eq!(Arc::strong_count(&value), 1);
        }
    }
}
