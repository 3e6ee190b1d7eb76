//! The storages on which turns are taken, each a server of its own.

use fencepost_testkit::servers::etcd::{self, EtcdServer};
use fencepost_testkit::servers::redis::{self, RedisServer};
use fencepost_testkit::servers::zookeeper::{self, ZooKeeperServer};

use crate::NAME;

/// A storage that other libraries know, too.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Storage {
    Redis,
    Etcd,
    ZooKeeper,
}

impl Storage {
    /// What the others call the lock.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Redis | Self::Etcd => NAME,
            Self::ZooKeeper => "/fencepost/interop%2Fcounter",
        }
    }

    /// Whether everybody waits in one line, also with the others.
    pub(crate) fn has_one_line(self) -> bool {
        self != Self::Redis
    }

    /// Starts a server.
    pub(crate) fn start(self) -> Server {
        match self {
            Self::Redis => Server::Redis(RedisServer::start(&redis::RedisServerConfig::plain())),
            Self::Etcd => Server::Etcd(EtcdServer::start(&etcd::EtcdServerConfig::plain())),
            Self::ZooKeeper => {
                // A tick as it is where others are used: they ask for sessions that have to do with it.
                let setup = zookeeper::ZooKeeperServerConfig::plain().with_config("tickTime=2000");
                Server::ZooKeeper(ZooKeeperServer::start(&setup))
            }
        }
    }
}

/// A server that is running.
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
