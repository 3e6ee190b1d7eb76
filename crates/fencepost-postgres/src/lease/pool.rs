//! The connections for flights and queries of one client. Requests share them: a request is sent on the connection with the
//! fewest in flight, at once, and further connections are opened in the background while there are several. Behind a pooler that shares
//! connections a request waits for the one before it: `PgBouncer` mixes up replies of pipelined transactions.

use std::ops::Deref;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use fencepost_core::Result;
use fencepost_net::Coalesced;
use futures_util::future::try_join_all;
use tokio::sync::OwnedMutexGuard;
use tokio_postgres::types::Type;
use tokio_postgres::{Client, Statement};

use crate::error::call_failed;
use crate::link::Link;

/// How many connections there are at most for requests that are answered soon.
pub(crate) const MAX_CONNECTIONS: usize = 2;

/// The connections of one client.
pub(crate) struct Pool {
    pub(crate) link: Link,
    /// The statements that are prepared on each connection, with the types of their parameters; none if a pooler shares the
    /// connections.
    prepared_sql: Vec<(String, &'static [Type])>,
    connections: Mutex<Vec<Arc<Connection>>>,
    first: Coalesced<Arc<Connection>>,
    /// The connection for requests that may wait for another transaction.
    slow: Coalesced<Arc<Connection>>,
    is_growing: AtomicBool,
    is_closed: AtomicBool,
}

/// A connection, and the statements that were prepared on it.
pub(crate) struct Connection {
    client: Client,
    pub(crate) statements: Vec<Statement>,
    in_flight: AtomicUsize,
    is_unresponsive: AtomicBool,
    /// Held by the request in flight, where there may be one only.
    turn: Option<Arc<tokio::sync::Mutex<()>>>,
}

impl Connection {
    fn is_usable(&self) -> bool {
        !self.client.is_closed() && !self.is_unresponsive.load(Ordering::Relaxed)
    }
}

impl Deref for Connection {
    type Target = Client;

    fn deref(&self) -> &Client {
        &self.client
    }
}

impl Pool {
    pub(crate) fn new(link: Link, prepared_sql: Vec<(String, &'static [Type])>) -> Self {
        Self {
            link,
            prepared_sql,
            connections: Mutex::default(),
            first: Coalesced::default(),
            slow: Coalesced::default(),
            is_growing: AtomicBool::new(false),
            is_closed: AtomicBool::new(false),
        }
    }

    /// Adds a connection.
    pub(crate) async fn add(&self, client: Client) -> Result<Arc<Connection>> {
        let connection = self.prepared(client).await?;
        let mut connections = self.usable();
        if !self.is_closed.load(Ordering::Relaxed) {
            connections.push(connection.clone());
        }
        drop(connections);
        Ok(connection)
    }

    async fn prepared(&self, client: Client) -> Result<Arc<Connection>> {
        let preparing = self.prepared_sql.iter().map(|(sql, types)| client.prepare_typed(sql, types));
        let prepared = try_join_all(preparing).await;
        let statements = prepared.map_err(|error| call_failed(self.link.location(), &error))?;
        let (in_flight, is_unresponsive) = (AtomicUsize::new(0), AtomicBool::new(false));
        let is_shared = statements.is_empty() && !self.link.is_direct();
        let turn = is_shared.then(Arc::default);
        Ok(Arc::new(Connection { client, statements, in_flight, is_unresponsive, turn }))
    }

    /// Returns the connection with the fewest requests in flight; opens one if there is none.
    ///
    /// # Cancel safety
    /// If the future is dropped, no connection remains that was not there before.
    pub(crate) async fn get(self: &Arc<Self>) -> Result<Lease> {
        loop {
            let lease = match self.least_busy() {
                Some(lease) => lease,
                None => {
                    Lease::new(self.first.get(|connection| connection.is_usable(), || self.open()).await?)
                }
            };
            if let Some(lease) = lease.in_turn().await {
                return Ok(lease);
            }
        }
    }

    /// Returns the connection for requests that may wait for another transaction.
    ///
    /// # Cancel safety
    /// As [`Pool::get`].
    pub(crate) async fn get_slow(&self) -> Result<Lease> {
        let open = async || self.prepared(self.link.open(None).await?).await;
        loop {
            let connection = self.slow.get(|connection| connection.is_usable(), open).await?;
            if let Some(lease) = Lease::new(connection).in_turn().await {
                return Ok(lease);
            }
        }
    }

    async fn open(&self) -> Result<Arc<Connection>> {
        self.add(self.link.open(None).await?).await
    }

    fn least_busy(self: &Arc<Self>) -> Option<Lease> {
        let connections = self.usable();
        let idlest = connections.iter().min_by_key(|one| one.in_flight.load(Ordering::Relaxed))?;
        let is_full = connections.len() >= MAX_CONNECTIONS;
        let lease = Lease::new(idlest.clone());
        drop(connections);
        let is_busy = lease.in_flight.load(Ordering::Relaxed) > 1;
        if is_busy && !is_full && !self.is_growing.swap(true, Ordering::Relaxed) {
            let pool = self.clone();
            tokio::spawn(async move {
                // Without it, requests go on sharing what there is.
                let _ = pool.open().await;
                pool.is_growing.store(false, Ordering::Relaxed);
            });
        }
        Some(lease)
    }

    fn usable(&self) -> MutexGuard<'_, Vec<Arc<Connection>>> {
        let mut connections = self.connections.lock().unwrap_or_else(PoisonError::into_inner);
        connections.retain(|connection| connection.is_usable());
        connections
    }

    /// Closes the connections once they are not used.
    pub(crate) async fn close(&self) {
        self.is_closed.store(true, Ordering::Relaxed);
        self.usable().clear();
        self.first.clear().await;
        self.slow.clear().await;
    }
}

/// A connection in use.
pub(crate) struct Lease {
    connection: Arc<Connection>,
    turn: Option<OwnedMutexGuard<()>>,
}

impl Lease {
    fn new(connection: Arc<Connection>) -> Self {
        connection.in_flight.fetch_add(1, Ordering::Relaxed);
        Self { connection, turn: None }
    }

    /// Waits until no other request is in flight, where there may be one only. Returns `None` if the connection is of no use then.
    async fn in_turn(mut self) -> Option<Self> {
        if let Some(turn) = self.connection.turn.clone() {
            self.turn = Some(turn.lock_owned().await);
        }
        Some(self).filter(|lease| lease.is_usable())
    }

    /// Gives up the connection: a reply took too long, or is not understood.
    pub(crate) fn give_up(&self) {
        self.is_unresponsive.store(true, Ordering::Relaxed);
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        self.in_flight.fetch_sub(1, Ordering::Relaxed);
        drop(self.turn.take());
    }
}

impl Deref for Lease {
    type Target = Connection;

    fn deref(&self) -> &Connection {
        &self.connection
    }
}
