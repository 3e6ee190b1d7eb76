//! Detects a pooler that gives each transaction another connection to the server, such as `PgBouncer` in transaction mode.
//!
//! Session state does not survive there: prepared statements, `LISTEN`, settings and advisory locks.

use fencepost_core::Result;
use tokio_postgres::Client;

use super::Link;
use crate::error::call_failed;

/// How often two connections are compared. An idle pooler is detected at once: both have the same process. A busy one may
/// give them different ones by chance, but not always the same.
const ROUNDS: usize = 5;

impl Link {
    /// Returns whether transactions of one connection may run in different sessions of the server.
    ///
    /// A server that sees the address of the client has no pooler in front. Otherwise two connections are compared: in
    /// sessions of their own they have different processes, and each always the same. The `search_path` of such sessions is set.
    ///
    /// # Errors
    /// If the second connection cannot be opened, or a statement fails.
    pub(crate) async fn pooled(&self, client: &Client) -> Result<bool> {
        if self.is_direct() {
            return Ok(false);
        }
        let other = self.open(None).await?;
        let (first, second) = (self.process(client).await?, self.process(&other).await?);
        if first == second {
            return Ok(true);
        }
        for _ in 1..ROUNDS {
            // In another order than before: a pooler that uses its connections in turn would otherwise give the same to each.
            if (self.process(&other).await?, self.process(client).await?) != (second, first) {
                return Ok(true);
            }
        }
        self.set_unshared(client).await?;
        Ok(false)
    }

    /// Returns the id of the server's process that serves the connection.
    async fn process(&self, client: &Client) -> Result<i32> {
        let failed = |error| call_failed(&self.location, &error);
        Ok(client.query_typed_one("SELECT pg_catalog.pg_backend_pid()", &[]).await.map_err(failed)?.get(0))
    }
}
