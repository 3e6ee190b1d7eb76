//! A connection beside the one that carries the flights, for what must not wait behind them.

use fencepost_core::Result;
use redis::AsyncConnectionConfig;
use redis::aio::MultiplexedConnection;

use crate::config::Servers;
use crate::node::log_in;
use crate::sentinel;
use crate::setup::Setup;
use crate::task::Task;

/// A connection to the server that has the locks. It ends with this.
pub(super) struct Line {
    pub(super) connection: MultiplexedConnection,
    _driver: Task,
}

impl Line {
    /// Connects and logs in.
    pub(super) async fn open(setup: &Setup, config: AsyncConnectionConfig) -> Result<Self> {
        let address = match &setup.config.servers {
            Servers::One(address) => address.clone(),
            Servers::Sentinel { .. } | Servers::Cluster(_) => sentinel::primary(setup).await?,
        };
        let config = config.set_response_timeout(None);
        let (connection, driver) =
            log_in(setup, &address, &setup.config.account, setup.config.db, config).await?;
        Ok(Self { connection, _driver: driver })
    }
}
