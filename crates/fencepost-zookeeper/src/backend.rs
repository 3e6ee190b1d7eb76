//! The ZooKeeper backend of one client: executes flights and pushes wake-ups.

use std::sync::Arc;

use async_trait::async_trait;
use fencepost_core::backend::{Backend, BackendInfo, ListPage, LockState, Op, Page, Reply, Scope, Wakeup};
use fencepost_core::push::{self, Pushes};
use fencepost_core::{Finding, LockName, Options, Result, StorageId};
use futures_util::future::join_all;
use futures_util::stream::BoxStream;

use crate::config;
use crate::diagnose::{diagnose, locate};
use crate::ensemble::Ensemble;
use crate::flight;
use crate::listing;
use crate::state::ClientState;

/// The maximum number of operations in one flight.
const MAX_BATCH: usize = 128;
/// The maximum number of flights at a time.
const MAX_FLIGHTS: usize = 4;

pub(crate) struct ZooKeeperBackend {
    state: Arc<ClientState>,
    storage_id: StorageId,
    pushes: Pushes,
}

/// Connects as one client. Must be called inside the runtime in which the backend will be used.
pub(crate) async fn open(url: &str, options: &Options) -> Result<ZooKeeperBackend> {
    let ensemble = Ensemble::open(config::parse(url)?).await?;
    let (pusher, wakeups) = push::channel();
    let state = Arc::new(ClientState::new(ensemble, pusher));
    let storage_id = state.storage_id(options.is_only_existing()).await?;
    Ok(ZooKeeperBackend { state, storage_id, pushes: wakeups })
}

#[async_trait]
impl Backend for ZooKeeperBackend {
    fn info(&self) -> BackendInfo {
        let ensemble = &self.state.ensemble;
        let mut info = BackendInfo::new("zk", ensemble.location.clone(), Scope::Fleet, self.storage_id);
        info.min_ttl = ensemble.range.shortest_ttl();
        info.max_ttl = ensemble.range.longest_ttl();
        info.max_flights = MAX_FLIGHTS;
        info.max_batch = MAX_BATCH;
        info.may_share = Some(flight::may_share);
        info
    }

    async fn execute(&self, ops: Vec<Op>) -> Vec<Result<Reply>> {
        flight::execute(&self.state, &ops).await
    }

    fn wakeups(&self) -> BoxStream<'static, Wakeup> {
        self.pushes.stream()
    }

    async fn inspect(&self, name: &LockName) -> Result<LockState> {
        listing::inspect(&self.state, name).await
    }

    async fn list(&self, prefix: &str, page: Page) -> Result<ListPage> {
        listing::list(&self.state, prefix, &page).await
    }

    async fn diagnose(&self) -> Vec<Finding> {
        diagnose(&self.state.ensemble, self.storage_id).await
    }

    async fn locate(&self, name: &LockName) -> Vec<Finding> {
        locate(&self.state.ensemble, name).await
    }

    fn remarks(&self, name: &LockName) -> Vec<Finding> {
        self.state.take_remark(name).into_iter().collect()
    }

    async fn close(&self) {
        self.state.wait_for_break_notices().await;
        let sessions = self.state.take_sessions();
        let ClientState { ensemble, clock, .. } = &*self.state;
        join_all(sessions.into_iter().map(|session| session.close(ensemble, clock))).await;
    }
}
