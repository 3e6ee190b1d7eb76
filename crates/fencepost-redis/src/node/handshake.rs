//! What happens before a connection can be used: encryption, log-in, scripts, the channel, and whose namespace it is.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use fencepost_core::{Error, ErrorKind, Result};
use fencepost_net::{Account, Address, Stream, not_agreed};
use redis::aio::MultiplexedConnection;
use redis::{
    AsyncConnectionConfig, Pipeline, ProtocolVersion, PushInfo, PushKind, RedisConnectionInfo, RedisError,
    Value,
};
use tokio::sync::Notify;

use super::{Live, Node, Target};
use crate::decode;
use crate::error::{Sent, call_failed, unreachable};
use crate::script::Script;
use crate::sentinel;
use crate::setup::Setup;
use crate::task::Task;

/// Makes a connection ready for use.
pub(super) async fn connect(node: &Node) -> Result<Live> {
    let Node { setup, target, scripts, lost, .. } = node;
    let address = match target {
        Target::This(address) => address.clone(),
        Target::Primary => sentinel::primary(setup).await?,
    };
    let is_over = Arc::new(AtomicBool::new(false));
    let config = AsyncConnectionConfig::new()
        .set_push_sender(hearing(setup.clone(), lost.clone(), is_over.clone()))
        .set_response_timeout(None);
    let (mut connection, driver) =
        log_in(setup, &address, &setup.config.account, setup.config.db, config).await?;
    let failed = |error: RedisError| call_failed(&setup.location, &error, Sent::No);
    check_mode(setup, &mut connection).await?;
    if matches!(target, Target::Primary) {
        sentinel::check_role(&mut connection, &setup.location).await?;
    }
    if setup.config.replicas > 0 {
        check_waiting(&mut connection).await.map_err(failed)?;
    }
    let names: Vec<String> = loading(setup, scripts).query_async(&mut connection).await.map_err(failed)?;
    let scripts = scripts.iter().copied().zip(names).collect();
    if !setup.is_cluster() {
        node.identity().check(setup, &mut connection).await?;
    }
    connection.subscribe(setup.channel()).await.map_err(failed)?;
    let (setup, lost, heard) = (setup.clone(), lost.clone(), AtomicU64::new(0));
    Ok(Live { setup, connection, scripts, is_over, heard, driver, lost })
}

/// Passes on what a connection pushes, and that it has ended.
fn hearing(
    setup: Arc<Setup>,
    lost: Arc<Notify>,
    is_over: Arc<AtomicBool>,
) -> impl Fn(PushInfo) -> Result<(), ()> {
    move |push| {
        match push.kind {
            PushKind::Message => {
                if let Some(heard) = decode::push(&setup.layout, &push.data) {
                    setup.push(heard);
                }
            }
            PushKind::Disconnection => {
                is_over.store(true, Ordering::Release);
                lost.notify_one();
            }
            _ => {}
        }
        Ok(())
    }
}

/// Connects and logs in. The connection is carried by the task.
pub(crate) async fn log_in(
    setup: &Setup,
    address: &Address,
    account: &Account,
    db: u32,
    config: AsyncConnectionConfig,
) -> Result<(MultiplexedConnection, Task)> {
    let not_there = || unreachable(&setup.location);
    let stream = Stream::open(address, setup.encryption.as_ref(), not_there).await?;
    let mut login = RedisConnectionInfo::default()
        .set_protocol(ProtocolVersion::RESP3)
        .set_db(db.into())
        .set_lib_name("fencepost", env!("CARGO_PKG_VERSION"));
    if let Some(user) = &account.user {
        login = login.set_username(user);
    }
    if let Some(password) = &account.password {
        login = login.set_password(&password.0);
    }
    let connected = MultiplexedConnection::new_with_config(&login, stream, config).await;
    let (connection, driver) = connected.map_err(|error| not_let_in(setup, &error))?;
    Ok((connection, Task::start(driver)))
}

fn not_let_in(setup: &Setup, error: &RedisError) -> Error {
    let location = &setup.location;
    let knows_no_hello = |detail: &str| detail.starts_with("unknown command") && detail.contains("HELLO");
    match error.kind() {
        _ if error.detail().is_some_and(knows_no_hello) => crate::error::refused(location, "NOPROTO", ""),
        // With TLS 1.3 a server refuses a client's certificate only after the client has begun to talk.
        redis::ErrorKind::Io if setup.encryption.is_some() => not_agreed(error.to_string()),
        redis::ErrorKind::AuthenticationFailed => crate::error::refused(location, "WRONGPASS", ""),
        redis::ErrorKind::RESP3NotSupported => crate::error::refused(location, "NOPROTO", ""),
        // A server that wants TLS, or is no Redis, hangs up or answers nonsense.
        _ if error.code().is_none() => call_failed(location, error, Sent::No)
            .with_hint("is it a Redis server, and does it want TLS? rediss:// is for servers that do"),
        _ => call_failed(location, error, Sent::No),
    }
}

/// Each way to run Redis has its own URLs; the server says which it is run in.
async fn check_mode(setup: &Setup, connection: &mut MultiplexedConnection) -> Result<()> {
    let said = redis::cmd("HELLO").query_async::<HashMap<String, Value>>(connection).await;
    let said = said.map_err(|error| not_let_in(setup, &error))?;
    let (message, hint) = match (decode::text(said.get("mode")), setup.is_cluster()) {
        (Some("cluster"), false) => ("is a node of a cluster", "redis+cluster:// is for clusters"),
        (Some("standalone"), true) => ("is not part of a cluster", "redis:// is for a single server"),
        (Some("sentinel"), _) => {
            ("is a sentinel", "redis+sentinel://HOST,HOST/PRIMARY asks sentinels where the server is")
        }
        _ => return Ok(()),
    };
    Err(Error::new(ErrorKind::BadConfig, format!("{} {message}", setup.location)).with_hint(hint))
}

/// Whether it is permitted to wait for replicas. Later that would look as if no replica had confirmed anything.
async fn check_waiting(connection: &mut MultiplexedConnection) -> Result<(), RedisError> {
    match redis::cmd("WAIT").arg(0).arg(0).query_async::<Value>(connection).await {
        Err(error) if error.code() == Some("NOPERM") => Err(error),
        _ => Ok(()),
    }
}

/// Loads these scripts; the answers are what the server calls them.
pub(super) fn loading(setup: &Setup, scripts: &[Script]) -> Pipeline {
    let mut loading = redis::pipe();
    for script in scripts {
        loading.cmd("SCRIPT").arg("LOAD").arg(script.text(&setup.layout));
    }
    loading
}
