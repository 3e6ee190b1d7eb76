//! The backend for locks in another library's form: what such locks cannot do is refused here, the rest goes the usual
//! way.

use std::sync::Arc;

use async_trait::async_trait;
use fencepost_core::backend::{Backend, BackendInfo, ListPage, LockState, Op, Page, Reply, Wakeup};

use fencepost_core::{Error, ErrorKind, Finding, LockName, Options, Result};
use futures_util::stream::BoxStream;

use super::ear::Ear;
use super::tracking::Tracking;
use crate::backend::{self, RedisBackend};
use crate::encode::plain;

/// Connects as the backend of one client, in whatever form its URL says that locks have.
pub(crate) async fn open(url: &str, options: &Options) -> Result<Arc<dyn Backend>> {
    let mut redis = backend::open(url, options).await?;
    let Some(dialect) = &redis.setup.layout.dialect else {
        return Ok(Arc::new(redis));
    };
    let ear = dialect.signal("").map(|_| Ear::new(redis.setup.clone()));
    redis.tracking = Some(Tracking::new(redis.setup.clone()));
    Ok(Arc::new(DialectBackend { redis, ear }))
}

struct DialectBackend {
    redis: RedisBackend,
    /// If the other library gives signals.
    ear: Option<Ear>,
}

impl DialectBackend {
    /// Why such a lock cannot do this.
    fn refuses(&self, op: &Op) -> Option<Error> {
        let layout = &self.redis.setup.layout;
        let form = layout.dialect.as_ref().map(super::Dialect::option).unwrap_or_default();
        let unsupported = |what: &str| {
            let message = format!("locks with {form} {what}");
            let hint =
                "leave that option out of the URL, and Fencepost keeps locks in its own form, which can";
            Some(Error::new(ErrorKind::Unsupported, message).with_hint(hint))
        };
        if matches!(op, Op::ReadCell(_) | Op::WriteCell { .. }) {
            return unsupported("have no cell");
        }
        let wants = op.wants();
        if wants.len() > 1 {
            return unsupported("are taken one by one");
        }
        if !wants.is_empty() && plain(wants).is_none() {
            return unsupported("are exclusive");
        }
        op.names().find(|name| layout.is_ours(&layout.stem(name.as_str()))).map(|name| {
            let message = format!("a lock {name:?} with {form} would be among Fencepost's own keys");
            Error::new(ErrorKind::BadName, message)
                .with_hint("?namespace= says where Fencepost's own keys are")
        })
    }
}

#[async_trait]
impl Backend for DialectBackend {
    fn info(&self) -> BackendInfo {
        self.redis.info()
    }

    async fn execute(&self, ops: Vec<Op>) -> Vec<Result<Reply>> {
        let refused: Vec<Option<Error>> = ops.iter().map(|op| self.refuses(op)).collect();
        let fine = ops.into_iter().zip(&refused).filter(|(_, refused)| refused.is_none()).map(|(op, _)| op);
        let fine: Vec<Op> = fine.collect();
        let told = if self.ear.is_some() { fine.clone() } else { Vec::new() };
        let answers = if fine.is_empty() { Vec::new() } else { self.redis.execute(fine).await };
        if let Some(ear) = &self.ear {
            told.iter().zip(&answers).for_each(|(op, answer)| ear.note(op, answer));
        }
        let mut answers = answers.into_iter();
        let nonsense = || Err(crate::decode::nonsense(&self.redis.setup.location));
        let answer = |refused| match refused {
            Some(error) => Err(error),
            None => answers.next().unwrap_or_else(nonsense),
        };
        refused.into_iter().map(answer).collect()
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
        if let Some(ear) = &self.ear {
            ear.close();
        }
        if let Some(tracking) = &self.redis.tracking {
            tracking.close();
        }
        self.redis.close().await;
    }
}
