//! Wakes callers in batches. Waking a task from outside of its runtime costs a mutex and often a system call; from inside it
//! costs almost nothing. So two or more tasks of one runtime are woken by a small task that is spawned there, the wake task.
//!
//! Correctness does not depend on the wake task being run: a runtime that has ended drops it, and dropping it wakes its batch. If
//! it is neither run nor dropped within [`WAKE_TASK_TIMEOUT`], the client's thread wakes the batch itself.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::task::{Poll, RawWakerVTable, Waker};
use std::time::Duration;

use tokio::runtime;

use crate::clock::Moment;
use crate::error::Result;
use crate::response::{Responder, WaitingTask};

/// How long a wake task may take. A runtime that is busy for longer would not run woken tasks either; but a task may have been
/// polled inside a runtime that is not its own.
const WAKE_TASK_TIMEOUT: Duration = Duration::from_millis(5);

/// The tasks to wake, and the wake tasks that may not have run yet.
#[derive(Default)]
pub(crate) struct BatchWaker {
    /// The vtable of the wakers of tokio's tasks. Other wakers, such as that of a blocked thread, which may be the runtime's only
    /// one, are never left to a wake task.
    task_vtable: Option<&'static RawWakerVTable>,
    waiting: Vec<WaitingTask>,
    wake_tasks: VecDeque<(Moment, Weak<WakeBatch>)>,
}

/// The wakers of one wake task. Wakes them when it is dropped.
struct WakeBatch(Mutex<Vec<Waker>>);

impl WakeBatch {
    fn wake(&self) {
        let wakers = std::mem::take(&mut *self.0.lock().unwrap_or_else(PoisonError::into_inner));
        wakers.into_iter().for_each(Waker::wake);
    }
}

impl Drop for WakeBatch {
    fn drop(&mut self) {
        self.wake();
    }
}

impl BatchWaker {
    /// Learns the vtable of task wakers. Until then every task is woken individually.
    pub(crate) async fn learn_task_vtable(&mut self) {
        let look = std::future::poll_fn(|cx| Poll::Ready(cx.waker().vtable()));
        self.task_vtable = tokio::spawn(look).await.ok();
    }

    /// Sends a response; the receiving task is woken by [`BatchWaker::wake`].
    pub(crate) fn respond<T>(&mut self, responder: Responder<T>, outcome: Result<T>) {
        self.waiting.extend(responder.respond(outcome));
    }

    /// Wakes every task that has got a response.
    pub(crate) fn wake(&mut self, now: Moment) {
        if self.waiting.len() < 2 {
            return self.waiting.drain(..).for_each(|task| task.waker.wake());
        }
        let mut together: HashMap<runtime::Id, (runtime::Handle, Vec<Waker>)> = HashMap::new();
        for WaitingTask { waker, runtime } in self.waiting.drain(..) {
            match runtime {
                Some(runtime) if self.task_vtable.is_some_and(|task| std::ptr::eq(task, waker.vtable())) => {
                    together.entry(runtime.id()).or_insert_with(|| (runtime, Vec::new())).1.push(waker);
                }
                _ => waker.wake(),
            }
        }
        for (runtime, mut wakers) in together.into_values() {
            if wakers.len() == 1 {
                wakers.drain(..).for_each(Waker::wake);
                continue;
            }
            let batch = Arc::new(WakeBatch(Mutex::new(wakers)));
            self.wake_tasks.push_back((now + WAKE_TASK_TIMEOUT, Arc::downgrade(&batch)));
            runtime.spawn(async move { drop(batch) });
        }
    }

    /// Returns when to call [`BatchWaker::wake_overdue`] next.
    pub(crate) fn next_due(&mut self) -> Moment {
        while self.wake_tasks.front().is_some_and(|(_, batch)| batch.strong_count() == 0) {
            self.wake_tasks.pop_front();
        }
        self.wake_tasks.front().map_or(Moment::NEVER, |(at, _)| *at)
    }

    /// Wakes the batches of wake tasks that have not run in time.
    pub(crate) fn wake_overdue(&mut self, now: Moment) {
        while self.next_due() <= now {
            if let Some(batch) = self.wake_tasks.pop_front().and_then(|(_, batch)| batch.upgrade()) {
                batch.wake();
            }
        }
    }
}

