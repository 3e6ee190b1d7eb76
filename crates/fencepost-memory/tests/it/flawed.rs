//! The model test detects known flaws: a backend with one of them does not agree with the model.

use std::future::Future;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use async_trait::async_trait;
use fencepost_core::backend::{Backend, BackendInfo, ListPage, LockState, Op, Page, Reply, Wakeup};
use fencepost_core::clock::ManualClock;
use fencepost_core::{Error, LockName, Result};
use fencepost_memory::Memory;
use fencepost_testkit::{StoredCounts, TestBench, state_machine};
use futures_util::stream::BoxStream;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Flaw {
    /// A release ends the grant of the current holder.
    NoOwnerComparison,
    /// The second acquire of a flight does not see the first.
    BlindBatch,
    /// An acquire that found the lock free takes it, although another flight was faster.
    LateWrite,
}

struct Flawed {
    flaw: Flaw,
    backend: Arc<dyn Backend>,
    other: Arc<dyn Backend>,
}

impl Flawed {
    async fn release(&self, op: Op) -> Result<Reply> {
        let Op::Release(grant) = &op else { return one(&*self.backend, op).await };
        let name = &grant.attempt.wants[0].name;
        match self.backend.inspect(name).await?.holders.first() {
            Some(holder) => {
                one(&*self.backend, Op::Break { name: name.clone(), token: holder.token.unwrap() }).await
            }
            None => one(&*self.backend, op).await,
        }
    }

    async fn acquire_late(&self, op: Op) -> Result<Reply> {
        let Op::Acquire { attempt, .. } = &op else { return one(&*self.backend, op).await };
        let name = &attempt.wants[0].name;
        let was_free = self.backend.inspect(name).await?.is_idle();
        tokio::task::yield_now().await;
        for holder in self.backend.inspect(name).await?.holders.iter().filter(|_| was_free) {
            one(&*self.backend, Op::Break { name: name.clone(), token: holder.token.unwrap() }).await?;
        }
        one(&*self.backend, op).await
    }
}

async fn one(backend: &dyn Backend, op: Op) -> Result<Reply> {
    backend.execute(vec![op]).await.pop().expect("one reply to one operation")
}

#[async_trait]
impl Backend for Flawed {
    fn info(&self) -> BackendInfo {
        self.backend.info()
    }

    async fn execute(&self, ops: Vec<Op>) -> Vec<Result<Reply>> {
        let mut replies: Vec<Result<Reply, Error>> = Vec::new();
        let mut acquires = 0;
        for op in ops {
            acquires += usize::from(matches!(op, Op::Acquire { .. }));
            let is_second = acquires > 1 && matches!(op, Op::Acquire { .. });
            replies.push(match self.flaw {
                Flaw::NoOwnerComparison => self.release(op).await,
                Flaw::BlindBatch if is_second => one(&*self.other, op).await,
                Flaw::BlindBatch => one(&*self.backend, op).await,
                Flaw::LateWrite => self.acquire_late(op).await,
            });
        }
        replies
    }

    fn wakeups(&self) -> BoxStream<'static, Wakeup> {
        self.backend.wakeups()
    }

    async fn inspect(&self, name: &LockName) -> Result<LockState> {
        self.backend.inspect(name).await
    }

    async fn list(&self, prefix: &str, page: Page) -> Result<ListPage> {
        self.backend.list(prefix, page).await
    }

    async fn close(&self) {
        self.backend.close().await;
    }
}

struct FlawedBench {
    flaw: Flaw,
    clock: ManualClock,
    memory: Memory,
    other: Memory,
}

impl FlawedBench {
    fn new(flaw: Flaw) -> Self {
        let clock = ManualClock::new();
        let memory = || Memory::with_clock(clock.clone());
        Self { flaw, memory: memory(), other: memory(), clock }
    }
}

impl TestBench for FlawedBench {
    fn connect(&self) -> impl Future<Output = Result<Arc<dyn Backend>>> + Send + 'static {
        let (backend, other) = (Arc::new(self.memory.backend()), Arc::new(self.other.backend()));
        let backend: Arc<dyn Backend> = Arc::new(Flawed { flaw: self.flaw, backend, other });
        std::future::ready(Ok(backend))
    }

    async fn peek(&self) -> StoredCounts {
        StoredCounts::default()
    }

    async fn steal(&self, _name: &LockName) {}

    async fn cut(&self) {}

    async fn heal(&self) {}

    fn manual_clock(&self) -> Option<ManualClock> {
        Some(self.clock.clone())
    }
}

#[track_caller]
fn assert_found(flaw: Flaw) {
    let benches = AtomicUsize::new(0);
    let make = || {
        benches.fetch_add(1, Ordering::Relaxed);
        FlawedBench::new(flaw)
    };
    let outcome = catch_unwind(AssertUnwindSafe(|| state_machine::check(1_000, make)));
    let found = *outcome.expect_err("it agrees with the model").downcast::<String>().expect("a text");
    assert!(found.contains("no order that explains it"), "{found}");
    // The first bench reports its kind; the others run histories, and attempts to shorten the one that failed.
    println!("{flaw:?} was found with {benches:?} benches");
}

#[test]
fn a_release_without_a_comparison_of_owners_is_found() {
    assert_found(Flaw::NoOwnerComparison);
}

#[test]
fn a_flight_whose_acquires_do_not_see_each_other_is_found() {
    assert_found(Flaw::BlindBatch);
}

#[test]
fn a_flight_that_overwrites_another_is_found() {
    assert_found(Flaw::LateWrite);
}
