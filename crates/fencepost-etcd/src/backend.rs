//! The backend of one client.

use std::sync::{Arc, Mutex};

use async_trait::async_trait;
use fencepost_core::backend::{Backend, BackendInfo, ListPage, LockState, Op, Page, Reply, Scope, Wakeup};
use fencepost_core::clock::Clock;
use fencepost_core::push::{self, Pushes};
use fencepost_core::{Finding, LockName, Options, Result};
use fencepost_net::{Account, Encryption};
use futures_util::stream::BoxStream;
use tokio::sync::mpsc;

use crate::cluster::{Cluster, MAX_NESTED_TXNS};
use crate::config::{self, Config, Layout};
use crate::diagnose::{diagnose, locate};
use crate::flight::Flight;
use crate::layout::Keys;
use crate::link::{Link, LinkConfig};
use crate::sharing::may_share;
use crate::state::{ClientState, State};
use crate::{storage_id, watch_events, yielding};

/// The maximum number of concurrent flights.
const MAX_FLIGHTS: usize = 2;

pub(crate) struct EtcdBackend {
    client: Arc<ClientState>,
    config: Config,
    pushes: Pushes,
}

/// Connects as one client. Must be called inside the runtime in which it will be used.
pub(crate) async fn open(url: &str, options: &Options) -> Result<Arc<dyn Backend>> {
    let config = config::parse(url)?;
    let location = config.location();
    let encryption = config.tls.as_ref().map(Encryption::new).transpose()?;
    let account = config.login.as_ref().map_or_else(Account::default, |login| Account {
        user: Some(login.user.clone()),
        password: Some(login.password.clone()),
    });
    let link_config = LinkConfig {
        members: config.members.clone(),
        account,
        encryption: encryption.map(|encryption| encryption.with_alpn("h2")),
        location: location.clone(),
    };
    let (event_sender, events) = mpsc::unbounded_channel();
    let link = Link::open(link_config, event_sender).await?;
    let keys = Keys::new(&config.namespace, config.layout);
    let storage_id = storage_id::read_or_create(&link, &keys, options.is_only_existing()).await?;
    let (pusher, wakeups) = push::channel();
    let client = Arc::new(ClientState {
        cluster: Cluster { keys, location, storage_id, link },
        clock: Clock::system(),
        state: Mutex::new(State::default()),
        pusher,
        lease_creation: tokio::sync::Mutex::new(()),
        granted: Arc::default(),
        yield_started: Arc::default(),
    });
    tokio::spawn(watch_events::handle_events(Arc::downgrade(&client), events));
    tokio::spawn(watch_events::watch_long_grants(Arc::downgrade(&client)));
    if config.layout == Layout::Single {
        tokio::spawn(yielding::end_yields(Arc::downgrade(&client)));
    }
    Ok(Arc::new(EtcdBackend { client, config, pushes: wakeups }))
}

#[async_trait]
impl Backend for EtcdBackend {
    fn info(&self) -> BackendInfo {
        let mut info = BackendInfo::new(
            "etcd",
            self.client.cluster.location.clone(),
            Scope::Fleet,
            self.client.cluster.storage_id,
        );
        info.max_flights = MAX_FLIGHTS;
        info.max_batch = MAX_NESTED_TXNS;
        info.may_share = Some(may_share);
        info
    }

    async fn execute(&self, ops: Vec<Op>) -> Vec<Result<Reply>> {
        Flight::new(&self.client).execute(&ops).await
    }

    fn wakeups(&self) -> BoxStream<'static, Wakeup> {
        self.pushes.stream()
    }

    async fn inspect(&self, name: &LockName) -> Result<LockState> {
        let mut state = self.client.cluster.lock_state(name).await?;
        self.client.add_local_waiters(&mut state);
        Ok(state)
    }

    async fn list(&self, prefix: &str, page: Page) -> Result<ListPage> {
        let mut list = self.client.cluster.list(prefix, &page).await?;
        list.locks.iter_mut().for_each(|lock| self.client.add_local_waiters(lock));
        list.locks.retain(|lock| !lock.is_idle());
        Ok(list)
    }

    async fn diagnose(&self) -> Vec<Finding> {
        diagnose(&self.client.cluster, &self.config).await
    }

    async fn locate(&self, name: &LockName) -> Vec<Finding> {
        locate(&self.client.cluster, name).await
    }

    async fn close(&self) {
        self.client.revoke_all().await;
    }
}
