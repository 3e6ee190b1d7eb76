//! Prepares a connection: TLS, login, checks of the server, scripts, the identity of the namespace, the subscription.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use fencepost_core::{Error, ErrorKind, Result};
use fencepost_net::{Account, Address, Stream, handshake_failed};
use redis::aio::MultiplexedConnection;
use redis::{
    AsyncConnectionConfig, Pipeline, ProtocolVersion, PushInfo, PushKind, RedisConnectionInfo, RedisError,
    Value,
};
use tokio::sync::Notify;

use super::{LiveConnection, Node, Target};
use crate::decode;
use crate::error::{Sent, call_failed, unreachable};
use crate::script::Script;
use crate::sentinel;
use crate::state::ClientState;
use crate::task::Task;

/// Connects to the server of a node and prepares the connection.
pub(super) async fn connect(node: &Node) -> Result<LiveConnection> {
    let Node { state, target, scripts, connection_lost, .. } = node;
    let address = match target {
        Target::Address(address) => address.clone(),
        Target::Primary => sentinel::primary(state).await?,
    };
    let is_closed = Arc::new(AtomicBool::new(false));
    let config = AsyncConnectionConfig::new()
        .set_push_sender(push_handler(state.clone(), connection_lost.clone(), is_closed.clone()))
        .set_response_timeout(None);
    let (mut connection, driver) =
        log_in(state, &address, &state.config.account, state.config.db, config).await?;
    let failed = |error: RedisError| call_failed(&state.location, &error, Sent::No);
    check_mode(state, &mut connection).await?;
    if matches!(target, Target::Primary) {
        sentinel::check_role(&mut connection, &state.location).await?;
    }
    if state.config.replicas > 0 {
        check_wait_permitted(&mut connection).await.map_err(failed)?;
    }
    let hashes: Vec<String> =
        load_scripts(state, scripts).query_async(&mut connection).await.map_err(failed)?;
    let scripts = scripts.iter().copied().zip(hashes).collect();
    if !state.is_cluster() {
        node.identity().check(state, &mut connection).await?;
    }
    connection.subscribe(state.channel()).await.map_err(failed)?;
    let (state, connection_lost, last_response) = (state.clone(), connection_lost.clone(), AtomicU64::new(0));
    Ok(LiveConnection {
        state,
        address,
        connection,
        scripts,
        is_closed,
        last_response,
        driver,
        connection_lost,
    })
}

/// Returns a handler that forwards the messages of a connection and marks it closed when it ends.
fn push_handler(
    state: Arc<ClientState>,
    connection_lost: Arc<Notify>,
    is_closed: Arc<AtomicBool>,
) -> impl Fn(PushInfo) -> Result<(), ()> {
    move |push| {
        match push.kind {
            PushKind::Message => {
                if let Some(wakeup) = decode::wakeup(&state.layout, &push.data) {
                    state.push(wakeup);
                }
            }
            PushKind::Disconnection => {
                is_closed.store(true, Ordering::Release);
                connection_lost.notify_one();
            }
            _ => {}
        }
        Ok(())
    }
}

/// Connects and logs in. The returned task does the I/O of the connection.
pub(crate) async fn log_in(
    state: &ClientState,
    address: &Address,
    account: &Account,
    db: u32,
    config: AsyncConnectionConfig,
) -> Result<(MultiplexedConnection, Task)> {
    let connect_failed = || unreachable(&state.location);
    let stream = Stream::open(address, state.encryption.as_ref(), connect_failed).await?;
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
    let (connection, driver) = connected.map_err(|error| login_error(state, &error))?;
    Ok((connection, Task::start(driver)))
}

fn login_error(state: &ClientState, error: &RedisError) -> Error {
    let location = &state.location;
    let has_no_hello = |detail: &str| detail.starts_with("unknown command") && detail.contains("HELLO");
    match error.kind() {
        _ if error.detail().is_some_and(has_no_hello) => crate::error::server_error(location, "NOPROTO", ""),
        // With TLS 1.3 a server rejects a client's certificate only after the client has sent data.
        redis::ErrorKind::Io if state.encryption.is_some() => handshake_failed(error.to_string()),
        redis::ErrorKind::AuthenticationFailed => crate::error::server_error(location, "WRONGPASS", ""),
        redis::ErrorKind::RESP3NotSupported => crate::error::server_error(location, "NOPROTO", ""),
        // Retrying does not help: it is another protocol.
        redis::ErrorKind::Parse | redis::ErrorKind::UnexpectedReturnType => {
            Error::new(ErrorKind::BadConfig, format!("{location} does not reply as a Redis server"))
                .with_hint("is it a Redis server, and does it require TLS? Then use rediss://")
        }
        // A server that requires TLS, or is not Redis, may also close the connection.
        _ if error.code().is_none() => call_failed(location, error, Sent::No)
            .with_hint("is it a Redis server, and does it require TLS? Then use rediss://"),
        _ => call_failed(location, error, Sent::No),
    }
}

/// Checks that the mode of the server (standalone, cluster, sentinel) is that of the URL's scheme.
async fn check_mode(state: &ClientState, connection: &mut MultiplexedConnection) -> Result<()> {
    let hello = redis::cmd("HELLO").query_async::<HashMap<String, Value>>(connection).await;
    let hello = hello.map_err(|error| login_error(state, &error))?;
    let (message, hint) = match (decode::text(hello.get("mode")), state.is_cluster()) {
        (Some("cluster"), false) => ("is a node of a cluster", "redis+cluster:// is for clusters"),
        (Some("standalone"), true) => ("is not part of a cluster", "redis:// is for a single server"),
        (Some("sentinel"), _) => {
            ("is a sentinel", "redis+sentinel://HOST,HOST/PRIMARY asks sentinels where the server is")
        }
        _ => return Ok(()),
    };
    Err(Error::new(ErrorKind::BadConfig, format!("{} {message}", state.location)).with_hint(hint))
}

/// Checks that `WAIT` is permitted. Later a denied `WAIT` could not be told from replicas that do not confirm.
async fn check_wait_permitted(connection: &mut MultiplexedConnection) -> Result<(), RedisError> {
    match redis::cmd("WAIT").arg(0).arg(0).query_async::<Value>(connection).await {
        Err(error) if error.code() == Some("NOPERM") => Err(error),
        _ => Ok(()),
    }
}

/// Returns the commands that load these scripts; the replies are their SHA-1 hashes.
pub(super) fn load_scripts(state: &ClientState, scripts: &[Script]) -> Pipeline {
    let mut loading = redis::pipe();
    for script in scripts {
        loading.cmd("SCRIPT").arg("LOAD").arg(script.text(&state.layout));
    }
    loading
}
