//! Opens connections to the primary, and finds out whether a pooler is in between.

mod pooled;
pub(crate) mod socket;
#[cfg(test)]
mod tests;

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use fencepost_core::{Error, ErrorKind, Result};
use fencepost_net::{Address, Encryption};
use futures_util::future::poll_fn;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::sync::mpsc::UnboundedSender;
use tokio::sync::oneshot;
use tokio::task::AbortHandle;
use tokio_postgres::error::SqlState;
use tokio_postgres::tls::{MakeTlsConnect, TlsStream};
use tokio_postgres::types::{ToSql, Type};
use tokio_postgres::{AsyncMessage, Client, Connection, NoTls, Row};
use tokio_postgres_rustls::MakeRustlsConnect;

use crate::config::{ChannelBinding, Config, Layout};
use crate::error::{MIN_SERVER_VERSION, call_failed, open_failed, standby, unreachable};

/// What happens on a connection apart from replies.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Event {
    /// A `NOTIFY` on a channel that the connection listens to.
    Notification { channel: String, payload: String },
    /// The connection has ended. It is the last event.
    Closed,
}

/// Receives the end of a session.
pub(crate) type EndReceiver = oneshot::Receiver<Option<SqlState>>;

/// Opens connections to the primary of the servers of a URL.
pub(crate) struct Link {
    config: Config,
    driver_config: tokio_postgres::Config,
    encryption: Option<Encryption>,
    location: String,
    /// Whether the server of the last connection has seen the address of this client: nothing in between shares sessions.
    is_direct: AtomicBool,
    /// Whether sessions belong to one client each, although something is in between.
    is_unshared: AtomicBool,
}

/// What a new connection asks the server. A server in recovery has transactions that are read-only.
///
/// It also sets the `search_path`: of a session whose server sees the address `$1` and port `$2` if `$3`, of any session if `$4`.
/// Its own names are qualified, because the account may have another path before.
const ABOUT: &str = "SELECT \
    pg_catalog.pg_is_in_recovery() OR pg_catalog.current_setting('transaction_read_only')::boolean, \
    pg_catalog.current_setting('server_version_num')::integer, pg_catalog.current_setting('server_encoding'), \
    pg_catalog.current_setting('default_transaction_isolation'), d.is_direct, CASE WHEN d.is_direct AND $3 OR $4 \
    THEN pg_catalog.set_config('search_path', 'pg_catalog, pg_temp', false) END FROM (SELECT \
    pg_catalog.host(pg_catalog.inet_client_addr()) OPERATOR(pg_catalog.=) $1 AND \
    pg_catalog.inet_client_port() OPERATOR(pg_catalog.=) $2 AS is_direct) AS d";

impl Link {
    /// Loads the certificates. Connects to no server yet.
    ///
    /// # Errors
    /// If a file cannot be read.
    pub(crate) fn new(config: Config) -> Result<Self> {
        Ok(Self {
            driver_config: driver_config(&config),
            encryption: config.tls.as_ref().map(Encryption::new).transpose()?,
            location: config.location(),
            is_direct: AtomicBool::new(false),
            is_unshared: AtomicBool::new(false),
            config,
        })
    }

    /// Returns the URL without secrets.
    pub(crate) fn location(&self) -> &str {
        &self.location
    }

    /// Returns the parsed URL.
    pub(crate) fn config(&self) -> &Config {
        &self.config
    }

    /// Returns whether the server of the last connection has seen the address of this client.
    pub(crate) fn is_direct(&self) -> bool {
        self.is_direct.load(Ordering::Relaxed)
    }

    /// Connects to the first of the servers that is the primary. A task on the current runtime drives the connection, and
    /// sends its `events`; it ends with the client, or with the connection.
    ///
    /// # Errors
    /// If none of them is the primary, or it rejects the client.
    ///
    /// # Cancel safety
    /// If the future is dropped, no connection remains.
    pub(crate) async fn open(&self, events: Option<UnboundedSender<Event>>) -> Result<Client> {
        let receiver = events.map_or(Receiver::Nothing, Receiver::Events);
        Ok(self.open_with(receiver).await?.0)
    }

