//! The ensemble that a client uses: its servers, the layout of its nodes, and the session timeouts that it allows.

use std::time::Duration;

use fencepost_core::{Error, Result};
use fencepost_net::Address;
use zookeeper_client::{self as zk, Acls, CreateMode, CreateOptions, SaslOptions, TlsOptions};

use crate::config::{Auth, Config};
use crate::error::{connect_failed, failed};
use crate::layout::Layout;
use crate::session_range::SessionRange;
use crate::tls;

/// A session timeout longer than any server allows.
const LONGEST_REQUESTED: Duration = Duration::from_millis(i32::MAX as u64);
/// The session timeouts requested to find the shortest one allowed.
const SHORTEST_REQUESTED: [Duration; 3] =
    [Duration::from_secs(1), Duration::from_millis(500), Duration::from_millis(200)];
/// The timeout of the first connects, which determine the range.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

/// The ensemble that a client uses.
#[derive(Debug)]
pub(crate) struct Ensemble {
    pub(crate) config: Config,
    /// The servers as the driver takes them: `HOST:PORT,HOST:PORT`.
    servers: String,
    encryption: Option<TlsOptions>,
    pub(crate) location: String,
    pub(crate) layout: Layout,
    pub(crate) range: SessionRange,
}

impl Ensemble {
    /// Connects and determines which session timeouts the servers allow.
    pub(crate) async fn open(config: Config) -> Result<Self> {
        let (location, layout) = (config.location(), Layout::new(&config.chroot));
        let encryption = config.tls.as_ref().map(tls::options).transpose()?;
        let servers = Address::list(&config.servers);
        let not_negotiated =
            SessionRange { shortest: Duration::ZERO, longest: Duration::MAX, has_followers: true };
        let mut ensemble = Self { config, servers, encryption, location, layout, range: not_negotiated };
        ensemble.range.longest = ensemble.negotiate(LONGEST_REQUESTED).await?;
        // The driver connects with a timeout below the session timeout that it requests: shorter and shorter ones are
        // requested, and no reply counts as a refusal.
        ensemble.range.shortest = ensemble.negotiate(SHORTEST_REQUESTED[0]).await?;
        for requested in &SHORTEST_REQUESTED[1..] {
            if ensemble.range.shortest > *requested * 2 {
                break;
            }
            match ensemble.negotiate(*requested).await {
                Ok(negotiated) => ensemble.range.shortest = negotiated,
                Err(_) => break,
            }
        }
        ensemble.range.has_followers = ensemble.has_followers().await?;
        Ok(ensemble)
    }

    /// Returns whether there is more than a standalone server; assumed if the configuration cannot be read.
    async fn has_followers(&self) -> Result<bool> {
        let config = self.connect_control().await?.get_config().await;
        Ok(config.map_or(true, |(config, _)| !config.is_empty()))
    }

    /// Returns the session timeout that the servers grant for this request.
    async fn negotiate(&self, requested: Duration) -> Result<Duration> {
        let probe = self.connect(self.connector(requested).with_connection_timeout(CONNECT_TIMEOUT)).await?;
        Ok(probe.session_timeout())
    }

    /// Returns a connector with this session timeout and the credentials of the URL.
    pub(crate) fn connector(&self, timeout: Duration) -> zk::Connector {
        let connector = zk::Client::connector().with_session_timeout(timeout).with_fail_eagerly();
        match &self.config.auth {
            None => connector,
            Some(Auth::Digest(login)) => {
                connector.with_auth("digest", format!("{}:{}", login.user, login.password.0).as_bytes())
            }
            Some(Auth::Sasl(login)) => {
                connector.with_sasl(SaslOptions::digest_md5(login.user.clone(), login.password.0.clone()))
            }
        }
    }

    pub(crate) async fn connect(&self, connector: zk::Connector) -> Result<zk::Client> {
        let connected = match &self.encryption {
            Some(tls) => connector.with_tls(tls.clone()).secure_connect(&self.servers).await,
            None => connector.connect(&self.servers).await,
        };
        connected.map_err(|error| connect_failed(&self.location, &error))
    }

    /// Opens a session for a few requests, in which nothing is held.
    pub(crate) async fn connect_control(&self) -> Result<zk::Client> {
        self.connect(self.connector(self.range.control_timeout())).await
    }

    /// Returns the options for creating a node. With a user, only that user has access to it.
    pub(crate) fn create_options(&self, mode: CreateMode) -> CreateOptions<'static> {
        let acls = if self.config.auth.is_some() { Acls::creator_all() } else { Acls::anyone_all() };
        mode.with_acls(acls)
    }

    pub(crate) fn failed(&self, error: &zk::Error) -> Error {
        failed(&self.location, error)
    }

    /// Creates the base nodes that are missing.
    pub(crate) async fn create_base_nodes(&self, client: &zk::Client) -> Result<()> {
        for node in self.layout.base_nodes() {
            match client.create(&node, b"", &self.create_options(CreateMode::Persistent)).await {
                Ok(_) | Err(zk::Error::NodeExists) => {}
                Err(error) => return Err(self.failed(&error)),
            }
        }
        Ok(())
    }
}
