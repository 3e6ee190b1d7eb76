//! The backend of one client with mode=advisory.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use fencepost_core::backend::{Backend, BackendInfo, ListPage, LockState, Op, Page, Reply, Scope, Wakeup};
use fencepost_core::push::{self, Pushes};
use fencepost_core::{Attempt, Error, ErrorKind, Finding, LockName, Mode, Options, Result, StorageId};
use futures_util::stream::BoxStream;

use super::state::{ClientState, Request};
use super::{diagnose, listing, schema};
use crate::config::{Config, Layout};
use crate::error::call_failed;
use crate::link::Link;

/// The maximum number of concurrent requests: each has a connection of its own, or is short.
const MAX_FLIGHTS: usize = 1024;

/// How long an attempt waits in the server's queue before it joins it again: a session that waits keeps the server from
/// removing dead rows.
const WAIT_SLICE: Duration = Duration::from_secs(600);

/// The oldest server that ends sessions which are idle, and notices clients that are gone while their sessions wait.
const MIN_SERVER_VERSION: i32 = 140_000;

/// What locks of sessions cannot guarantee.
const EXCEPTIONS: &[&str] = &[
    "the server frees the lock as soon as the connection ends, before its holder notices",
    "holders of other programs have no token",
];

pub(crate) struct AdvisoryBackend {
    state: Arc<ClientState>,
    storage_id: StorageId,
    pushes: Pushes,
}

/// Connects as one client. Must be called inside the runtime in which it will be used.
pub(crate) async fn open(config: Config, options: &Options) -> Result<Arc<dyn Backend>> {
    Ok(Arc::new(AdvisoryBackend::open(config, options, WAIT_SLICE).await?))
}

impl AdvisoryBackend {
    pub(super) async fn open(config: Config, options: &Options, wait_slice: Duration) -> Result<Self> {
        let Layout::Advisory { key, connections } = config.layout else {
            return Err(Error::new(ErrorKind::BadConfig, "the URL does not have mode=advisory"));
        };
        let link = Link::new(config)?;
        let (pusher, wakeups) = push::channel();
        let state = Arc::new(ClientState::new(link, key, connections, wait_slice, pusher));
        let control = state.control().await?;
        let link = &state.link;
        if link.pooled(&control).await? {
            return Err(pooled(link.location()));
        }
        check_version(link, &control).await?;
        let storage_id = schema::read_or_create(link, &control, options.is_only_existing()).await?;
        if !options.is_only_existing() {
            listing::sweep(link, &control).await?;
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
impl Backend for AdvisoryBackend {
    fn info(&self) -> BackendInfo {
        let location = self.state.link.location();
        let mut info = BackendInfo::new("postgres", location, Scope::Fleet, self.storage_id);
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
        diagnose::locate(&self.state, name).await
    }

    async fn sweep(&self) -> Result<Option<u64>> {
        let control = self.state.control().await?;
        listing::sweep(&self.state.link, &control).await.map(Some)
    }

    async fn close(&self) {
        self.state.close().await;
    }
}

async fn check_version(link: &Link, control: &tokio_postgres::Client) -> Result<()> {
    let row = control.query_typed_one("SELECT current_setting('server_version_num')::integer", &[]).await;
    let version: i32 = row.map_err(|error| call_failed(link.location(), &error))?.get(0);
    if version >= MIN_SERVER_VERSION {
        return Ok(());
    }
    let message = format!("{} has version {}, too old for mode=advisory", link.location(), version / 10_000);
    Err(Error::new(ErrorKind::Unsupported, message)
        .with_hint("PostgreSQL 14 or newer ends the sessions of clients that are gone; or use mode=lease"))
}

fn pooled(location: &str) -> Error {
    let message = format!(
        "{location} is a pooler in transaction mode: advisory locks belong to a session, which it shares among clients"
    );
    Error::new(ErrorKind::Unsupported, message).with_hint(
        "use the address of the server itself, or a pooler in session mode, or mode=lease, which works behind poolers",
    )
}

fn check_supported(attempt: &Attempt) -> Result<()> {
    match attempt.wants.as_slice() {
        [want] if matches!(want.mode, Mode::Exclusive | Mode::Shared) => Ok(()),
        [_] => Err(unsupported("semaphores")),
        _ => Err(unsupported("several names at once")),
    }
}

fn unsupported(what: &str) -> Error {
    Error::new(ErrorKind::Unsupported, format!("advisory locks do not support {what}"))
        .with_hint("use mode=lease, the default of postgres:// URLs")
}
