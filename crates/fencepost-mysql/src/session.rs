//! One connection to the server.

use std::time::Duration;

use fencepost_core::clock::{Clock, Moment};
use fencepost_core::{Error, ErrorKind, Result, duration_text};
use fencepost_net::{CONNECT_TIMEOUT, Tls, bad};
use fencepost_sql::Row;
use mysql_async::prelude::Queryable;
use mysql_async::{ClientIdentity, Conn, Opts, OptsBuilder, SslOpts};
use rustls::crypto::{CryptoProvider, aws_lc_rs};

use crate::config::Config;
use crate::error::{Failure, connect_error, unreachable};

/// How long the server keeps a connection on which nothing is sent: one of a host that is gone must not stay for long.
pub(crate) const IDLE_SECONDS: u64 = 30;
/// How long a connection on which nothing was sent can be used again.
pub(crate) const MAX_IDLE: Duration = Duration::from_secs(IDLE_SECONDS / 2);

/// Prepares a session, whatever the defaults of the server and the account are. The isolation level makes every statement read
/// what is committed. A client that stops inside a transaction must not keep rows locked: MariaDB then closes the connection after
/// two seconds, MySQL with the idle connection.
const SETUP: &str = "SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED, READ WRITE; \
    SET SESSION autocommit = 1, time_zone = '+00:00', sql_mode = 'STRICT_TRANS_TABLES,NO_ENGINE_SUBSTITUTION', \
    completion_type = 0, sql_select_limit = 18446744073709551615, sql_safe_updates = 0, \
    innodb_lock_wait_timeout = 1, wait_timeout = 30 \
    /*M!100300 , idle_transaction_timeout = 2, max_statement_time = 0 */";

/// The rows of one result.
pub(crate) type Rows = Vec<ServerRow>;

/// How to connect.
#[derive(Clone)]
pub(crate) struct Connector {
    opts: Opts,
    pub(crate) location: String,
    pub(crate) clock: Clock,
}

impl Connector {
    /// Prepares connections; loads certificates.
    pub(crate) fn new(config: &Config) -> Result<Self> {
        let opts = OptsBuilder::default()
            .ip_or_hostname(config.server.host.clone())
            .tcp_port(config.server.port)
            .user(config.account.user.clone())
            .pass(config.account.password.clone().map(|password| password.0))
            .db_name(Some(config.database.clone()))
            .prefer_socket(false)
            .stmt_cache_size(0)
            .tcp_keepalive(Some(Duration::from_secs(10)))
            // Known, so that they are not asked for; statements are split long before the server's limit.
            .max_allowed_packet(Some(1 << 30))
            .wait_timeout(Some(usize::try_from(IDLE_SECONDS).unwrap_or(30)))
            .connect_attribute("program_name", "fencepost")
            .setup(vec![SETUP])
            .ssl_opts(config.tls.as_ref().map(ssl_opts).transpose()?);
        Ok(Self { opts: opts.into(), location: config.location(), clock: Clock::system() })
    }

    pub(crate) async fn connect(&self) -> Result<Session> {
        let connecting = tokio::time::timeout(CONNECT_TIMEOUT, Conn::new(self.opts.clone())).await;
        let conn = connecting.map_err(|_| {
            let within = duration_text(CONNECT_TIMEOUT);
            unreachable(&self.location).with_source(format!("no reply within {within}"))
        })?;
        let conn = conn.map_err(|error| connect_error(&self.location, error))?;
        Ok(Session {
            conn: Some(conn),
            used: self.clock.now(),
            connector: self.clone(),
            minted: 0,
            has_raised: false,
        })
    }
}

fn ssl_opts(tls: &Tls) -> Result<SslOpts> {
    // The driver takes the default provider of the process, and panics if there are two and no default.
    if CryptoProvider::get_default().is_none() {
        let _ = aws_lc_rs::default_provider().install_default();
    }
    // Reports files that cannot be read, and what cannot be trusted, as all backends do.
    fencepost_net::Encryption::new(tls)?;
    let roots = if let Some(ca) = &tls.ca {
        vec![ca.clone().into()]
    } else {
        let native = rustls_native_certs::load_native_certs().certs;
        native.into_iter().map(|certificate| certificate.to_vec().into()).collect()
    };
    let identity = tls.identity.clone().map(|(cert, key)| ClientIdentity::new(cert.into(), key.into()));
    let opts = SslOpts::default()
        .with_root_certs(roots)
        .with_disable_built_in_roots(true)
        .with_client_identity(identity)
        .with_danger_accept_invalid_certs(tls.insecure);
    let Some(name) = &tls.server_name else { return Ok(opts) };
    if name.is_empty() {
        return Err(bad("tls_server_name is empty"));
    }
    Ok(opts.with_danger_tls_hostname_override(Some(name.clone())))
}

