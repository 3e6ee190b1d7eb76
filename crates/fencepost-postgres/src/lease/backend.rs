//! The backend of one client.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use fencepost_core::backend::{Backend, BackendInfo, ListPage, LockState, Op, Page, Reply, Scope, Wakeup};
use fencepost_core::push::{self, Pushes};
use fencepost_core::{Finding, LockName, Options, Result};
use futures_util::stream::BoxStream;

use crate::config::Config;
use crate::diagnose;
use crate::lease::pool::{MAX_CONNECTIONS, Pool};
use crate::lease::state::ClientState;
use crate::lease::{flight, listener, listing, reply, schema, sweep};
use crate::link::Link;

/// How many operations one call executes.
const MAX_BATCH: usize = 128;

pub(crate) struct LeaseBackend {
    state: Arc<ClientState>,
    pushes: Pushes,
}

/// Connects as one client. Must be called inside the runtime in which it will be used.
pub(crate) async fn open(config: Config, options: &Options) -> Result<Arc<dyn Backend>> {
    let link = Link::new(config)?;
    let client = link.open(None).await?;
    let is_pooled = link.pooled(&client).await?;
    let storage_id = schema::prepare(&client, link.config(), options.is_only_existing()).await?;
    let statements = if is_pooled { Vec::new() } else { flight::statements(&link.config().namespace) };
    let pool = Pool::new(link, statements);
    pool.add(client).await?;
    let (pusher, wakeups) = push::channel();
    let state = Arc::new(ClientState::new(pool, is_pooled, storage_id, pusher));
    // A client that creates nothing rarely waits; it listens when it does.
    if state.can_listen() && !options.is_only_existing() {
        let opened = listener::open(&state).await?;
        listener::start(&state, Some(opened));
    }
    Ok(Arc::new(LeaseBackend { state, pushes: wakeups }))
}

#[async_trait]
impl Backend for LeaseBackend {
    fn info(&self) -> BackendInfo {
        let location = self.state.location.clone();
        let mut info = BackendInfo::new("postgres", location, Scope::Fleet, self.state.storage_id);
        info.min_ttl = Duration::from_millis(100);
        info.max_flights = MAX_CONNECTIONS;
        info.max_batch = MAX_BATCH;
        info
    }

    async fn execute(&self, ops: Vec<Op>) -> Vec<Result<Reply>> {
        if ops.is_empty() {
            return Vec::new();
        }
        flight::execute(&self.state, &ops).await
    }

    fn wakeups(&self) -> BoxStream<'static, Wakeup> {
        self.pushes.stream()
    }

    async fn inspect(&self, name: &LockName) -> Result<LockState> {
        let mut found = listing::states(&self.state, std::slice::from_ref(name)).await?;
        found.pop().ok_or_else(|| reply::unexpected(&self.state.location))
    }

    async fn list(&self, prefix: &str, page: Page) -> Result<ListPage> {
        listing::list(&self.state, prefix, &page).await
    }

    async fn diagnose(&self) -> Vec<Finding> {
        diagnose::diagnose(&self.state).await
    }

    async fn warnings(&self) -> Vec<Finding> {
        diagnose::warnings(&self.state).await
    }

    async fn locate(&self, name: &LockName) -> Vec<Finding> {
        diagnose::locate(&self.state, name).await
    }

    async fn sweep(&self) -> Result<Option<u64>> {
        sweep::all(&self.state).await.map(Some)
    }

    async fn close(&self) {
        self.state.pool.close().await;
    }
}
