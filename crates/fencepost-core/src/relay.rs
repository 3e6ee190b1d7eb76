//! Wakes callers in bulk. To wake a task from outside of its runtime costs a lock and often a system call; from inside it
//! costs next to nothing. So two or more tasks of one runtime are woken by a small task there, the errand.
//!
//! Nobody depends on the errand being run. A runtime that has ended drops it, and it wakes whomever it carries when it is
//! dropped. If it is neither run nor dropped for a while, the client's thread wakes them itself.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::task::{Poll, RawWakerVTable, Waker};
use std::time::Duration;

use tokio::runtime;

use crate::answer::{Answer, Sleeper};
use crate::clock::Moment;
use crate::error::Result;

/// How long an errand may take. The tasks of a runtime that is busy for longer are not run by an earlier wake-up either;
/// but a task may have been polled inside of a runtime that is not its own.
const PATIENCE: Duration = Duration::from_millis(5);

/// Who is to be woken, and errands that may not have been run yet.
#[derive(Default)]
pub(crate) struct Relay {
    /// What the wakers of tokio's tasks have in common. Other wakers, such as that of somebody who blocks a thread, and
    /// perhaps the runtime's only one, are never sent on an errand.
    of_a_task: Option<&'static RawWakerVTable>,
    sleepers: Vec<Sleeper>,
    errands: VecDeque<(Moment, Weak<Load>)>,
}

/// Whom an errand wakes.
struct Load(Mutex<Vec<Waker>>);

impl Load {
    fn wake(&self) {
        let wakers = std::mem::take(&mut *self.0.lock().unwrap_or_else(PoisonError::into_inner));
        wakers.into_iter().for_each(Waker::wake);
    }
}

impl Drop for Load {
    fn drop(&mut self) {
        self.wake();
    }
}

impl Relay {
    /// Learns what a task's waker looks like. Until then everybody is woken one by one.
    pub(crate) async fn learn(&mut self) {
        let look = std::future::poll_fn(|cx| Poll::Ready(cx.waker().vtable()));
        self.of_a_task = tokio::spawn(look).await.ok();
    }

    /// Gives an answer; whoever waits for it is woken by [`Relay::wake`].
    pub(crate) fn tell<T>(&mut self, answer: Answer<T>, given: Result<T>) {
        self.sleepers.extend(answer.give(given));
    }

