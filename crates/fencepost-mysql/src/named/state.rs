//! The state of one client: its settings, and the connections for everything but holding and waiting.

use fencepost_core::clock::Clock;
use fencepost_core::{LockName, Result};

use super::keys::derive;
use crate::config::{Config, KeyRule};
use crate::session::Rows;
use crate::sessions::Sessions;

/// The state of one client.
pub(super) struct ClientState {
    pub(super) config: Config,
    rule: KeyRule,
    /// The connections for everything but holding and waiting.
    pub(super) control: Sessions,
    pub(super) clock: Clock,
}

impl ClientState {
    pub(super) fn new(config: Config, control: Sessions, rule: KeyRule) -> Self {
        Self { config, rule, clock: control.connector.clock.clone(), control }
    }

    pub(super) fn location(&self) -> &str {
        &self.control.connector.location
    }

    /// Returns the server's name of a lock.
    pub(super) fn key(&self, name: &LockName) -> Result<String> {
        derive(self.rule, &self.config, name)
    }

    /// Returns the table with a row for each connection, quoted.
    pub(super) fn table(&self) -> String {
        self.config.named_table("named_sessions")
    }

    /// Runs statements that may be repeated.
    pub(super) async fn query(&self, sql: &str) -> Result<Vec<Rows>> {
        self.control.query(sql).await
    }
}
