//! A second connection to the server, for commands that block or must not wait behind flights.

use fencepost_core::Result;
use redis::AsyncConnectionConfig;
use redis::aio::MultiplexedConnection;

use crate::config::Servers;
use crate::node::log_in;
use crate::sentinel;
use crate::state::ClientState;
use crate::task::Task;

/// A connection to the server that has the locks. It is closed when this is dropped.
pub(super) struct SideConnection {
    pub(super) connection: MultiplexedConnection,
    _driver: Task,
}

impl SideConnection {
    /// Connects and logs in.
    pub(super) async fn open(state: &ClientState, config: AsyncConnectionConfig) -> Result<Self> {
        let address = match &state.config.servers {
            Servers::One(address) => address.clone(),
            Servers::Sentinel { .. } | Servers::Cluster(_) => sentinel::primary(state).await?,
        };
        let config = config.set_response_timeout(None);
        let (connection, driver) =
            log_in(state, &address, &state.config.account, state.config.db, config).await?;
        Ok(Self { connection, _driver: driver })
    }
}
