//! Bounds every query to a backend by the call timeout of the client.
//!
//! Flights have timeouts of their own, in `flights.rs`, and pass through.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use futures_util::future::BoxFuture;
use futures_util::stream::BoxStream;

use crate::backend::{Backend, BackendInfo, ListPage, LockState, Op, Page, Reply, Wakeup};
use crate::clock::Clock;
use crate::duration_text::duration_text;
use crate::error::{Error, ErrorKind, Result};
use crate::finding::Finding;
use crate::name::LockName;
use crate::timers::Timers;

/// A backend whose queries return in time, if only with an error.
pub(super) struct CallTimeout {
    inner: Arc<dyn Backend>,
    clock: Clock,
    timers: Arc<Timers>,
    within: Duration,
    location: String,
}

impl CallTimeout {
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
            // The reply first: one that has arrived is not discarded.
            biased;
            reply = query => reply,
            () = self.timers.sleep_until(late) => {
                let Self { location, within, .. } = self;
                let text = format!("could not {}: no reply from {location} within {}", what(), duration_text(*within));
                Err(Error::new(ErrorKind::Unreachable, text))
            }
        }
    }

    /// Replaces findings that are too late by one finding.
    async fn bound_findings(&self, what: &str, findings: impl Future<Output = Vec<Finding>>) -> Vec<Finding> {
        let bound = self.bound(|| what.to_owned(), async { Ok(findings.await) }).await;
        bound.unwrap_or_else(|late| vec![Finding::failed("answer", &late)])
    }
}

#[async_trait]
#[deny(clippy::missing_trait_methods)]
impl Backend for CallTimeout {
    fn info(&self) -> BackendInfo {
        self.inner.info()
    }

    // Not an `async fn`, which would box the future a second time.
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
        self.bound_findings("diagnose the backend", self.inner.diagnose()).await
    }

    async fn warnings(&self) -> Vec<Finding> {
        self.bound_findings("diagnose the backend", self.inner.warnings()).await
    }

    async fn locate(&self, name: &LockName) -> Vec<Finding> {
        self.bound_findings(&format!("find lock {name:?}"), self.inner.locate(name)).await
    }

    fn remarks(&self, name: &LockName) -> Vec<Finding> {
        self.inner.remarks(name)
    }

    // Many requests in one: how long they take depends on how much there is to remove.
    async fn sweep(&self) -> Result<Option<u64>> {
        self.inner.sweep().await
    }

    async fn close(&self) {
        self.inner.close().await;
    }
}
