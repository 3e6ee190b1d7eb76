//! A primary with a replica, monitored by three sentinels.

use super::{RedisServer, RedisServerConfig};
use crate::wait;

/// Two servers and three sentinels, of which two must agree that the primary is down.
#[derive(Debug)]
pub struct Sentinels {
    servers: [RedisServer; 2],
    sentinels: [RedisServer; 3],
}

impl Sentinels {
    /// The name of the group of servers in the sentinels.
    pub const NAME: &'static str = "fencepost";

    /// Starts everything and waits until the sentinels know the replica and each other.
    ///
    /// # Panics
    /// If something does not start.
    pub fn start() -> Self {
        Self::start_with(&RedisServerConfig::plain())
    }

    /// Like [`Sentinels::start`], with servers of this configuration.
    ///
    /// # Panics
    /// If something does not start.
    pub fn start_with(config: &RedisServerConfig) -> Self {
        let primary = RedisServer::start(config);
        let replica_of = format!("replicaof 127.0.0.1 {}", primary.port());
        let replica = RedisServer::start(&config.clone().with_config(&replica_of));
        wait::block_until("the replica follows", || {
            replica.cli(&["INFO", "replication"]).contains("master_link_status:up")
        });
        let watch = |config: RedisServerConfig, args: &str| config.with_config(&format!("sentinel {args}"));
        let config = watch(
            RedisServerConfig::sentinel(),
            &format!("monitor {} 127.0.0.1 {} 2", Self::NAME, primary.port()),
        );
        let config = watch(config, &format!("down-after-milliseconds {} 500", Self::NAME));
        let config = watch(config, &format!("failover-timeout {} 2000", Self::NAME));
        let sentinels = [(); 3].map(|()| RedisServer::start(&config));
        let group = Self { servers: [primary, replica], sentinels };
        wait::block_until("the sentinels know each other and the replica", || group.is_complete());
        group
    }

    fn is_complete(&self) -> bool {
        let knows = |sentinel: &RedisServer, field: &str, value: &str| {
            let answer = sentinel.cli(&["SENTINEL", "MASTER", Self::NAME]);
            let mut lines = answer.lines().skip_while(|line| *line != field);
            lines.nth(1) == Some(value)
        };
        self.sentinels
            .iter()
            .all(|one| knows(one, "num-other-sentinels", "2") && knows(one, "num-slaves", "1"))
    }

    /// Returns the ports of the sentinels.
    pub fn sentinel_ports(&self) -> [u16; 3] {
        self.sentinels.each_ref().map(RedisServer::port)
    }

    /// Returns one of the sentinels.
    ///
    /// # Panics
    /// If the index is above 2.
    pub fn sentinel(&self, index: usize) -> &RedisServer {
        &self.sentinels[index]
    }

    /// Returns the port of the primary, as reported by the first sentinel that replies.
    ///
    /// # Panics
    /// If none can.
    pub fn primary_port(&self) -> u16 {
        let asked = ["SENTINEL", "GET-MASTER-ADDR-BY-NAME", Self::NAME];
        let said = self.sentinels.iter().find_map(|sentinel| sentinel.try_cli(&asked).ok());
        let port = said.as_deref().and_then(|address| address.lines().nth(1)?.parse().ok());
        port.expect("a sentinel reports the primary")
    }

    /// Returns the primary, as reported by the sentinels.
    ///
    /// # Panics
    /// If no sentinel reports it.
    pub fn primary(&self) -> &RedisServer {
        self.server(self.primary_port())
    }

    /// Returns the server that listens on this port.
    ///
    /// # Panics
    /// If none does.
    pub fn server(&self, port: u16) -> &RedisServer {
        self.servers.iter().find(|server| server.port() == port).expect("it is one of the two servers")
    }

    /// Returns the server that does not listen on this port.
    ///
    /// # Panics
    /// Never: there are two, on different ports.
    pub fn other_than(&self, port: u16) -> &RedisServer {
        self.servers.iter().find(|server| server.port() != port).expect("there are two")
    }

    /// Kills the primary and returns its port.
    ///
    /// # Panics
    /// If no sentinel reports which one is the primary.
    pub fn kill_primary(&self) -> u16 {
        let primary = self.primary();
        primary.kill();
        primary.port()
    }

    /// Pauses the primary, which does not learn that it is replaced, and returns its port.
    ///
    /// # Panics
    /// If no sentinel reports which one is the primary.
    pub fn pause_primary(&self) -> u16 {
        let primary = self.primary();
        primary.pause();
        primary.port()
    }

    /// Waits until the sentinels and the server itself report another primary than the one on the port `old`; returns its
    /// port.
    ///
    /// # Panics
    /// If there is no promotion in time.
    pub fn wait_for_promotion(&self, old: u16) -> u16 {
        let new = self.other_than(old);
        let port = new.port().to_string();
        let asked = ["SENTINEL", "GET-MASTER-ADDR-BY-NAME", Self::NAME];
        wait::block_until("the replica is promoted", || {
            let answers = self.sentinels.iter().filter_map(|sentinel| sentinel.try_cli(&asked).ok());
            answers.into_iter().all(|address| address.lines().nth(1) == Some(&port))
                // A server that is promoted closes its connections.
                && new.try_cli(&["ROLE"]).is_ok_and(|role| role.starts_with("master"))
        });
        new.port()
    }
}
