//! What all sessions of a client share: where the servers are, what their nodes are called, how long sessions can be.

use std::time::Duration;

use fencepost_core::{Error, Result};
use fencepost_net::Address;
use zookeeper_client::{self as zk, Acls, CreateMode, CreateOptions, SaslOptions, TlsOptions};

use crate::config::{Auth, Config};
use crate::encryption;
use crate::error::{connect_failed, failed};
use crate::paths::Paths;

/// How long the session lives in which nothing is held.
const LOOKING: Duration = Duration::from_secs(10);

/// Longer than any server allows.
const LONGEST: Duration = Duration::from_millis(i32::MAX as u64);
/// What is asked for to find the shortest session.
const SHORTEST: [Duration; 3] =
    [Duration::from_secs(1), Duration::from_millis(500), Duration::from_millis(200)];
/// How long a server may take to answer the first time.
const CONNECT: Duration = Duration::from_secs(5);

/// What all sessions of a client share.
#[derive(Debug)]
pub(crate) struct Setup {
    pub(crate) config: Config,
    /// The servers as the driver wants them.
    servers: String,
    encryption: Option<TlsOptions>,
    pub(crate) location: String,
    pub(crate) paths: Paths,
    pub(crate) range: Range,
}

/// How long sessions can be.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Range {
    pub(crate) shortest: Duration,
    pub(crate) longest: Duration,
    /// Whether there may be servers that do not decide by themselves which sessions have ended.
    pub(crate) has_followers: bool,
}

impl Range {
    /// Returns how much longer than a lease its session is: a tick where there are followers. The newest report of a session
    /// that is known to have reached the leader is half a tick and three gaps old, if all round trips together take less
    /// than another gap; see [`crate::evidence`]. If it is older, a lease counts from that much earlier.
    pub(crate) fn margin(self) -> Duration {
        if self.has_followers { self.half_tick() * 2 } else { Duration::ZERO }
    }

    /// Returns the time between two pings of the leader. The shortest session has two ticks.
    pub(crate) fn half_tick(self) -> Duration {
        self.shortest / 4
    }

    /// Returns how late a ping of a leader that runs may be, which is also the shortest pause between two probes.
    pub(crate) fn gap(self) -> Duration {
        self.half_tick() / 4
    }

    /// Returns the pause between two probes of a session with leases of this length. Fewer probes cost long leases a few
    /// percent of their time.
    pub(crate) fn pause(self, ttl: Duration) -> Duration {
        self.gap().max(ttl / 64)
    }

    /// How long the session of such a lease must be.
    pub(crate) fn session(self, ttl: Duration) -> Duration {
        // Whole milliseconds are negotiated.
        let millis = (ttl + self.margin()).as_nanos().div_ceil(1_000_000);
        Duration::from_millis(u64::try_from(millis).unwrap_or(u64::MAX))
    }

    /// How long the session is in which nothing is held.
    pub(crate) fn looking(self) -> Duration {
        LOOKING.clamp(self.shortest, self.longest)
    }

    pub(crate) fn shortest_ttl(self) -> Duration {
        self.shortest.saturating_sub(self.margin())
    }

    pub(crate) fn longest_ttl(self) -> Duration {
        self.longest.saturating_sub(self.margin())
    }
}

impl Setup {
    /// Finds out how long sessions can be.
    pub(crate) async fn new(config: Config) -> Result<Self> {
        let (location, paths) = (config.location(), Paths::new(&config.chroot));
        let encryption = config.tls.as_ref().map(encryption::options).transpose()?;
        let servers = Address::list(&config.servers);
        let unknown = Range { shortest: Duration::ZERO, longest: Duration::MAX, has_followers: true };
        let mut setup = Self { config, servers, encryption, location, paths, range: unknown };
        setup.range.longest = setup.negotiate(LONGEST).await?;
        // The driver gives a connect less time than it asks for, so that it asks for less and less, and takes silence for no.
        setup.range.shortest = setup.negotiate(SHORTEST[0]).await?;
        for asked in &SHORTEST[1..] {
            if setup.range.shortest > *asked * 2 {
                break;
            }
            match setup.negotiate(*asked).await {
                Ok(given) => setup.range.shortest = given,
                Err(_) => break,
            }
        }
        setup.range.has_followers = setup.has_followers().await?;
        Ok(setup)
    }

    /// Whether there is more than one server that stands alone. Who is not told assumes it.
    async fn has_followers(&self) -> Result<bool> {
        let config = self.connect_to_look().await?.get_config().await;
        Ok(config.map_or(true, |(config, _)| !config.is_empty()))
    }

    /// How long a session is given to whoever asks for this.
    async fn negotiate(&self, asked: Duration) -> Result<Duration> {
        let probe = self.connect(self.connector(asked).with_connection_timeout(CONNECT)).await?;
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
    pub(crate) async fn connect_to_look(&self) -> Result<zk::Client> {
        self.connect(self.connector(self.range.looking())).await
    }

    /// How nodes are made. If there is a user, they are that user's alone.
    pub(crate) fn made_as(&self, mode: CreateMode) -> CreateOptions<'static> {
        let acls = if self.config.auth.is_some() { Acls::creator_all() } else { Acls::anyone_all() };
        mode.with_acls(acls)
    }

    pub(crate) fn failed(&self, error: &zk::Error) -> Error {
        failed(&self.location, error)
    }

    /// Makes what must be there, as far as it is missing.
    pub(crate) async fn lay_foundations(&self, client: &zk::Client) -> Result<()> {
        for node in self.paths.foundations() {
            match client.create(&node, b"", &self.made_as(CreateMode::Persistent)).await {
                Ok(_) | Err(zk::Error::NodeExists) => {}
                Err(error) => return Err(self.failed(&error)),
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_session_is_longer_than_its_lease_where_others_must_hear_of_it() {
        let range =
            Range { shortest: Duration::from_secs(4), longest: Duration::from_secs(40), has_followers: true };
        assert_eq!(range.margin(), Duration::from_secs(2));
        assert_eq!(range.session(range.shortest_ttl()), range.shortest);
        assert_eq!(range.session(range.longest_ttl()), range.longest);
        let alone = Range { has_followers: false, ..range };
        assert_eq!(alone.session(Duration::from_micros(9_000_001)), Duration::from_millis(9001));
    }
}
