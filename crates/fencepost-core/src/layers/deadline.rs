//! The deadline: no query to a storage is open for ever.
//!
//! Operations of a flight are given up one by one, each after its own ttl, by `flights.rs`; they pass through.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use futures_util::future::BoxFuture;
use futures_util::stream::BoxStream;

use crate::backend::{Backend, BackendInfo, ListPage, LockState, Op, Page, Reply, Wakeup};
use crate::clock::Clock;
use crate::error::{Error, ErrorKind, Result};
use crate::finding::Finding;
use crate::name::LockName;
use crate::timers::Timers;

/// A backend whose queries are answered in time, if only with an error.
pub(super) struct Deadline {
    inner: Arc<dyn Backend>,
    clock: Clock,
    timers: Arc<Timers>,
    within: Duration,
    location: String,
}

impl Deadline {
    pub(super) fn new(inner: Arc<dyn Backend>, clock: Clock, timers: Arc<Timers>, within: Duration) -> Self {
        let location = inner.info().location;
        Self { inner, clock, timers, within, location }
    }

    async fn bound<T>(
        &self,
        what: impl FnOnce() -> String,
        query: impl Future<Output = Result<T>>,
    ) -> Result<T> {
        let late = self.clock.now() + self.within;
        tokio::select! {
            // The answer first: one that has arrived is not thrown away.
            biased;
            answer = query => answer,
            () = self.timers.sleep_until(late) => {
                let Self { location, within, .. } = self;
                let text = format!("could not {}: {location} did not answer within {within:?}", what());
                Err(Error::new(ErrorKind::Unreachable, text))
            }
        }
    }

    /// Findings that come too late are one finding.
    async fn bound_findings(&self, what: &str, findings: impl Future<Output = Vec<Finding>>) -> Vec<Finding> {
        let bound = self.bound(|| what.to_owned(), async { Ok(findings.await) }).await;
        bound.unwrap_or_else(|late| vec![Finding::failed("answer", &late)])
    }
}

#[async_trait]
#[deny(clippy::missing_trait_methods)]
impl Backend for Deadline {
    fn info(&self) -> BackendInfo {
        self.inner.info()
    }

    // Not an `async fn`, so that the flight travels in one box and not in two.
    fn execute<'a, 'b>(&'a self, ops: Vec<Op>) -> BoxFuture<'b, Vec<Result<Reply>>>
    where
        'a: 'b,
        Self: 'b,
    {
        self.inner.execute(ops)
    }

    fn wakeups(&self) -> BoxStream<'static, Wakeup> {
        self.inner.wakeups()
    }

    async fn inspect(&self, name: &LockName) -> Result<LockState> {
        self.bound(|| format!("inspect lock {name:?}"), self.inner.inspect(name)).await
    }

    async fn list(&self, prefix: &str, page: Page) -> Result<ListPage> {
        self.bound(|| "list locks".to_owned(), self.inner.list(prefix, page)).await
    }

    async fn diagnose(&self) -> Vec<Finding> {
        self.bound_findings("examine the storage", self.inner.diagnose()).await
    }

    async fn warnings(&self) -> Vec<Finding> {
        self.bound_findings("examine the storage", self.inner.warnings()).await
    }

    async fn locate(&self, name: &LockName) -> Vec<Finding> {
        self.bound_findings(&format!("find lock {name:?}"), self.inner.locate(name)).await
    }

    fn remarks(&self, name: &LockName) -> Vec<Finding> {
        self.inner.remarks(name)
    }

    async fn close(&self) {
        self.inner.close().await;
    }
}
