//! The servers on which turns are taken.

use fencepost_testkit::servers::etcd::{self, EtcdServer};
use fencepost_testkit::servers::postgres::{PostgresServer, PostgresServerConfig};
use fencepost_testkit::servers::redis::{self, RedisServer};
use fencepost_testkit::servers::zookeeper::{self, ZooKeeperServer};

use crate::NAME;

/// A backend that other libraries use too.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ServerKind {
    Redis,
    Etcd,
    ZooKeeper,
    Postgres,
}

/// The database that every server of PostgreSQL has.
const DATABASE: &str = "postgres";
/// The table of `ShedLock`'s documentation.
const SHEDLOCK: &str = "CREATE TABLE shedlock (name VARCHAR(64) NOT NULL PRIMARY KEY, lock_until TIMESTAMP NOT NULL, \
    locked_at TIMESTAMP NOT NULL, locked_by VARCHAR(255) NOT NULL)";

impl ServerKind {
    /// Returns the name of the lock in the other libraries.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Redis | Self::Etcd | Self::Postgres => NAME,
            Self::ZooKeeper => "/fencepost/interop%2Fcounter",
        }
    }

    /// Returns whether all waiters share one queue, also those of other libraries.
    pub(crate) fn shares_one_queue(self) -> bool {
        matches!(self, Self::Etcd | Self::ZooKeeper)
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
            Self::Postgres => {
                let server = PostgresServer::start(&PostgresServerConfig::plain());
                server.psql_in(DATABASE, SHEDLOCK);
                Server::Postgres(server)
            }
        }
    }
}

/// A running server.
pub(crate) enum Server {
    Redis(RedisServer),
    Etcd(EtcdServer),
    ZooKeeper(ZooKeeperServer),
    Postgres(PostgresServer),
}

impl Server {
    pub(crate) fn port(&self) -> u16 {
        match self {
            Self::Redis(server) => server.port(),
            Self::Etcd(server) => server.port(),
            Self::ZooKeeper(server) => server.port(),
            Self::Postgres(server) => server.port(),
        }
    }

    pub(crate) fn url(&self) -> String {
        match self {
            Self::Redis(server) => server.url(),
            Self::Etcd(server) => server.url(),
            Self::ZooKeeper(server) => server.url(),
            Self::Postgres(server) => server.url(DATABASE),
        }
    }
}