    /// Like [`Link::open`], for a session whose end has a meaning. The receiver gets the code with which the server has ended
    /// it, if it has; the handle ends the connection at once, whatever is in flight.
    pub(crate) async fn open_session(&self) -> Result<(Client, AbortHandle, EndReceiver)> {
        let (sender, end) = oneshot::channel();
        let (client, driver) = self.open_with(Receiver::End(Mutex::new(Some(sender)).into())).await?;
        Ok((client, driver, end))
    }

    async fn open_with(&self, receiver: Receiver) -> Result<(Client, AbortHandle)> {
        let mut error = None;
        for host in &self.config.hosts {
            let opening = Box::pin(self.open_host(host, &receiver));
            match tokio::time::timeout(self.config.connect_timeout, opening).await {
                Ok(Ok(opened)) => return Ok(opened),
                Ok(Err(failed)) => keep_most_specific(&mut error, failed),
                Err(_) => {
                    let reason = format!("no reply from {host} within {:?}", self.config.connect_timeout);
                    keep_most_specific(&mut error, unreachable(&self.location).with_source(reason));
                }
            }
        }
        Err(error.unwrap_or_else(|| unreachable(&self.location)))
    }

    async fn open_host(&self, host: &Address, receiver: &Receiver) -> Result<(Client, AbortHandle)> {
        let stream = socket::connect(host).await.map_err(|error| {
            let reason = format!("{host}: {error}");
            unreachable(&self.location).with_source(reason)
        })?;
        let local = stream.local_addr();
        let failed = |error: tokio_postgres::Error| open_failed(&self.location, &error);
        let (client, driver) = match &self.encryption {
            None => {
                let opened = self.driver_config.connect_raw(stream, NoTls).await;
                let (client, connection) = opened.map_err(failed)?;
                (client, spawn_driver(connection, receiver.clone()))
            }
            Some(encryption) => {
                let mut tls = MakeRustlsConnect::new(encryption.client_config());
                let name = encryption.server_name(&host.host);
                let Ok(tls) = MakeTlsConnect::<TcpStream>::make_tls_connect(&mut tls, name);
                let opened = self.driver_config.connect_raw(stream, tls).await;
                let (client, connection) = opened.map_err(failed)?;
                (client, spawn_driver(connection, receiver.clone()))
            }
        };
        let local = local.map_or((String::new(), 0), |local| (local.ip().to_string(), local.port().into()));
        let about = self.about(&client, local).await.map_err(failed)?;
        self.check(about.get(0), about.get(1), about.get(2))?;
        self.is_direct.store(about.get::<_, Option<bool>>(4) == Some(true), Ordering::Relaxed);
        if about.get::<_, &str>(3) != "read committed" {
            self.set_isolation(&client).await?;
        }
        Ok((client, driver))
    }

    async fn about(
        &self,
        client: &Client,
        (address, port): (String, i32),
    ) -> std::result::Result<Row, tokio_postgres::Error> {
        let is_unshared = self.is_unshared.load(Ordering::Relaxed);
        let parameters: [(&(dyn ToSql + Sync), Type); 4] = [
            (&address, Type::TEXT),
            (&port, Type::INT4),
            (&self.has_qualified_names(), Type::BOOL),
            (&is_unshared, Type::BOOL),
        ];
        client.query_typed_one(ABOUT, &parameters).await
    }

    /// Returns whether all statements name the schema of their tables. What they call is then found in `pg_catalog` alone, and
    /// not in a schema that another account can create functions and operators in.
    fn has_qualified_names(&self) -> bool {
        matches!(self.config.layout, Layout::Lease | Layout::Advisory { .. })
    }

    /// Records that sessions belong to this client, and sets the path of this one.
    async fn set_unshared(&self, client: &Client) -> Result<()> {
        if !self.has_qualified_names() {
            return Ok(());
        }
        self.is_unshared.store(true, Ordering::Relaxed);
        let set = client.batch_execute("SET search_path = pg_catalog, pg_temp").await;
        set.map_err(|error| call_failed(&self.location, &error))
    }

