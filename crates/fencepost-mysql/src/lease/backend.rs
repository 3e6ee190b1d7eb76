//! The backend of one client.

use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

use async_trait::async_trait;
use fencepost_core::backend::{
    Backend, BackendInfo, ListPage, LockState, OnBusy, Op, Page, Reply, Scope, Wakeup,
};
use fencepost_core::push::{self, Pushes};
use fencepost_core::record::ClientId;
use fencepost_core::{Finding, LockName, Options, Result};
use futures_util::stream::BoxStream;

use crate::config::Config;
use crate::diagnose;
use crate::lease::flight::Flight;
use crate::lease::poller;
use crate::lease::recent::RecentLocks;
use crate::lease::sent::SentOwners;
use crate::lease::state::ClientState;
use crate::lease::storage::{self, IfMissing};
use crate::lease::sweep::{Sweeper, sweep_if_due};
use crate::session::Connector;
use crate::sessions::Sessions;

/// The maximum number of concurrent flights; one connection is left for queries.
const MAX_FLIGHTS: usize = 2;
/// How long a row that was found locked is checked before it is waited for.
const BLOCKED_TIME: Duration = Duration::from_secs(5);
/// How long a lock is not expected to be free after it was found in use.
const BUSY_TIME: Duration = Duration::from_secs(1);

pub(crate) struct MysqlBackend {
    client: Arc<ClientState>,
    pushes: Pushes,
}

/// Connects as one client. Must be called inside the runtime in which it will be used.
pub(crate) async fn open(config: Config, options: &Options) -> Result<Arc<dyn Backend>> {
    let (client, pushes) = connect(config, options).await?;
    tokio::spawn(poller::poll(Arc::downgrade(&client)));
    tokio::spawn(close_unused(Arc::downgrade(&client)));
    Ok(Arc::new(MysqlBackend { client, pushes }))
}

pub(super) async fn connect(config: Config, options: &Options) -> Result<(Arc<ClientState>, Pushes)> {
    let sessions = Arc::new(Sessions::new(Connector::new(&config)?));
    let if_missing = if options.is_only_existing() { IfMissing::Fail } else { IfMissing::Create };
    let mut lent = sessions.take().await?;
    let opened = storage::open(&config, &mut lent.session, if_missing).await?;
    sessions.put(lent);
    let (pusher, wakeups) = push::channel();
    let client = Arc::new(ClientState {
        id: ClientId(rand::random()),
        storage_id: opened.storage_id,
        tables: config.tables(),
        is_galera: opened.is_galera,
        blocked: RecentLocks::new(sessions.connector.clock.clone(), BLOCKED_TIME),
        busy: RecentLocks::new(sessions.connector.clock.clone(), BUSY_TIME),
        held: RecentLocks::new(sessions.connector.clock.clone(), BUSY_TIME),
        sessions,
        poller: Arc::default(),
        pusher,
        sent: SentOwners::default(),
        sweeper: Sweeper::default(),
        labels: Mutex::default(),
        config,
    });
    Ok((client, wakeups))
}

/// Closes connections that are not in use, until the client is closed.
async fn close_unused(client: Weak<ClientState>) {
    while let Some(client) = client.upgrade().filter(|client| !client.poller.is_closed()) {
        let sessions = client.sessions.clone();
        drop(client);
        sessions.close_unused().await;
    }
}

#[async_trait]
impl Backend for MysqlBackend {
    fn info(&self) -> BackendInfo {
        let mut info =
            BackendInfo::new("mysql", self.client.location(), Scope::Fleet, self.client.storage_id);
        info.min_ttl = Duration::from_millis(500);
        info.max_flights = MAX_FLIGHTS;
        info.max_batch = 128;
        info
    }

    async fn execute(&self, ops: Vec<Op>) -> Vec<Result<Reply>> {
        if ops.is_empty() {
            return Vec::new();
        }
        if ops.iter().any(|op| matches!(op, Op::Acquire { on_busy: OnBusy::Wait, .. })) {
            self.client.poller.request();
        }
        let flight = Flight::new(&self.client, &ops, &[]);
        self.client.sent.send(&ops, self.client.now());
        let replies = flight.run().await;
        self.client.sent.on_replies(&ops, &replies);
        self.client.poller.update(&ops, &replies, self.client.now());
        sweep_if_due(&self.client);
        replies
    }

    fn wakeups(&self) -> BoxStream<'static, Wakeup> {
        self.pushes.stream()
    }

    async fn inspect(&self, name: &LockName) -> Result<LockState> {
        self.client.inspect(name).await
    }

    async fn list(&self, prefix: &str, page: Page) -> Result<ListPage> {
        self.client.list(prefix, &page).await
    }

    async fn diagnose(&self) -> Vec<Finding> {
        diagnose::diagnose(&self.client).await
    }

    async fn locate(&self, name: &LockName) -> Vec<Finding> {
        vec![diagnose::locate::rows_of(&self.client.config, name)]
    }

    async fn sweep(&self) -> Result<Option<u64>> {
        self.client.sweep_all().await.map(Some)
    }

    async fn close(&self) {
        self.client.sessions.close().await;
        self.client.poller.close();
    }
}

impl Drop for MysqlBackend {
    fn drop(&mut self) {
        self.client.poller.close();
    }
}
