//! Finds the primary: what the sentinels report, confirmed by the server itself.

use std::time::Duration;

use fencepost_core::{Error, ErrorKind, Result};
use fencepost_net::Address;
use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, Value};

use crate::config::Servers;
use crate::error::{Sent, call_failed};
use crate::node::log_in;
use crate::state::ClientState;

/// How long to wait for one sentinel before the next is asked.
const SENTINEL_TIMEOUT: Duration = Duration::from_millis(500);

/// Asks one sentinel after the other for the address of the primary.
pub(crate) async fn primary(state: &ClientState) -> Result<Address> {
    let Servers::Sentinel { sentinels, primary, account } = &state.config.servers else {
        return Err(Error::new(ErrorKind::BadConfig, "no sentinels are known"));
    };
    let mut last = None;
    // Start at a random one: if the first does not answer, there may be no time for the others.
    let first = rand::random_range(0..sentinels.len().max(1));
    for sentinel in sentinels.iter().cycle().skip(first).take(sentinels.len()) {
        let config = AsyncConnectionConfig::new();
        let primary_address = async {
            let (mut connection, _driver) = log_in(state, sentinel, account, 0, config).await?;
            let mut command = redis::cmd("SENTINEL");
            command.arg("get-master-addr-by-name").arg(primary);
            let reply = command.query_async::<Option<(String, u16)>>(&mut connection).await;
            reply.map_err(|error| match call_failed(&state.location, &error, Sent::No) {
                error if error.kind() == ErrorKind::Backend => {
                    let message = format!("{sentinel} in {} is not a sentinel", state.location);
                    Error::new(ErrorKind::BadConfig, message).with_source(error)
                }
                error => error,
            })
        };
        let primary_address = tokio::time::timeout(SENTINEL_TIMEOUT, primary_address).await;
        match primary_address.unwrap_or_else(|_| Err(crate::error::unreachable(&state.location))) {
            Ok(Some((host, port))) => return Ok(Address { host, port }),
            Ok(None) => {
                let message = format!("the sentinels of {} know no such primary", state.location);
                last = Some(Error::new(ErrorKind::BadConfig, message));
            }
            Err(error) => last = last.or(Some(error)),
        }
    }
    Err(last.unwrap_or_else(|| crate::error::unreachable(&state.location)))
}

/// Checks that the server reports itself as a primary: just after a failover the sentinels may still report the old one.
pub(crate) async fn check_role(connection: &mut MultiplexedConnection, location: &str) -> Result<()> {
    let role = redis::cmd("ROLE").query_async::<Vec<Value>>(connection).await;
    let role = role.map_err(|error| call_failed(location, &error, Sent::No))?;
    match role.first() {
        Some(Value::BulkString(role)) if role == b"master" => Ok(()),
        _ => Err(Error::new(ErrorKind::Unreachable, format!("{location} has no primary at the moment"))
            .with_hint("a failover may be in progress")),
    }
}
