//! The backend of one client with mode=named.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use fencepost_core::backend::{Backend, ListPage, LockState, Page, Reply};
use fencepost_core::{
    Attempt, Error, ErrorKind, FencingToken, Finding, LockName, Options, Owner, Result, request_timeout,
};
use fencepost_sql::Row;
use fencepost_sql::session_lock::{LockServer, Position, ServerInfo, SessionBackend};

use super::session::{Session, collision, shared_connection};
use super::state::ClientState;
use super::{diagnose, listing, schema};
use crate::config::{Config, Layout};
use crate::error::unreachable;
use crate::lease::flight::READ_TIMEOUT;
use crate::session::{Connector, Session as Connection};
use crate::sessions::Sessions;

/// How long an attempt waits in the server's queue before it joins it again, at its end: so long can a host that is gone leave a
/// connection there.
pub(super) const WAIT_SLICE: Duration = Duration::from_secs(600);

/// How many connections are opened at once.
const MAX_OPENING: usize = 4;

/// How often two connections through a proxy are compared.
const PROXY_ROUNDS: usize = 5;

/// What locks of connections cannot guarantee.
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
    let Layout::Named { key, connections } = config.layout else {
        return Err(Error::new(ErrorKind::BadConfig, "the URL does not have mode=named"));
    };
    let control = Sessions::new(Connector::new(&config)?);
    let mut lent = control.take().await?;
    refuse_galera(&mut lent.session, &config).await?;
    refuse_proxy(&mut lent.session, &control.connector).await?;
    let storage_id = schema::read_or_create(&config, &mut lent.session, options.is_only_existing()).await?;
    control.put(lent);
    let state = ClientState::new(config, control, key);
    if !options.is_only_existing() {
        listing::sweep(&state).await?;
    }
    let info = ServerInfo {
        scheme: "mysql",
        location: state.location().to_owned(),
        locks: "named locks",
        storage_id,
        exceptions: EXCEPTIONS,
        has_shared: false,
        connections,
        max_opening: MAX_OPENING,
        wait_slice,
    };
    Ok(SessionBackend::new(state, info))
}

async fn refuse_galera(session: &mut Connection, config: &Config) -> Result<()> {
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
async fn refuse_proxy(session: &mut Connection, connector: &Connector) -> Result<()> {
    let first = connection_id(session, connector).await?;
    if session.handshake_id().map(i64::from) == Some(first) {
        return Ok(());
    }
    let mut other = connector.connect().await?;
    let second = connection_id(&mut other, connector).await?;
    for _ in 0..PROXY_ROUNDS {
        // In another order than before: a proxy that uses its connections in turn would otherwise give the same to each.
        let now = (connection_id(&mut other, connector).await?, connection_id(session, connector).await?);
        if first == second || now != (second, first) {
            return Err(shared_connection(&connector.location));
        }
    }
    Ok(())
}

async fn connection_id(session: &mut Connection, connector: &Connector) -> Result<i64> {
    // Some proxies answer `SELECT CONNECTION_ID()` themselves.
    let sets = session.run("SELECT CONNECTION_ID() + 0", READ_TIMEOUT).await;
    let sets = sets.map_err(|failure| failure.into_error(&connector.location))?;
    sets.first().and_then(|rows| rows.first()).map_or(Ok(0), |row| row.integer(0))
}

#[async_trait]
impl LockServer for ClientState {
    type Key = String;
    type Id = i64;
    type Session = Session;

    async fn open(&self) -> Result<Session> {
        Session::open(&self.control.connector, &self.config).await
    }

    fn key(&self, name: &LockName) -> Result<Option<String>> {
        self.key(name).map(Some)
    }

    async fn compute_key(&self, _session: &mut Session, name: &LockName) -> Result<String> {
        self.key(name)
    }

    async fn position(&self, id: i64, key: &String) -> Result<Position> {
        listing::position(self, id, key).await
    }

    async fn cancel(&self, id: i64, _owner: Owner) -> Result<()> {
        listing::interrupt(self, id).await
    }

    /// An administrator, `Op::Break` and an outage look the same.
    async fn is_broken(&self, _session: &Session, _owner: Owner) -> bool {
        false
    }

    async fn was_released(
        &self,
        session: Session,
        attempt: &Attempt,
        token: FencingToken,
        _error: Error,
    ) -> Result<bool> {
        drop(session);
        let asking = listing::was_released(self, token);
        let asked = tokio::time::timeout(request_timeout(attempt.ttl), asking).await;
        asked.unwrap_or_else(|_| Err(self.unreachable())).map_err(|error| {
            let text = format!("no reply from {} to a release", self.location());
            Error::new(ErrorKind::OutcomeUnknown, text).with_source(error)
        })
    }

    fn unreachable(&self) -> Error {
        unreachable(self.location())
    }

    fn lost_waiter(&self) -> Error {
        let text = format!("{} has ended the connection of a waiter", self.location());
        Error::new(ErrorKind::OutcomeUnknown, text)
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
        vec![diagnose::locate(self, name)]
    }

    async fn sweep(&self) -> Result<u64> {
        let mut swept = 0;
        while let Some(removed) = listing::sweep(self).await? {
            swept += removed;
        }
        Ok(swept)
    }

    async fn close(&self) {
        self.control.close().await;
    }
}