impl Drop for BatchWaker {
    /// Wakes everything: there will be no further call.
    fn drop(&mut self) {
        self.waiting.drain(..).for_each(|task| task.waker.wake());
        self.wake_tasks.drain(..).filter_map(|(_, batch)| batch.upgrade()).for_each(|batch| batch.wake());
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::task::Wake;

    use tokio::runtime::{Builder, Runtime};

    use super::*;

    #[derive(Default)]
    struct Count(AtomicUsize);

    impl Wake for Count {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    impl Count {
        fn get(&self) -> usize {
            self.0.load(Ordering::Relaxed)
        }
    }

    fn runtime() -> Runtime {
        Builder::new_current_thread().build().unwrap()
    }

    /// Returns a waker with this many tasks of the runtime to wake, and the count of those that have been woken.
    fn told(tasks: usize, runtime: &runtime::Handle) -> (BatchWaker, Arc<Count>) {
        let count = Arc::new(Count::default());
        let waker = Waker::from(count.clone());
        let task = || WaitingTask { waker: waker.clone(), runtime: Some(runtime.clone()) };
        let waiting: Vec<WaitingTask> = (0..tasks).map(|_| task()).collect();
        (BatchWaker { task_vtable: Some(waker.vtable()), waiting, wake_tasks: VecDeque::new() }, count)
    }

    #[test]
    fn several_tasks_are_woken_by_their_own_runtime() {
        let runtime = runtime();
        let (mut waker, count) = told(5, runtime.handle());
        waker.wake(Moment::START);
        assert_eq!(count.get(), 0, "the runtime has not run yet");
        runtime.block_on(tokio::task::yield_now());
        assert_eq!((count.get(), waker.next_due()), (5, Moment::NEVER));
    }

    #[test]
    fn a_single_task_is_woken_at_once() {
        let (one, other) = (runtime(), runtime());
        let (mut waker, count) = told(1, one.handle());
        let other_task = WaitingTask { waker: count.clone().into(), runtime: Some(other.handle().clone()) };
        waker.waiting.push(other_task);
        waker.wake(Moment::START);
        assert_eq!(count.get(), 2);
    }

    /// The runtime's only thread may be the one that waits.
    #[test]
    fn a_waker_that_is_not_a_task_is_woken_at_once() {
        let runtime = runtime();
        let (mut waker, count) = told(5, runtime.handle());
        runtime.block_on(waker.learn_task_vtable());
        waker.wake(Moment::START);
        assert_eq!(count.get(), 5);
    }

    #[test]
    fn the_waker_of_a_task_is_recognised_in_every_kind_of_runtime() {
        let mut waker = BatchWaker::default();
        runtime().block_on(waker.learn_task_vtable());
        let elsewhere = Builder::new_multi_thread().worker_threads(1).build().unwrap();
        let look = || std::future::poll_fn(|cx| Poll::Ready(cx.waker().vtable()));
        let task = elsewhere.block_on(elsewhere.spawn(look())).unwrap();
        assert!(waker.task_vtable.is_some_and(|task_vtable| std::ptr::eq(task_vtable, task)));
        let root = elsewhere.block_on(look());
        assert!(!waker.task_vtable.is_some_and(|task_vtable| std::ptr::eq(task_vtable, root)));
    }

    #[test]
    fn tasks_of_an_ended_runtime_are_woken_at_once() {
        let runtime = runtime();
        let (mut waker, count) = told(5, runtime.handle());
        drop(runtime);
        waker.wake(Moment::START);
        assert_eq!((count.get(), waker.next_due()), (5, Moment::NEVER));
    }

    #[test]
    fn a_runtime_that_ends_before_its_wake_task_runs_wakes_the_batch() {
        let runtime = runtime();
        let (mut waker, count) = told(5, runtime.handle());
        waker.wake(Moment::START);
        drop(runtime);
        assert_eq!((count.get(), waker.next_due()), (5, Moment::NEVER));
    }

    #[test]
    fn the_batch_of_a_wake_task_that_does_not_run_is_woken_after_its_timeout() {
        let runtime = runtime();
        let (mut waker, count) = told(5, runtime.handle());
        waker.wake(Moment::START);
        let late = waker.next_due();
        waker.wake_overdue(Moment::START);
        assert_eq!((count.get(), late), (0, Moment::START + WAKE_TASK_TIMEOUT));
        waker.wake_overdue(late);
        assert_eq!((count.get(), waker.next_due()), (5, Moment::NEVER));
        runtime.block_on(tokio::task::yield_now());
        assert_eq!(count.get(), 5, "once is enough");
    }

    #[test]
    fn a_dropped_batch_waker_wakes_every_task() {
        let runtime = runtime();
        for wake_first in [false, true] {
            let (mut waker, count) = told(5, runtime.handle());
            if wake_first {
                waker.wake(Moment::START);
            }
            drop(waker);
            assert_eq!(count.get(), 5);
        }
    }
}
