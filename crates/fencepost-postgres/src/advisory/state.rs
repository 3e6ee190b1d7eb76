//! The state of one client: the connection for everything but holding and waiting.

use std::sync::Arc;

use fencepost_core::clock::Clock;
use fencepost_core::{ErrorKind, Result};
use fencepost_net::Coalesced;
use tokio_postgres::types::{ToSql, Type};
use tokio_postgres::{Client, Row};

use crate::config::KeyRule;
use crate::error::call_failed;
use crate::link::Link;

/// The parameters of a statement, with their types.
pub(super) type Parameters<'a> = [(&'a (dyn ToSql + Sync), Type)];

/// The state of one client.
pub(super) struct ClientState {
    pub(super) link: Link,
    pub(super) clock: Clock,
    pub(super) rule: KeyRule,
    control: Coalesced<Arc<Client>>,
}

impl ClientState {
    pub(super) fn new(link: Link, rule: KeyRule) -> Self {
        Self { link, clock: Clock::system(), rule, control: Coalesced::default() }
    }

    /// Returns the connection for everything but holding and waiting.
    pub(super) async fn control(&self) -> Result<Arc<Client>> {
        let open = async || Ok(Arc::new(self.link.open(None).await?));
        self.control.get(|client| !client.is_closed(), open).await
    }

    /// Executes a query that changes nothing: if its connection is lost, again on a new one.
    pub(super) async fn read(&self, query: &str, parameters: &Parameters<'_>) -> Result<Vec<Row>> {
        let control = self.control().await?;
        let failed = |error: tokio_postgres::Error| call_failed(self.link.location(), &error);
        match control.query_typed(query, parameters).await.map_err(failed) {
            Err(error) if error.kind() == ErrorKind::OutcomeUnknown => {
                self.close().await;
                let control = self.control().await?;
                control.query_typed(query, parameters).await.map_err(failed)
            }
            outcome => outcome,
        }
    }

    /// Closes the connection.
    pub(super) async fn close(&self) {
        self.control.clear().await;
    }
}
