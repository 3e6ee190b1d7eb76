//! Which server is the primary: what the sentinels say, and what the server itself says.

use std::time::Duration;

use fencepost_core::{Error, ErrorKind, Result};
use fencepost_net::Address;
use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, Value};

use crate::config::Servers;
use crate::error::{Sent, call_failed};
use crate::node::log_in;
use crate::setup::Setup;

/// One of several sentinels may be down; the next is asked soon.
const SENTINEL_TIMEOUT: Duration = Duration::from_millis(500);

/// Asks one sentinel after the other.
pub(crate) async fn primary(setup: &Setup) -> Result<Address> {
    let Servers::Sentinel { sentinels, primary, account } = &setup.config.servers else {
        return Err(Error::new(ErrorKind::BadConfig, "no sentinels are known"));
    };
    let mut last = None;
    // Not always the same first: if it is silent, there may be no time for the others.
    let first = rand::random_range(0..sentinels.len().max(1));
    for sentinel in sentinels.iter().cycle().skip(first).take(sentinels.len()) {
        let config = AsyncConnectionConfig::new();
        let asked = async {
            let (mut connection, _driver) = log_in(setup, sentinel, account, 0, config).await?;
            let mut question = redis::cmd("SENTINEL");
            question.arg("get-master-addr-by-name").arg(primary);
            let answer = question.query_async::<Option<(String, u16)>>(&mut connection).await;
            answer.map_err(|error| match call_failed(&setup.location, &error, Sent::No) {
                error if error.kind() == ErrorKind::Backend => {
                    let message = format!("one of those whom {} names is no sentinel", setup.location);
                    Error::new(ErrorKind::BadConfig, message).with_source(error)
                }
                error => error,
            })
        };
        let asked = tokio::time::timeout(SENTINEL_TIMEOUT, asked).await;
        match asked.unwrap_or_else(|_| Err(crate::error::unreachable(&setup.location))) {
            Ok(Some((host, port))) => return Ok(Address { host, port }),
            Ok(None) => {
                let message = format!("the sentinels of {} know no such primary", setup.location);
                last = Some(Error::new(ErrorKind::BadConfig, message));
            }
            Err(error) => last = last.or(Some(error)),
        }
    }
    Err(last.unwrap_or_else(|| crate::error::unreachable(&setup.location)))
}

/// Whether the server itself says that it is a primary: just after a failover the sentinels may still name the old one.
pub(crate) async fn check_role(connection: &mut MultiplexedConnection, location: &str) -> Result<()> {
    let role = redis::cmd("ROLE").query_async::<Vec<Value>>(connection).await;
    let role = role.map_err(|error| call_failed(location, &error, Sent::No))?;
    match role.first() {
        Some(Value::BulkString(role)) if role == b"master" => Ok(()),
        _ => Err(Error::new(ErrorKind::Unreachable, format!("{location} has no primary at the moment"))
            .with_hint("a failover may be under way")),
    }
}
