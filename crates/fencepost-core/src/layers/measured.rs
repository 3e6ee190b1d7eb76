//! A wrapper of a backend that measures the duration of every request.

use std::sync::Arc;

use async_trait::async_trait;
use futures_util::stream::BoxStream;

use super::metrics::Meters;
use crate::backend::{Backend, BackendInfo, ListPage, LockState, Op, Page, Reply, Wakeup};
use crate::clock::{Clock, Moment};
use crate::error::{Error, ErrorKind, Result};
use crate::finding::Finding;
use crate::name::LockName;

/// The measured backend.
pub(super) fn measured(backend: Arc<dyn Backend>, clock: &Clock, meters: &Arc<Meters>) -> Arc<dyn Backend> {
    Arc::new(Measured { inner: backend, clock: clock.clone(), meters: meters.clone() })
}

struct Measured {
    inner: Arc<dyn Backend>,
    clock: Clock,
    meters: Arc<Meters>,
}

/// The request, as an index of `REQUESTS`.
#[derive(Clone, Copy, PartialEq, Eq)]
enum RequestKind {
    Execute,
    Inspect,
    List,
}

/// The outcome of a request, the worst last, as an index of `OUTCOMES`.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum RequestOutcome {
    Ok,
    Error,
    Unreachable,
    Unknown,
}

impl RequestOutcome {
    fn of<T>(answer: &Result<T>) -> Self {
        match answer.as_ref().map_err(Error::kind) {
            Err(ErrorKind::OutcomeUnknown) => Self::Unknown,
            Err(ErrorKind::Unreachable) => Self::Unreachable,
            Err(ErrorKind::Denied | ErrorKind::Backend | ErrorKind::Closed) => Self::Error,
            // The other kinds concern the request, not the backend.
            Ok(_) | Err(_) => Self::Ok,
        }
    }
}

impl Measured {
    fn begin(&self, kind: RequestKind) -> Request<'_> {
        Request { by: self, kind, sent: self.clock.now(), over: false }
    }

    /// Returns the breaks among these operations: their indices, and the groups of their names.
    fn breaks(&self, ops: &[Op]) -> Vec<(usize, usize)> {
        let breaks = ops.iter().enumerate().filter_map(|(place, op)| match op {
            Op::Break { name, .. } => Some((place, self.meters.group(name))),
            _ => None,
        });
        breaks.collect()
    }
}

/// A request in flight. A dropped flight was given up; a dropped query was not needed any more.
struct Request<'a> {
    by: &'a Measured,
    kind: RequestKind,
    sent: Moment,
    over: bool,
}

impl Request<'_> {
    fn ended(mut self, answer: RequestOutcome) {
        self.over = true;
        self.tell(answer);
    }

    fn tell(&self, answer: RequestOutcome) {
        let handles = self.by.meters.handles();
        let took = self.by.clock.now().since(self.sent);
        handles.requests[self.kind as usize][answer as usize].record(took);
        handles.up.set(u8::from(answer < RequestOutcome::Unreachable));
    }
}

impl Drop for Request<'_> {
    fn drop(&mut self) {
        if !self.over && self.kind == RequestKind::Execute {
            self.tell(RequestOutcome::Unknown);
        }
    }
}

#[async_trait]
#[deny(clippy::missing_trait_methods)]
impl Backend for Measured {
    fn info(&self) -> BackendInfo {
        self.inner.info()
    }

    async fn execute(&self, ops: Vec<Op>) -> Vec<Result<Reply>> {
        let breaks = self.breaks(&ops);
        let request = self.begin(RequestKind::Execute);
        let replies = self.inner.execute(ops).await;
        request.ended(replies.iter().map(RequestOutcome::of).max().unwrap_or(RequestOutcome::Ok));
        for (place, group) in breaks {
            if matches!(replies.get(place), Some(Ok(Reply::Released))) {
                self.meters.handles().locks[group].forced.increment(1);
            }
        }
        replies
    }

    fn wakeups(&self) -> BoxStream<'static, Wakeup> {
        self.inner.wakeups()
    }

    async fn inspect(&self, name: &LockName) -> Result<LockState> {
        let request = self.begin(RequestKind::Inspect);
        let answer = self.inner.inspect(name).await;
        request.ended(RequestOutcome::of(&answer));
        answer
    }

    async fn list(&self, prefix: &str, page: Page) -> Result<ListPage> {
        let request = self.begin(RequestKind::List);
        let answer = self.inner.list(prefix, page).await;
        request.ended(RequestOutcome::of(&answer));
        answer
    }

    // Many requests in one, of no fixed number: their duration says nothing about the backend.
    async fn diagnose(&self) -> Vec<Finding> {
        self.inner.diagnose().await
    }

    async fn warnings(&self) -> Vec<Finding> {
        self.inner.warnings().await
    }

    async fn locate(&self, name: &LockName) -> Vec<Finding> {
        self.inner.locate(name).await
    }

    fn remarks(&self, name: &LockName) -> Vec<Finding> {
        self.inner.remarks(name)
    }

    async fn sweep(&self) -> Result<Option<u64>> {
        self.inner.sweep().await
    }

    async fn close(&self) {
        self.inner.close().await;
    }
}
