//! One client's sessions in ZooKeeper: executes flights, passes on news.

use std::sync::Arc;

use async_trait::async_trait;
use fencepost_core::backend::{Backend, BackendInfo, ListPage, LockState, Op, Page, Reply, Scope, Wakeup};
use fencepost_core::push::{self, Pushes};
use fencepost_core::{Finding, LockName, Options, Result, StorageId};
use futures_util::future::join_all;
use futures_util::stream::BoxStream;

use crate::config;
use crate::diagnose::{diagnose, locate};
use crate::flight;
use crate::listing;
use crate::setup::Setup;
use crate::shared::Shared;

/// How many operations travel in one flight.
const BATCH: usize = 128;
/// How many flights may be under way at once.
const FLIGHTS: usize = 4;

pub(crate) struct ZooKeeperBackend {
    shared: Arc<Shared>,
    storage_id: StorageId,
    pushes: Pushes,
}

/// Connects as one client. Must be called inside the runtime in which it will be used.
pub(crate) async fn open(url: &str, options: &Options) -> Result<ZooKeeperBackend> {
    let setup = Setup::new(config::parse(url)?).await?;
    let (push, pushes) = push::channel();
    let shared = Arc::new(Shared::new(setup, push));
    let storage_id = shared.storage_id(options.wants_existing()).await?;
    Ok(ZooKeeperBackend { shared, storage_id, pushes })
}

#[async_trait]
impl Backend for ZooKeeperBackend {
    fn info(&self) -> BackendInfo {
        let setup = &self.shared.setup;
        let mut info = BackendInfo::new("zk", setup.location.clone(), Scope::Fleet, self.storage_id);
        info.min_ttl = setup.range.shortest_ttl();
        info.max_ttl = setup.range.longest_ttl();
        info.flights = FLIGHTS;
        info.batch = BATCH;
        info.may_share = Some(flight::may_share);
        info
    }

    async fn execute(&self, ops: Vec<Op>) -> Vec<Result<Reply>> {
        flight::execute(&self.shared, &ops).await
    }

    fn wakeups(&self) -> BoxStream<'static, Wakeup> {
        self.pushes.stream()
    }

    async fn inspect(&self, name: &LockName) -> Result<LockState> {
        listing::inspect(&self.shared, name).await
    }

    async fn list(&self, prefix: &str, page: Page) -> Result<ListPage> {
        listing::list(&self.shared, prefix, &page).await
    }

    async fn diagnose(&self) -> Vec<Finding> {
        diagnose(&self.shared.setup, self.storage_id).await
    }

    async fn locate(&self, name: &LockName) -> Vec<Finding> {
        locate(&self.shared.setup, name).await
    }

    fn remarks(&self, name: &LockName) -> Vec<Finding> {
        self.shared.take_remark(name).into_iter().collect()
    }

    async fn close(&self) {
        self.shared.until_read().await;
        let sessions = self.shared.take_sessions();
        let Shared { setup, clock, .. } = &*self.shared;
        join_all(sessions.into_iter().map(|session| session.end(setup, clock))).await;
    }
}
