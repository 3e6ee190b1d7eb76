//! The checks of `fencepost doctor`: everything about the server and the tables that can weaken a guarantee.

mod access;
mod connections;
mod locate;
mod server;
mod tables;

use fencepost_core::{Finding, Result};
use tokio_postgres::{Client, Row};

use crate::error::call_failed;
use crate::lease::state::ClientState;
use crate::link::Link;

pub(crate) use locate::locate;

/// What the checks read: the server through this connection.
pub(crate) struct Server<'a> {
    pub(crate) link: &'a Link,
    pub(crate) client: &'a Client,
    /// Whether a pooler gives each transaction another connection of the server.
    pub(crate) is_pooled: bool,
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
    let server = Server { link: &state.pool.link, client: &connection, is_pooled: !state.can_listen() };
    let mut findings = vec![namespace(state)];
    findings.extend(server.findings().await);
    findings.extend(tables::findings(&server, &state.namespace).await);
    findings
}

/// Checks what one statement can find out about the server.
pub(crate) async fn warnings(state: &ClientState) -> Vec<Finding> {
    let Ok(connection) = state.pool.get().await else { return Vec::new() };
    let server = Server { link: &state.pool.link, client: &connection, is_pooled: !state.can_listen() };
    Finding::concerns(server.findings().await)
}

impl Server<'_> {
    /// Checks the server, the way to it and the account: what does not depend on the layout of the locks.
    pub(crate) async fn findings(&self) -> Vec<Finding> {
        let config = self.link.config();
        let mut findings = vec![access::encryption(config)];
        match server::Report::read(self).await {
            Ok(report) => {
                findings.push(access::authentication(config, &report));
                findings.extend(report.findings(self.is_pooled));
            }
            Err(error) => findings.push(Finding::from_result("server", Err(error))),
        }
        findings
    }
}

fn namespace(state: &ClientState) -> Finding {
    let found = format!("the schema {:?}, storage id {}", state.namespace, state.storage_id);
    Finding::ok("namespace", found)
}
