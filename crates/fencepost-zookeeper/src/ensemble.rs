//! What all sessions of a client share: where the servers are, what their nodes are called, how long sessions can be.

use std::time::Duration;

use fencepost_core::{Error, Result};
use fencepost_net::Address;
use zookeeper_client::{self as zk, Acls, CreateMode, CreateOptions, SaslOptions, TlsOptions};

use crate::config::{Auth, Config};
use crate::error::{connect_failed, failed};
use crate::layout::Layout;
use crate::session_range::SessionRange;
use crate::tls;

/// Longer than any server allows.
const LONGEST_PROBED: Duration = Duration::from_millis(i32::MAX as u64);
/// What is asked for to find the shortest session.
const SHORTEST_PROBED: [Duration; 3] =
    [Duration::from_secs(1), Duration::from_millis(500), Duration::from_millis(200)];
/// How long a server may take to answer the first time.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

/// What all sessions of a client share.
#[derive(Debug)]
pub(crate) struct Ensemble {
    pub(crate) config: Config,
    /// The servers as the driver wants them.
    servers: String,
    encryption: Option<TlsOptions>,
    pub(crate) location: String,
    pub(crate) layout: Layout,
    pub(crate) range: SessionRange,
}

impl Ensemble {
    /// Finds out how long sessions can be.
    pub(crate) async fn new(config: Config) -> Result<Self> {
        let (location, layout) = (config.location(), Layout::new(&config.chroot));
        let encryption = config.tls.as_ref().map(tls::options).transpose()?;
        let servers = Address::list(&config.servers);
        let unknown = SessionRange { shortest: Duration::ZERO, longest: Duration::MAX, has_followers: true };
        let mut ensemble = Self { config, servers, encryption, location, layout, range: unknown };
        ensemble.range.longest = ensemble.negotiate(LONGEST_PROBED).await?;
        // The driver gives a connect less time than it asks for, so that it asks for less and less, and takes silence for no.
        ensemble.range.shortest = ensemble.negotiate(SHORTEST_PROBED[0]).await?;
        for asked in &SHORTEST_PROBED[1..] {
            if ensemble.range.shortest > *asked * 2 {
                break;
            }
            match ensemble.negotiate(*asked).await {
                Ok(given) => ensemble.range.shortest = given,
                Err(_) => break,
            }
        }
        ensemble.range.has_followers = ensemble.has_followers().await?;
        Ok(ensemble)
    }

    /// Whether there is more than one server that stands alone. Who is not told assumes it.
    async fn has_followers(&self) -> Result<bool> {
        let config = self.connect_control().await?.get_config().await;
        Ok(config.map_or(true, |(config, _)| !config.is_empty()))
    }

    /// How long a session is given to whoever asks for this.
    async fn negotiate(&self, asked: Duration) -> Result<Duration> {
        let probe = self.connect(self.connector(asked).with_connection_timeout(CONNECT_TIMEOUT)).await?;
        Ok(probe.session_timeout())
    }

    /// How the driver is to connect.
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

    /// A session for one question.
    pub(crate) async fn connect_control(&self) -> Result<zk::Client> {
        self.connect(self.connector(self.range.control_timeout())).await
    }

    /// How nodes are made. If there is a user, they are that user's alone.
    pub(crate) fn create_options(&self, mode: CreateMode) -> CreateOptions<'static> {
        let acls = if self.config.auth.is_some() { Acls::creator_all() } else { Acls::anyone_all() };
        mode.with_acls(acls)
    }

    pub(crate) fn failed(&self, error: &zk::Error) -> Error {
        failed(&self.location, error)
    }

    /// Makes what must be there, as far as it is missing.
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
