//! What happens before a connection can be used: encryption, log-in, scripts, the channel, and whose namespace it is.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, LazyLock};

use fencepost_core::{Error, ErrorKind, Result};
use fencepost_net::{Account, Address, Stream, not_agreed};
use redis::aio::MultiplexedConnection;
use redis::{
    AsyncConnectionConfig, Pipeline, ProtocolVersion, PushInfo, PushKind, RedisConnectionInfo, RedisError,
    Value,
};
use tokio::sync::Notify;
use tokio::task::AbortHandle;

use super::{Live, Target};
use crate::decode;
use crate::error::{Sent, call_failed, unreachable};
use crate::sentinel;
use crate::setup::Setup;

/// With the numbers from 000 to 999 where it cuts them out.
static EXECUTE: LazyLock<String> = LazyLock::new(|| {
    let numbers = (0..1000).map(|number| format!("{number:03}")).collect::<Vec<_>>().concat();
    include_str!("../scripts/execute.lua").replace("@NUMBERS@", &numbers)
});
const INSPECT: &str = include_str!("../scripts/inspect.lua");
const DIALECT: &str = include_str!("../scripts/dialect.lua");
const PEEK: &str = include_str!("../scripts/peek.lua");

/// The scripts as the server calls them.
pub(crate) struct Scripts {
    pub(crate) execute: String,
    pub(crate) inspect: String,
}

/// The task that carries a connection. It ends with this, also if nobody came to use the connection: by itself it would wait
/// for answers that may never come.
pub(crate) struct Driver(AbortHandle);

impl Driver {
    /// Nothing is carried any longer.
    pub(super) fn stop(&self) {
        self.0.abort();
    }
}

impl Drop for Driver {
    fn drop(&mut self) {
        self.stop();
    }
}

/// Makes a connection ready for use.
pub(super) async fn connect(setup: &Arc<Setup>, target: &Target, lost: &Arc<Notify>) -> Result<Live> {
    let address = match target {
        Target::This(address) => address.clone(),
        Target::Primary => sentinel::primary(setup).await?,
    };
    let is_over = Arc::new(AtomicBool::new(false));
    let hear = {
        let (setup, lost, is_over) = (setup.clone(), lost.clone(), is_over.clone());
        move |push: PushInfo| {
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
            Ok::<(), ()>(())
        }
    };
    let config = AsyncConnectionConfig::new().set_push_sender(hear).set_response_timeout(None);
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
    let (execute, inspect) = loading(setup).query_async(&mut connection).await.map_err(failed)?;
    let scripts = Scripts { execute, inspect };
    if !setup.is_cluster() {
        setup.check_namespace(&mut connection).await?;
    }
    connection.subscribe(setup.channel()).await.map_err(failed)?;
    Ok(Live { connection, scripts, is_over, heard: AtomicU64::new(0), driver })
}

/// Connects and logs in.
pub(crate) async fn log_in(
    setup: &Setup,
    address: &Address,
    account: &Account,
    db: u32,
    config: AsyncConnectionConfig,
) -> Result<(MultiplexedConnection, Driver)> {
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
    Ok((connection, Driver(tokio::spawn(driver).abort_handle())))
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

/// Loads the scripts; the answers are what the server calls them.
pub(super) fn loading(setup: &Setup) -> Pipeline {
    let mut loading = redis::pipe();
    let scripts = if setup.layout.dialect.is_some() { [DIALECT, PEEK] } else { [EXECUTE.as_str(), INSPECT] };
    for script in scripts {
        loading.cmd("SCRIPT").arg("LOAD").arg(script);
    }
    loading
}

impl Setup {
    /// Makes sure that the namespace is of our format and of the storage that it was before.
    pub(crate) async fn check_namespace(&self, connection: &mut MultiplexedConnection) -> Result<()> {
        let failed = |error: RedisError| call_failed(&self.location, &error, Sent::No);
        let key = self.layout.about();
        let found: Option<String> =
            redis::cmd("GET").arg(&key).query_async(connection).await.map_err(failed)?;
        if let Some(about) = found {
            return self.recognise(&about);
        }
        if self.only_existing {
            return Ok(());
        }
        let made: Value = redis::cmd("SET")
            .arg(&key)
            .arg(self.about())
            .arg("NX")
            .query_async(connection)
            .await
            .map_err(failed)?;
        if made == Value::Okay {
            return self.recognise(&self.about());
        }
        let theirs: Option<String> =
            redis::cmd("GET").arg(&key).query_async(connection).await.map_err(failed)?;
        self.recognise(&theirs.unwrap_or_else(|| self.about()))
    }

    fn recognise(&self, about: &str) -> Result<()> {
        let wrong = |message: String| Err(Error::new(ErrorKind::Storage, message));
        let Some((format, id)) = about.split_once(' ') else {
            return wrong(format!("{} says nothing about itself that we understand", self.location));
        };
        if format != Setup::FORMAT {
            return wrong(format!(
                "the locks in {} are kept in format {format}, and this program knows format {}",
                self.location,
                Setup::FORMAT
            ));
        }
        let known = self.storage_id.get_or_init(|| decode::storage_id(id).unwrap_or(self.new_id));
        if decode::storage_id(id) == Some(*known) {
            return Ok(());
        }
        let error = format!("{} is not the storage that it was: its identity has changed", self.location);
        Err(Error::new(ErrorKind::Storage, error).with_hint(
            "tokens of different storages have no order; connect again once you are sure it is right",
        ))
    }
}