/// A connection. Dropping it closes it at once, which rolls back its transaction.
pub(crate) struct Session {
    conn: Option<Conn>,
    used: Moment,
    connector: Connector,
    /// The first number that the first statement of the last run has minted.
    pub(crate) minted: u64,
    /// Whether a flight on it has raised the counter of tokens to the server's time.
    pub(crate) has_raised: bool,
}

impl Session {
    /// Runs statements in one round trip and returns the rows of each; the last must be one that returns rows, or its result is
    /// left out.
    pub(crate) async fn run(&mut self, sql: &str, timeout: Duration) -> Result<Vec<Rows>, Failure> {
        let location = self.connector.location.clone();
        let Ok(outcome) = tokio::time::timeout(timeout, self.run_untimed(sql, &location)).await else {
            let text = format!("no reply from {location} within {}", duration_text(timeout));
            // The reply may still arrive; the connection is of no use.
            self.close_at_once();
            return Err(Failure::NoReply(Error::new(ErrorKind::Unreachable, text)));
        };
        self.used = self.connector.clock.now();
        if outcome.as_ref().is_err_and(Failure::is_connection_lost) {
            self.close_at_once();
        }
        outcome
    }

    async fn run_untimed(&mut self, sql: &str, location: &str) -> Result<Vec<Rows>, Failure> {
        let failed = |error, at| Failure::new(location, error, at);
        let Some(conn) = &mut self.conn else { return Err(Failure::NoReply(unreachable(location))) };
        let mut sets = Vec::new();
        let mut result = conn.query_iter(sql).await.map_err(|error| failed(error, 0))?;
        self.minted = result.last_insert_id().unwrap_or(0);
        loop {
            // The failure of a statement is reported by what reads its result.
            let rows = result.collect::<mysql_async::Row>().await;
            let rows = rows.map_err(|error| failed(error, sets.len()))?;
            sets.push(rows.into_iter().map(ServerRow).collect());
            if result.is_empty() {
                result.drop_result().await.map_err(|error| failed(error, sets.len()))?;
                return Ok(sets);
            }
        }
    }

    /// Returns the id of the connection that the handshake named. With a proxy in between, it is the proxy's.
    pub(crate) fn handshake_id(&self) -> Option<u32> {
        self.conn.as_ref().map(Conn::id)
    }

    /// Whether it can be used for another flight.
    pub(crate) fn is_usable(&self) -> bool {
        self.conn.is_some() && self.connector.clock.now().since(self.used) < MAX_IDLE
    }

    /// Whether it is not likely that the server has closed it meanwhile.
    pub(crate) fn was_used_lately(&self) -> bool {
        self.connector.clock.now().since(self.used) < Duration::from_secs(1)
    }

    /// Closes it without waiting for the server: it cannot be used any more.
    pub(crate) fn close_at_once(&mut self) {
        close_at_once(self.conn.take());
    }

    /// Says goodbye to the server.
    pub(crate) async fn close(mut self) {
        if let Some(conn) = self.conn.take() {
            // If the server does not reply, it closes the connection by itself.
            let _ = tokio::time::timeout(Duration::from_millis(200), conn.disconnect()).await;
        }
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        self.close_at_once();
    }
}

/// Closes a connection. Where there is a runtime, the driver would first wait for the results of statements under way, for as
/// long as the server takes.
fn close_at_once(conn: Option<Conn>) {
    if let Some(conn) = conn {
        // If there are no threads left, the driver closes it in its way.
        let _ = std::thread::Builder::new().spawn(move || drop(conn));
    }
}

/// A row of the server.
pub(crate) struct ServerRow(mysql_async::Row);

impl ServerRow {
    fn get<T: mysql_async::prelude::FromValue>(&self, column: usize) -> Result<T> {
        let value = self.0.get_opt(column).and_then(std::result::Result::ok);
        value.ok_or_else(|| {
            Error::new(ErrorKind::Backend, format!("column {column} of a row has an unexpected type"))
        })
    }

    /// Returns a number, or `None` for null.
    pub(crate) fn optional_integer(&self, column: usize) -> Result<Option<i64>> {
        self.get(column)
    }
}

impl Row for ServerRow {
    fn integer(&self, column: usize) -> Result<i64> {
        self.get(column)
    }

    fn optional_text(&self, column: usize) -> Result<Option<String>> {
        self.get(column)
    }

    fn bytes(&self, column: usize) -> Result<Vec<u8>> {
        self.get(column)
    }
}
