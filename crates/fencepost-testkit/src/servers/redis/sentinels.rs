//! A primary with a replica, and three sentinels that watch over them.

use super::{RedisServer, RedisServerConfig};
use crate::wait;

/// Two servers and three sentinels, of which two must agree that the primary is gone.
#[derive(Debug)]
pub struct Sentinels {
    servers: [RedisServer; 2],
    sentinels: [RedisServer; 3],
}

impl Sentinels {
    /// What the sentinels call the group of servers.
    pub const NAME: &'static str = "fencepost";

    /// Starts everything and waits until the sentinels know the replica and each other.
    ///
    /// # Panics
    /// If something does not start.
    pub fn start() -> Self {
        Self::start_with(&RedisServerConfig::plain())
    }

    /// Like [`Sentinels::start`], with servers that are set up like this.
    ///
    /// # Panics
    /// If something does not start.
    pub fn start_with(setup: &RedisServerConfig) -> Self {
        let primary = RedisServer::start(setup);
        let replica_of = format!("replicaof 127.0.0.1 {}", primary.port());
        let replica = RedisServer::start(&setup.clone().with_config(&replica_of));
        wait::block_until("the replica follows", || {
            replica.cli(&["INFO", "replication"]).contains("master_link_status:up")
        });
        let watch = |setup: RedisServerConfig, words: &str| setup.with_config(&format!("sentinel {words}"));
        let setup = watch(
            RedisServerConfig::sentinel(),
            &format!("monitor {} 127.0.0.1 {} 2", Self::NAME, primary.port()),
        );
        let setup = watch(setup, &format!("down-after-milliseconds {} 500", Self::NAME));
        let setup = watch(setup, &format!("failover-timeout {} 2000", Self::NAME));
        let sentinels = [(); 3].map(|()| RedisServer::start(&setup));
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

    /// The ports of the sentinels.
    pub fn sentinel_ports(&self) -> [u16; 3] {
        self.sentinels.each_ref().map(RedisServer::port)
    }

    /// One of the sentinels, to be hurt.
    ///
    /// # Panics
    /// If there is no such: there are three.
    pub fn sentinel(&self, index: usize) -> &RedisServer {
        &self.sentinels[index]
    }

    /// The port of the primary, as the first sentinel says that can say it.
    ///
    /// # Panics
    /// If none can.
    pub fn primary_port(&self) -> u16 {
        let asked = ["SENTINEL", "GET-MASTER-ADDR-BY-NAME", Self::NAME];
        let said = self.sentinels.iter().find_map(|sentinel| sentinel.try_cli(&asked).ok());
        let port = said.as_deref().and_then(|address| address.lines().nth(1)?.parse().ok());
        port.expect("a sentinel says who is primary")
    }

    /// The server that the sentinels call the primary.
    ///
    /// # Panics
    /// If no sentinel can say which that is.
    pub fn primary(&self) -> &RedisServer {
        self.server(self.primary_port())
    }

    /// The server that listens on this port.
    ///
    /// # Panics
    /// If none does.
    pub fn server(&self, port: u16) -> &RedisServer {
        self.servers.iter().find(|server| server.port() == port).expect("it is one of the two servers")
    }

    /// The server that does not listen on this port.
    ///
    /// # Panics
    /// Never: there are two, on different ports.
    pub fn other_than(&self, port: u16) -> &RedisServer {
        self.servers.iter().find(|server| server.port() != port).expect("there are two")
    }

    /// Kills the primary and returns its port.
    ///
    /// # Panics
    /// If no sentinel can say which that is.
    pub fn kill_primary(&self) -> u16 {
        let primary = self.primary();
        primary.kill();
        primary.port()
    }

    /// Stops the primary, which does not know then that it is replaced, and returns its port.
    ///
    /// # Panics
    /// If no sentinel can say which that is.
    pub fn pause_primary(&self) -> u16 {
        let primary = self.primary();
        primary.pause();
        primary.port()
    }

    /// Waits until another server than the one on the port `old` is the primary, in all sentinels' and its own opinion.
    ///
    /// # Panics
    /// If that does not come to pass.
    pub fn wait_for_promotion(&self, old: u16) -> u16 {
        let new = self.other_than(old);
        let port = new.port().to_string();
        let asked = ["SENTINEL", "GET-MASTER-ADDR-BY-NAME", Self::NAME];
        wait::block_until("the replica is promoted", || {
            let answers = self.sentinels.iter().filter_map(|sentinel| sentinel.try_cli(&asked).ok());
            answers.into_iter().all(|address| address.lines().nth(1) == Some(&port))
                // While it is promoted, it closes the connections that it has.
                && new.try_cli(&["ROLE"]).is_ok_and(|role| role.starts_with("master"))
        });
        new.port()
    }
}
