//! The checks of `fencepost doctor`: everything about the server and the tables that can weaken a guarantee.

mod access;
mod connections;
mod locate;
mod rights;
mod server;
mod sessions;
mod tables;

use fencepost_core::{Finding, Result, StorageId};
use tokio_postgres::{Client, Row};

use crate::error::call_failed;
use crate::lease::state::ClientState;
use crate::link::Link;

pub(crate) use locate::locate;
pub(crate) use sessions::crash_release;

/// Where locks are: the checks that matter depend on it.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Storage {
    /// In tables. A pooler may give each transaction another connection of the server.
    Tables { is_pooled: bool },
    /// In sessions, of which one client has this many at most.
    Sessions { per_client: usize },
}

/// What the checks read: the server through this connection.
pub(crate) struct Server<'a> {
    pub(crate) link: &'a Link,
    pub(crate) client: &'a Client,
    pub(crate) storage: Storage,
}

impl Server<'_> {
    async fn rows(&self, sql: &str) -> Result<Vec<Row>> {
        let rows = self.client.query_typed(sql, &[]).await;
        rows.map_err(|error| call_failed(self.link.location(), &error))
    }
}

/// Checks the server and the tables.
pub(crate) async fn diagnose(state: &ClientState) -> Vec<Finding> {
    let connection = match state.pool.get().await {
        Ok(connection) => connection,
        Err(error) => return vec![Finding::failed("server", &error)],
    };
    let server = Server { link: &state.pool.link, client: &connection, storage: storage(state) };
    let mut findings = vec![namespace(&state.namespace, state.storage_id)];
    findings.extend(server.findings().await);
    findings.push(server.rights(&state.namespace).await);
    findings.extend(tables::findings(&server, &state.namespace).await);
    findings
}

/// Checks what one statement can find out about the server.
pub(crate) async fn warnings(state: &ClientState) -> Vec<Finding> {
    let Ok(connection) = state.pool.get().await else { return Vec::new() };
    let server = Server { link: &state.pool.link, client: &connection, storage: storage(state) };
    Finding::concerns(server.findings().await)
}

impl Server<'_> {
    /// Checks the server, the way to it and the account.
    pub(crate) async fn findings(&self) -> Vec<Finding> {
        let config = self.link.config();
        let mut findings = vec![access::encryption(config)];
        match server::Report::read(self).await {
            Ok(report) => {
                findings.push(access::authentication(config, &report));
                findings.extend(report.findings(self.storage));
            }
            Err(error) => findings.push(Finding::from_result("server", Err(error))),
        }
        findings
    }
}

fn storage(state: &ClientState) -> Storage {
    Storage::Tables { is_pooled: !state.can_listen() }
}

/// Describes the namespace.
pub(crate) fn namespace(namespace: &str, storage_id: StorageId) -> Finding {
    Finding::ok("namespace", format!("the schema {namespace:?}, storage id {storage_id}"))
}
