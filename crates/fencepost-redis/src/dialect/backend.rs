//! The backend for locks in a dialect: rejects operations that such locks do not support, and forwards the others.

use std::sync::Arc;

use async_trait::async_trait;
use fencepost_core::backend::{Backend, BackendInfo, ListPage, LockState, Op, Page, Reply, Wakeup};
use fencepost_core::{Error, ErrorKind, Finding, LockName, Options, Result};
use futures_util::stream::BoxStream;

use super::signals::SignalListener;
use super::tracking::Tracking;
use crate::backend::{self, RedisBackend};
use crate::encode::single_exclusive;

/// Connects as the backend of one client, in the dialect of the URL if it has one.
pub(crate) async fn open(url: &str, options: &Options) -> Result<Arc<dyn Backend>> {
    let mut redis = backend::open(url, options).await?;
    let Some(dialect) = &redis.state.layout.dialect else {
        return Ok(Arc::new(redis));
    };
    let signals = dialect.signal_list("").map(|_| SignalListener::new(redis.state.clone()));
    redis.tracking = Some(Tracking::new(redis.state.clone()));
    Ok(Arc::new(DialectBackend { redis, signals }))
}

/// What keys of other libraries cannot guarantee.
const EXCEPTIONS: &[&str] = &[
    "waiters of Fencepost are served in order, those of other libraries whenever they find the lock free",
    "holders of other libraries have no token",
];

struct DialectBackend {
    redis: RedisBackend,
    /// Only if the other library signals releases.
    signals: Option<SignalListener>,
}

impl DialectBackend {
    /// Returns an error if locks in a dialect do not support the operation.
    fn check_supported(&self, op: &Op) -> Result<()> {
        let layout = &self.redis.state.layout;
        let option = layout.dialect.as_ref().map(super::Dialect::option).unwrap_or_default();
        let unsupported = |what: &str| {
            let message = format!("locks with {option} {what}");
            let hint = "without that option in the URL locks have Fencepost's own format, which supports it";
            Err(Error::new(ErrorKind::Unsupported, message).with_hint(hint))
        };
        if matches!(op, Op::ReadCell(_) | Op::WriteCell { .. }) {
            return unsupported("have no cell");
        }
        let wants = op.wants();
        if wants.len() > 1 {
            return unsupported("are acquired one by one");
        }
        if !wants.is_empty() && single_exclusive(wants).is_none() {
            return unsupported("are exclusive");
        }
        match op.names().find(|name| layout.is_in_namespace(&layout.stem(name.as_str()))) {
            None => Ok(()),
            Some(name) => {
                let message =
                    format!("the key of lock {name:?} with {option} is one of Fencepost's own keys");
                Err(Error::new(ErrorKind::BadName, message)
                    .with_hint("use another name, or another prefix for Fencepost's own keys: ?namespace="))
            }
        }
    }
}

#[async_trait]
impl Backend for DialectBackend {
    fn info(&self) -> BackendInfo {
        let mut info = self.redis.info();
        info.exceptions = EXCEPTIONS;
        info
    }

    async fn execute(&self, ops: Vec<Op>) -> Vec<Result<Reply>> {
        let checks: Vec<Result<()>> = ops.iter().map(|op| self.check_supported(op)).collect();
        let supported = ops.into_iter().zip(&checks).filter(|(_, check)| check.is_ok()).map(|(op, _)| op);
        let supported: Vec<Op> = supported.collect();
        let noted = if self.signals.is_some() { supported.clone() } else { Vec::new() };
        let replies = if supported.is_empty() { Vec::new() } else { self.redis.execute(supported).await };
        if let Some(signals) = &self.signals {
            noted.iter().zip(&replies).for_each(|(op, reply)| signals.on_reply(op, reply));
        }
        let mut replies = replies.into_iter();
        let missing = || Err(crate::decode::unexpected_reply(&self.redis.state.location));
        let reply = |check: Result<()>| match check {
            Err(error) => Err(error),
            Ok(()) => replies.next().unwrap_or_else(missing),
        };
        checks.into_iter().map(reply).collect()
    }

    fn wakeups(&self) -> BoxStream<'static, Wakeup> {
        self.redis.wakeups()
    }

    async fn inspect(&self, name: &LockName) -> Result<LockState> {
        self.redis.inspect(name).await
    }

    async fn list(&self, prefix: &str, page: Page) -> Result<ListPage> {
        self.redis.list(prefix, page).await
    }

    async fn diagnose(&self) -> Vec<Finding> {
        self.redis.diagnose().await
    }

    async fn locate(&self, name: &LockName) -> Vec<Finding> {
        self.redis.locate(name).await
    }

    async fn close(&self) {
        if let Some(signals) = &self.signals {
            signals.close();
        }
        if let Some(tracking) = &self.redis.tracking {
            tracking.close();
        }
        self.redis.close().await;
    }
}
