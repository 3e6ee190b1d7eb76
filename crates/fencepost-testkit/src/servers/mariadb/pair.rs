//! A primary and a replica.

use super::config::ADMINISTRATOR;
use super::{MariadbServer, MariadbServerConfig};
use crate::servers::start::start_together;
use crate::wait;
use crate::wire::Wire;

/// A primary with an asynchronous replica, which reads through a [`Wire`].
#[derive(Debug)]
pub struct MariadbPair {
    primary: MariadbServer,
    replica: MariadbServer,
    wire: Wire,
}

impl MariadbPair {
    /// Starts both, and waits until the replica has what the primary has.
    ///
    /// # Panics
    /// If they cannot be started.
    pub fn start() -> Self {
        let config = |id: u8| {
            MariadbServerConfig::plain().with_option("--log-bin").with_option(&format!("--server-id={id}"))
        };
        let (first, second) = (config(1), config(2).with_option("--read-only"));
        let [primary, replica] =
            start_together(|| [MariadbServer::prepare(&first), MariadbServer::prepare(&second)]);
        let wire = Wire::to(primary.port());
        let pair = Self { primary, replica, wire };
        pair.primary.sql("RESET MASTER");
        pair.replica.sql(&format!(
            "RESET MASTER; CHANGE MASTER TO MASTER_HOST = '127.0.0.1', MASTER_PORT = {}, MASTER_USER = '{ADMINISTRATOR}', \
             MASTER_CONNECT_RETRY = 1, MASTER_USE_GTID = slave_pos; START SLAVE",
            pair.wire.port()
        ));
        pair.wait_until_caught_up();
        pair
    }

    /// The primary.
    pub fn primary(&self) -> &MariadbServer {
        &self.primary
    }

    /// The replica.
    pub fn replica(&self) -> &MariadbServer {
        &self.replica
    }

    /// The wire on which the replica reads from the primary.
    pub fn wire(&self) -> &Wire {
        &self.wire
    }

    /// Waits until the replica has everything that the primary has committed.
    ///
    /// # Panics
    /// If it does not catch up.
    pub fn wait_until_caught_up(&self) {
        let position = self.primary.sql("SELECT @@gtid_binlog_pos");
        let sql = format!("SELECT MASTER_GTID_WAIT('{position}', 1)");
        wait::block_until("the replica has caught up", || self.replica.sql(&sql) == "0");
    }

    /// Makes the replica a primary: it executes what it has received, and accepts writes.
    ///
    /// # Panics
    /// If it fails.
    pub fn promote(&self) {
        self.replica.sql("STOP SLAVE; RESET SLAVE ALL; SET GLOBAL read_only = 0");
    }
}
