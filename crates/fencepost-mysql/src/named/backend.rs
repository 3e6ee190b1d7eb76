//! The backend of one client with mode=named.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use fencepost_core::backend::{Backend, BackendInfo, ListPage, LockState, Op, Page, Reply, Scope, Wakeup};
use fencepost_core::push::{self, Pushes};
use fencepost_core::{Attempt, Error, ErrorKind, Finding, LockName, Mode, Options, Result, StorageId};
use fencepost_sql::Row;
use futures_util::stream::BoxStream;

use super::session::shared_connection;
use super::state::{ClientState, Request};
use super::{diagnose, listing, schema};
use crate::config::{Config, Layout};
use crate::lease::flight::READ_TIMEOUT;
use crate::session::{Connector, Session};
use crate::sessions::Sessions;

/// The maximum number of concurrent requests: each has a connection of its own, or is short.
const MAX_FLIGHTS: usize = 1024;

/// How long an attempt waits in the server's queue before it joins it again, at its end: so long can a host that is gone leave a
/// connection there.
const WAIT_SLICE: Duration = Duration::from_secs(600);

/// How often two connections through a proxy are compared.
const PROXY_ROUNDS: usize = 5;

/// What locks of connections cannot guarantee.
const EXCEPTIONS: &[&str] = &[
    "the server frees the lock as soon as the connection ends, before its holder notices",
    "a waiter joins the queue again after ten minutes, at its end",
    "holders of other programs have no token",
];

pub(crate) struct NamedBackend {
    state: Arc<ClientState>,
    storage_id: StorageId,
    pushes: Pushes,
}

/// Connects as one client. Must be called inside the runtime in which it will be used.
pub(crate) async fn open(config: Config, options: &Options) -> Result<Arc<dyn Backend>> {
    Ok(Arc::new(NamedBackend::open(config, options, WAIT_SLICE).await?))
}

async fn refuse_galera(session: &mut Session, config: &Config) -> Result<()> {
    let sets = session.run("SHOW VARIABLES LIKE 'wsrep_on'", READ_TIMEOUT).await;
    let sets = sets.map_err(|failure| failure.into_error(&config.location()))?;
    if !sets.iter().flatten().any(|row| row.text(1).is_ok_and(|value| value == "ON" || value == "1")) {
        return Ok(());
    }
    let text = format!(
        "{} is a node of a Galera cluster (wsrep_on): each node has named locks of its own, which do not exclude each other",
        config.location()
    );
    Err(Error::new(ErrorKind::Unsupported, text).with_hint("use mode=lease, the default of mysql:// URLs"))
}

/// Refuses a proxy that executes statements of one connection on several of the server. Without a proxy, the server's id of the
/// connection is that of the handshake. Otherwise two connections are compared: each must always have the same one.
async fn refuse_proxy(session: &mut Session, connector: &Connector) -> Result<()> {
    let first = connection_id(session, connector).await?;
    if session.handshake_id().map(i64::from) == Some(first) {
        return Ok(());
    }
    let mut other = connector.connect().await?;
    let second = connection_id(&mut other, connector).await?;
    for _ in 0..PROXY_ROUNDS {
        let now = (connection_id(session, connector).await?, connection_id(&mut other, connector).await?);
        if first == second || now != (first, second) {
            return Err(shared_connection(&connector.location));
        }
    }
    Ok(())
}

async fn connection_id(session: &mut Session, connector: &Connector) -> Result<i64> {
    // Some proxies answer `SELECT CONNECTION_ID()` themselves.
    let sets = session.run("SELECT CONNECTION_ID() + 0", READ_TIMEOUT).await;
    let sets = sets.map_err(|failure| failure.into_error(&connector.location))?;
    sets.first().and_then(|rows| rows.first()).map_or(Ok(0), |row| row.integer(0))
}

