//! The backend of one client with mode=advisory.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use fencepost_core::backend::{Backend, ListPage, LockState, Page, Reply};
use fencepost_core::{Attempt, Error, ErrorKind, FencingToken, Finding, LockName, Options, Owner, Result};
use fencepost_sql::session_lock::{LockServer, LockSession, Position, ServerInfo, SessionBackend};

use super::keys::{Derived, Key, derive};
use super::session::{Session, collision};
use super::state::ClientState;
use super::{diagnose, listing, schema};
use crate::config::{Config, Layout};
use crate::error::{call_failed, lost_connection, unreachable};
use crate::link::Link;

/// How long an attempt waits in the server's queue before it joins it again: a session that waits keeps the server from
/// removing dead rows.
const WAIT_SLICE: Duration = Duration::from_secs(600);

/// The oldest server that ends sessions which are idle, and notices clients that are gone while their sessions wait.
const MIN_SERVER_VERSION: i32 = 140_000;

/// How many sessions are opened at once. The server starts a process for each, and an attempt that waits for its turn uses a session
/// that is put back meanwhile.
const MAX_OPENING: usize = 4;

/// What locks of sessions cannot guarantee.
const EXCEPTIONS: &[&str] = &[
    "the server frees the lock as soon as the connection ends, before its holder notices",
    "a waiter joins the queue again after ten minutes, at its end",
    "holders of other programs have no token",
];

/// Connects as one client. Must be called inside the runtime in which it will be used.
pub(crate) async fn open(config: Config, options: &Options) -> Result<Arc<dyn Backend>> {
    Ok(Arc::new(open_with(config, options, WAIT_SLICE).await?))
}

pub(super) async fn open_with(
    config: Config,
    options: &Options,
    wait_slice: Duration,
) -> Result<SessionBackend<ClientState>> {
    let Layout::Advisory { key, connections } = config.layout else {
        return Err(Error::new(ErrorKind::BadConfig, "the URL does not have mode=advisory"));
    };
    let state = ClientState::new(Link::new(config)?, key);
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
    let info = ServerInfo {
        scheme: "postgres",
        location: link.location().to_owned(),
        locks: "advisory locks",
        storage_id,
        exceptions: EXCEPTIONS,
        has_shared: true,
        connections,
        max_opening: MAX_OPENING,
        wait_slice,
    };
    Ok(SessionBackend::new(state, info))
}

#[async_trait]
impl LockServer for ClientState {
    type Key = Key;
    type Id = i32;
    type Session = Session;

    async fn open(&self) -> Result<Session> {
        Session::open(&self.link).await
    }

    fn key(&self, name: &LockName) -> Result<Option<Key>> {
        Ok(match derive(self.rule, &self.link.config().namespace, name)? {
            Derived::Key(key) => Some(key),
            Derived::ByServer(_) => None,
        })
    }

    async fn compute_key(&self, session: &mut Session, name: &LockName) -> Result<Key> {
        match derive(self.rule, &self.link.config().namespace, name)? {
            Derived::Key(key) => Ok(key),
            Derived::ByServer(expression) => {
                session.evaluate(expression, name.as_str()).await.map(Key::Single)
            }
        }
    }

    async fn position(&self, pid: i32, _key: &Key) -> Result<Position> {
        listing::position(self, pid).await
    }

    async fn cancel(&self, pid: i32, owner: Owner) -> Result<()> {
        listing::cancel(&self.link, &*self.control().await?, pid, owner).await
    }

    async fn is_broken(&self, session: &Session, owner: Owner) -> bool {
        // `Op::Break` ends a session as any administrator does, and says so before.
        session.is_terminated() && listing::is_broken(self, session.id(), owner).await.unwrap_or(false)
    }

    async fn was_released(
        &self,
        mut session: Session,
        _attempt: &Attempt,
        _token: FencingToken,
        error: Error,
    ) -> Result<bool> {
        // The server may have ended the session before the release arrived; it says so.
        if session.is_ended().await { Ok(false) } else { Err(error) }
    }

    fn unreachable(&self) -> Error {
        unreachable(self.link.location())
    }

    fn lost_waiter(&self) -> Error {
        lost_connection(self.link.location())
    }

    fn same_key(&self, name: &LockName, other: &LockName) -> Error {
        collision(name.as_str(), other.as_str())
    }

    async fn break_lock(&self, name: &LockName, token: FencingToken) -> Result<Reply> {
        listing::break_lock(self, name, token).await
    }

    async fn inspect(&self, name: &LockName) -> Result<LockState> {
        listing::inspect(self, name).await
    }

    async fn list(&self, prefix: &str, page: Page) -> Result<ListPage> {
        listing::list(self, prefix, &page).await
    }

    async fn diagnose(&self) -> Vec<Finding> {
        diagnose::diagnose(self).await
    }

    async fn locate(&self, name: &LockName) -> Vec<Finding> {
        diagnose::locate(self, name).await
    }

    async fn sweep(&self) -> Result<u64> {
        listing::sweep(&self.link, &*self.control().await?).await
    }

    async fn close(&self) {
        self.close().await;
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