    /// Wakes everybody who has been told something.
    pub(crate) fn wake(&mut self, now: Moment) {
        if self.sleepers.len() < 2 {
            return self.sleepers.drain(..).for_each(|sleeper| sleeper.waker.wake());
        }
        let mut together: HashMap<runtime::Id, (runtime::Handle, Vec<Waker>)> = HashMap::new();
        for Sleeper { waker, runtime } in self.sleepers.drain(..) {
            match runtime {
                Some(runtime) if self.of_a_task.is_some_and(|task| std::ptr::eq(task, waker.vtable())) => {
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
            let load = Arc::new(Load(Mutex::new(wakers)));
            self.errands.push_back((now + PATIENCE, Arc::downgrade(&load)));
            runtime.spawn(async move { drop(load) });
        }
    }

    /// When to call [`Relay::tend`] next.
    pub(crate) fn next(&mut self) -> Moment {
        while self.errands.front().is_some_and(|(_, load)| load.strong_count() == 0) {
            self.errands.pop_front();
        }
        self.errands.front().map_or(Moment::NEVER, |(at, _)| *at)
    }

    /// Does the errands that nobody has run.
    pub(crate) fn tend(&mut self, now: Moment) {
        while self.next() <= now {
            if let Some(load) = self.errands.pop_front().and_then(|(_, load)| load.upgrade()) {
                load.wake();
            }
        }
    }
}

impl Drop for Relay {
    /// Nobody tends to it any more.
    fn drop(&mut self) {
        self.sleepers.drain(..).for_each(|sleeper| sleeper.waker.wake());
        self.errands.drain(..).filter_map(|(_, load)| load.upgrade()).for_each(|load| load.wake());
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

    /// A relay that has told so many tasks of this runtime something, and how many have been woken.
    fn told(tasks: usize, runtime: &runtime::Handle) -> (Relay, Arc<Count>) {
        let count = Arc::new(Count::default());
        let waker = Waker::from(count.clone());
        let sleeper = || Sleeper { waker: waker.clone(), runtime: Some(runtime.clone()) };
        let sleepers: Vec<Sleeper> = (0..tasks).map(|_| sleeper()).collect();
        (Relay { of_a_task: Some(waker.vtable()), sleepers, errands: VecDeque::new() }, count)
    }

    #[test]
    fn several_tasks_are_woken_by_their_own_runtime() {
        let runtime = runtime();
        let (mut relay, count) = told(5, runtime.handle());
        relay.wake(Moment::START);
        assert_eq!(count.get(), 0, "they wait for the runtime to run");
        runtime.block_on(tokio::task::yield_now());
        assert_eq!((count.get(), relay.next()), (5, Moment::NEVER));
    }

    #[test]
    fn a_single_task_is_woken_at_once() {
        let (one, other) = (runtime(), runtime());
        let (mut relay, count) = told(1, one.handle());
        let of_the_other = Sleeper { waker: count.clone().into(), runtime: Some(other.handle().clone()) };
        relay.sleepers.push(of_the_other);
        relay.wake(Moment::START);
        assert_eq!(count.get(), 2);
    }

    /// It may be the runtime's only thread that waits.
    #[test]
    fn what_is_no_task_is_woken_at_once() {
        let runtime = runtime();
        let (mut relay, count) = told(5, runtime.handle());
        runtime.block_on(relay.learn());
        relay.wake(Moment::START);
        assert_eq!(count.get(), 5);
    }

    #[test]
    fn the_waker_of_a_task_is_recognised_in_every_kind_of_runtime() {
        let mut relay = Relay::default();
        runtime().block_on(relay.learn());
        let elsewhere = Builder::new_multi_thread().worker_threads(1).build().unwrap();
        let look = || std::future::poll_fn(|cx| Poll::Ready(cx.waker().vtable()));
        let task = elsewhere.block_on(elsewhere.spawn(look())).unwrap();
        assert!(relay.of_a_task.is_some_and(|of_a_task| std::ptr::eq(of_a_task, task)));
        let root = elsewhere.block_on(look());
        assert!(!relay.of_a_task.is_some_and(|of_a_task| std::ptr::eq(of_a_task, root)));
    }

    #[test]
    fn a_runtime_that_has_ended_holds_nobody_back() {
        let runtime = runtime();
        let (mut relay, count) = told(5, runtime.handle());
        drop(runtime);
        relay.wake(Moment::START);
        assert_eq!((count.get(), relay.next()), (5, Moment::NEVER));
    }

    #[test]
    fn a_runtime_that_ends_with_an_errand_holds_nobody_back() {
        let runtime = runtime();
        let (mut relay, count) = told(5, runtime.handle());
        relay.wake(Moment::START);
        drop(runtime);
        assert_eq!((count.get(), relay.next()), (5, Moment::NEVER));
    }

    #[test]
    fn an_errand_that_nobody_runs_is_done_after_a_while() {
        let runtime = runtime();
        let (mut relay, count) = told(5, runtime.handle());
        relay.wake(Moment::START);
        let late = relay.next();
        relay.tend(Moment::START);
        assert_eq!((count.get(), late), (0, Moment::START + PATIENCE));
        relay.tend(late);
        assert_eq!((count.get(), relay.next()), (5, Moment::NEVER));
        runtime.block_on(tokio::task::yield_now());
        assert_eq!(count.get(), 5, "once is enough");
    }

    #[test]
    fn a_relay_that_ends_leaves_nobody_asleep() {
        let runtime = runtime();
        for wake_first in [false, true] {
            let (mut relay, count) = told(5, runtime.handle());
            if wake_first {
                relay.wake(Moment::START);
            }
            drop(relay);
            assert_eq!(count.get(), 5);
        }
    }
}