    /// Checks that the server is the primary, and one that the functions of the schema run on.
    fn check(&self, is_read_only: bool, version: i32, encoding: &str) -> Result<()> {
        let location = &self.location;
        let unsupported = |message| Error::new(ErrorKind::Unsupported, message);
        if version < MIN_SERVER_VERSION {
            let message = format!("{location} has version {}, which is too old", version / 10_000);
            let hint = format!("PostgreSQL {} or newer is needed", MIN_SERVER_VERSION / 10_000);
            return Err(unsupported(message).with_hint(hint));
        }
        if encoding != "UTF8" {
            return Err(unsupported(format!("{location} has the encoding {encoding}; names are UTF-8"))
                .with_hint("use a database with the encoding UTF8: CREATE DATABASE … ENCODING 'UTF8' TEMPLATE template0"));
        }
        if is_read_only { Err(standby(location)) } else { Ok(()) }
    }

    /// Sets the isolation level of all transactions on the connection, where the account or the database has another one. A
    /// connection that is shared with other clients is left as it is: the functions of the schema check it.
    async fn set_isolation(&self, client: &Client) -> Result<()> {
        if !self.is_direct() {
            return Ok(());
        }
        let set = "SET SESSION CHARACTERISTICS AS TRANSACTION ISOLATION LEVEL READ COMMITTED";
        client.batch_execute(set).await.map_err(|error| call_failed(&self.location, &error))
    }
}

fn driver_config(config: &Config) -> tokio_postgres::Config {
    let mut driver = tokio_postgres::Config::new();
    driver
        .user(&config.user)
        .dbname(&config.database)
        .application_name(&config.application_name)
        .ssl_mode(match config.tls {
            Some(_) => tokio_postgres::config::SslMode::Require,
            None => tokio_postgres::config::SslMode::Disable,
        })
        .channel_binding(match config.channel_binding {
            ChannelBinding::Disabled => tokio_postgres::config::ChannelBinding::Disable,
            ChannelBinding::Preferred => tokio_postgres::config::ChannelBinding::Prefer,
            ChannelBinding::Required => tokio_postgres::config::ChannelBinding::Require,
        });
    if let Some(password) = &config.password {
        driver.password(&password.0);
    }
    driver
}

/// The receiver of what happens on a connection.
#[derive(Clone)]
enum Receiver {
    Nothing,
    Events(UnboundedSender<Event>),
    /// Shared by the attempts to connect to several hosts. Those that fail do not use it.
    End(Arc<Mutex<Option<oneshot::Sender<Option<SqlState>>>>>),
}

impl Receiver {
    // If the receiver was dropped, this is not wanted any more.
    fn notified(&self, channel: &str, payload: &str) {
        if let Self::Events(events) = self {
            let (channel, payload) = (channel.to_owned(), payload.to_owned());
            let _ = events.send(Event::Notification { channel, payload });
        }
    }

    fn closed(&self, error: Option<&tokio_postgres::Error>) {
        match self {
            Self::Nothing => {}
            Self::Events(events) => drop(events.send(Event::Closed)),
            Self::End(end) => {
                let end = end.lock().unwrap_or_else(PoisonError::into_inner).take();
                let code = error.and_then(tokio_postgres::Error::code).cloned();
                end.map(|end| end.send(code));
            }
        }
    }
}

fn spawn_driver<S, T>(mut connection: Connection<S, T>, receiver: Receiver) -> AbortHandle
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    T: TlsStream + Unpin + Send + 'static,
{
    let driver = tokio::spawn(async move {
        loop {
            match poll_fn(|context| connection.poll_message(context)).await {
                Some(Ok(AsyncMessage::Notification(sent))) => {
                    receiver.notified(sent.channel(), sent.payload());
                }
                Some(Ok(_)) => {}
                Some(Err(error)) => return receiver.closed(Some(&error)),
                None => return receiver.closed(None),
            }
        }
    });
    driver.abort_handle()
}

/// Keeps the error that is more specific than "unreachable". A standby's is more specific than that of a server that does not
/// answer, but not than a rejected password.
fn keep_most_specific(kept: &mut Option<Error>, error: Error) {
    let rank = |error: &Error| match error.kind() {
        ErrorKind::Unreachable if error.is_transient() => 1,
        ErrorKind::Unreachable => 0,
        _ => 2,
    };
    if kept.as_ref().is_none_or(|kept| rank(kept) < rank(&error)) {
        *kept = Some(error);
    }
}