impl NamedBackend {
    pub(super) async fn open(config: Config, options: &Options, wait_slice: Duration) -> Result<Self> {
        let Layout::Named { key, connections } = config.layout else {
            return Err(Error::new(ErrorKind::BadConfig, "the URL does not have mode=named"));
        };
        let control = Sessions::new(Connector::new(&config)?);
        let mut lent = control.take().await?;
        refuse_galera(&mut lent.session, &config).await?;
        refuse_proxy(&mut lent.session, &control.connector).await?;
        let storage_id =
            schema::read_or_create(&config, &mut lent.session, options.is_only_existing()).await?;
        control.put(lent);
        let (pusher, wakeups) = push::channel();
        let state = Arc::new(ClientState::new(config, control, (key, connections), wait_slice, pusher));
        if !options.is_only_existing() {
            listing::sweep(&state).await?;
        }
        Ok(Self { state, storage_id, pushes: wakeups })
    }

    async fn execute_one(&self, op: &Op) -> Result<Reply> {
        let state = &self.state;
        if let Op::Acquire { attempt, .. } | Op::Check(attempt) | Op::Leave(attempt) = op {
            check_supported(attempt)?;
        }
        match op {
            Op::Acquire { attempt, on_busy } => {
                // A task that has just ended did not answer: then another one is started.
                for _ in 0..2 {
                    if state.is_barred(attempt.owner) {
                        return Ok(Reply::Busy);
                    }
                    state.start(attempt)?;
                    if let Some(reply) = state.call(attempt.owner, Request::Acquire(*on_busy)).await {
                        return reply;
                    }
                }
                Err(Error::new(ErrorKind::OutcomeUnknown, "the attempt ended without a reply"))
            }
            Op::Check(attempt) => {
                state.call(attempt.owner, Request::Check).await.unwrap_or(Ok(Reply::NoTicket))
            }
            Op::Leave(attempt) => {
                let reply = state.call(attempt.owner, Request::Leave).await;
                reply.unwrap_or_else(|| {
                    state.bar(attempt);
                    Ok(Reply::Left)
                })
            }
            Op::Renew(grant) => {
                let reply = state.call(grant.attempt.owner, Request::Renew).await;
                reply.unwrap_or(Ok(Reply::NotHeld))
            }
            Op::Release(grant) => {
                let reply = state.call(grant.attempt.owner, Request::Release).await;
                reply.unwrap_or(Ok(Reply::NotHeld))
            }
            Op::Break { name, token } => listing::break_lock(state, name, *token).await,
            Op::ReadCell(_) | Op::WriteCell { .. } => Err(unsupported("cells")),
        }
    }
}

#[async_trait]
impl Backend for NamedBackend {
    fn info(&self) -> BackendInfo {
        let mut info = BackendInfo::new("mysql", self.state.location(), Scope::Fleet, self.storage_id);
        info.max_flights = MAX_FLIGHTS;
        info.max_batch = 1;
        info.exceptions = EXCEPTIONS;
        info
    }

    async fn execute(&self, ops: Vec<Op>) -> Vec<Result<Reply>> {
        let mut replies = Vec::with_capacity(ops.len());
        for op in &ops {
            replies.push(self.execute_one(op).await);
        }
        replies
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
        diagnose::diagnose(&self.state).await
    }

    async fn locate(&self, name: &LockName) -> Vec<Finding> {
        vec![diagnose::locate(&self.state, name)]
    }

    async fn sweep(&self) -> Result<Option<u64>> {
        let mut swept = 0;
        loop {
            let removed = listing::sweep(&self.state).await?;
            swept += removed;
            if removed == 0 {
                return Ok(Some(swept));
            }
        }
    }

    async fn close(&self) {
        self.state.close().await;
    }
}

fn check_supported(attempt: &Attempt) -> Result<()> {
    match attempt.wants.as_slice() {
        [want] if want.mode == Mode::Exclusive => Ok(()),
        [want] if want.mode == Mode::Shared => Err(unsupported("the mode shared")),
        [_] => Err(unsupported("semaphores")),
        _ => Err(unsupported("several names at once")),
    }
}

fn unsupported(what: &str) -> Error {
    Error::new(ErrorKind::Unsupported, format!("named locks do not support {what}"))
        .with_hint("use mode=lease, the default of mysql:// URLs")
}
