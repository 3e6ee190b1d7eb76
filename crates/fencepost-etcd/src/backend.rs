//! One client's backend.

use std::sync::{Arc, Mutex};

use async_trait::async_trait;
use fencepost_core::backend::{Backend, BackendInfo, ListPage, LockState, Op, Page, Reply, Scope, Wakeup};
use fencepost_core::clock::Clock;
use fencepost_core::push::{self, Pushes};
use fencepost_core::{Finding, LockName, Options, Result};
use fencepost_net::{Account, Encryption};
use futures_util::stream::BoxStream;
use tokio::sync::mpsc;

use crate::about::introduce;
use crate::client_state::{ClientState, State};
use crate::config::{self, Config, Layout};
use crate::diagnose::{diagnose, locate};
use crate::flight::Flight;
use crate::keys::Keys;
use crate::link::{Link, Setup};
use crate::sharing::may_share;
use crate::store::{Store, TOGETHER};
use crate::{resting, watching};

/// How many flights may be under way at once.
const FLIGHTS: usize = 2;

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
    let setup = Setup {
        members: config.members.clone(),
        account,
        encryption: encryption.map(|encryption| encryption.with_alpn("h2")),
        location: location.clone(),
    };
    let (tell, events) = mpsc::unbounded_channel();
    let link = Link::open(setup, tell).await?;
    let keys = Keys::new(&config.namespace, config.layout);
    let storage_id = introduce(&link, &keys, options.wants_existing()).await?;
    let (push, pushes) = push::channel();
    let client = Arc::new(ClientState {
        store: Store { keys, location, storage_id, link },
        clock: Clock::system(),
        state: Mutex::new(State::default()),
        push,
        leasing: tokio::sync::Mutex::new(()),
        granted: Arc::default(),
        resting: Arc::default(),
    });
    tokio::spawn(watching::listen(Arc::downgrade(&client), events));
    tokio::spawn(watching::watch_what_lasts(Arc::downgrade(&client)));
    if config.layout == Layout::Single {
        tokio::spawn(resting::end_rests(Arc::downgrade(&client)));
    }
    Ok(Arc::new(EtcdBackend { client, config, pushes }))
}

#[async_trait]
impl Backend for EtcdBackend {
    fn info(&self) -> BackendInfo {
        let mut info = BackendInfo::new(
            "etcd",
            self.client.store.location.clone(),
            Scope::Fleet,
            self.client.store.storage_id,
        );
        info.flights = FLIGHTS;
        info.batch = TOGETHER;
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
        let mut seen = self.client.store.lock_state(name).await?;
        self.client.add_those_who_wait_here(&mut seen);
        Ok(seen)
    }

    async fn list(&self, prefix: &str, page: Page) -> Result<ListPage> {
        let mut list = self.client.store.list(prefix, &page).await?;
        list.locks.iter_mut().for_each(|seen| self.client.add_those_who_wait_here(seen));
        list.locks.retain(|lock| !lock.is_idle());
        Ok(list)
    }

    async fn diagnose(&self) -> Vec<Finding> {
        diagnose(&self.client.store, &self.config).await
    }

    async fn locate(&self, name: &LockName) -> Vec<Finding> {
        locate(&self.client.store, name).await
    }

    async fn close(&self) {
        self.client.revoke_all().await;
    }
}
