//! The servers on which turns are taken.

use fencepost_testkit::servers::etcd::{self, EtcdServer};
use fencepost_testkit::servers::redis::{self, RedisServer};
use fencepost_testkit::servers::zookeeper::{self, ZooKeeperServer};

use crate::NAME;

/// A backend that other libraries use too.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ServerKind {
    Redis,
    Etcd,
    ZooKeeper,
}

impl ServerKind {
    /// Returns the name of the lock in the other libraries.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Redis | Self::Etcd => NAME,
            Self::ZooKeeper => "/fencepost/interop%2Fcounter",
        }
    }

    /// Returns whether all waiters share one queue, also those of other libraries.
    pub(crate) fn shares_one_queue(self) -> bool {
        self != Self::Redis
    }

    /// Starts a server.
    pub(crate) fn start(self) -> Server {
        match self {
            Self::Redis => Server::Redis(RedisServer::start(&redis::RedisServerConfig::plain())),
            Self::Etcd => Server::Etcd(EtcdServer::start(&etcd::EtcdServerConfig::plain())),
            Self::ZooKeeper => {
                // The usual tick: the session timeouts that other libraries request depend on it.
                let config = zookeeper::ZooKeeperServerConfig::plain().with_config("tickTime=2000");
                Server::ZooKeeper(ZooKeeperServer::start(&config))
            }
        }
    }
}

/// A running server.
pub(crate) enum Server {
    Redis(RedisServer),
    Etcd(EtcdServer),
    ZooKeeper(ZooKeeperServer),
}

impl Server {
    pub(crate) fn port(&self) -> u16 {
        match self {
            Self::Redis(server) => server.port(),
            Self::Etcd(server) => server.port(),
            Self::ZooKeeper(server) => server.port(),
        }
    }

    pub(crate) fn url(&self) -> String {
        match self {
            Self::Redis(server) => server.url(),
            Self::Etcd(server) => server.url(),
            Self::ZooKeeper(server) => server.url(),
        }
    }
}
