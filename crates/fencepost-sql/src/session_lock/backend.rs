//! The backend of one client for locks that live in sessions.

use std::sync::Arc;

use async_trait::async_trait;
use fencepost_core::backend::{Backend, BackendInfo, ListPage, LockState, Op, Page, Reply, Scope, Wakeup};
use fencepost_core::push::{self, Pushes};
use fencepost_core::{Attempt, Error, ErrorKind, Finding, LockName, Mode, Result};
use futures_util::stream::BoxStream;

use super::server::{LockServer, ServerInfo};
use super::state::{ClientState, Request};

/// The maximum number of concurrent requests: each has a connection of its own, or is short.
const MAX_FLIGHTS: usize = 1024;

/// A backend for locks in sessions of the server `S`.
pub struct SessionBackend<S: LockServer> {
    state: Arc<ClientState<S>>,
    pushes: Pushes,
}

impl<S: LockServer> SessionBackend<S> {
    /// Creates the backend of one client. Must be called inside the runtime in which it will be used.
    pub fn new(server: S, info: ServerInfo) -> Self {
        let (pusher, wakeups) = push::channel();
        Self { state: Arc::new(ClientState::new(server, info, pusher)), pushes: wakeups }
    }

    async fn execute_one(&self, op: &Op) -> Result<Reply> {
        let state = &self.state;
        if let Op::Acquire { attempt, .. } | Op::Check(attempt) | Op::Leave(attempt) = op {
            self.check_supported(attempt)?;
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
                let reply = state.call(grant.attempt.owner, Request::Renew(grant.award.token)).await;
                reply.unwrap_or(Ok(Reply::NotHeld))
            }
            Op::Release(grant) => {
                let reply = state.call(grant.attempt.owner, Request::Release(grant.award.token)).await;
                reply.unwrap_or(Ok(Reply::NotHeld))
            }
            Op::Break { name, token } => state.server.break_lock(name, *token).await,
            Op::ReadCell(_) | Op::WriteCell { .. } => Err(self.unsupported("cells")),
        }
    }

    fn check_supported(&self, attempt: &Attempt) -> Result<()> {
        let [want] = attempt.wants.as_slice() else {
            return Err(self.unsupported("several names at once"));
        };
        match want.mode {
            Mode::Exclusive => Ok(()),
            Mode::Shared if self.state.info.has_shared => Ok(()),
            Mode::Shared => Err(self.unsupported("the mode shared")),
            _ => Err(self.unsupported("semaphores")),
        }
    }

    fn unsupported(&self, what: &str) -> Error {
        let info = &self.state.info;
        Error::new(ErrorKind::Unsupported, format!("{} do not support {what}", info.locks))
            .with_hint(format!("use mode=lease, the default of {}:// URLs", info.scheme))
    }
}

#[async_trait]
impl<S: LockServer> Backend for SessionBackend<S> {
    fn info(&self) -> BackendInfo {
        let server = &self.state.info;
        let mut info = BackendInfo::new(server.scheme, &server.location, Scope::Fleet, server.storage_id);
        info.max_flights = MAX_FLIGHTS;
        info.max_batch = 1;
        info.exceptions = server.exceptions;
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
        self.state.server.inspect(name).await
    }

    async fn list(&self, prefix: &str, page: Page) -> Result<ListPage> {
        self.state.server.list(prefix, page).await
    }

    async fn diagnose(&self) -> Vec<Finding> {
        self.state.server.diagnose().await
    }

    async fn locate(&self, name: &LockName) -> Vec<Finding> {
        self.state.server.locate(name).await
    }

    async fn sweep(&self) -> Result<Option<u64>> {
        self.state.server.sweep().await.map(Some)
    }

    async fn close(&self) {
        self.state.close().await;
    }
}
