//! What a `redis://` URL says: which servers, who we are there, and how the locks are kept.

mod parse;

use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

pub(crate) use parse::parse;

use crate::dialect::Dialect;

/// A server's host and port.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct Address {
    pub(crate) host: String,
    pub(crate) port: u16,
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { host, port } = self;
        if host.contains(':') { write!(f, "[{host}]:{port}") } else { write!(f, "{host}:{port}") }
    }
}

/// A password. `Debug` does not show it.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct Secret(pub(crate) String);

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("***")
    }
}

/// Who we are on a server.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Account {
    pub(crate) user: Option<String>,
    pub(crate) password: Option<Secret>,
}

/// Where the locks are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Servers {
    One(Address),
    Sentinel { sentinels: Vec<Address>, primary: String, account: Account },
    Cluster(Vec<Address>),
}

/// How a connection is encrypted.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Tls {
    /// Whom to trust, instead of those whom the system trusts.
    pub(crate) ca: Option<PathBuf>,
    /// Who we are: certificate and key.
    pub(crate) identity: Option<(PathBuf, PathBuf)>,
    /// The name in the server's certificate, if it is not the host's.
    pub(crate) server_name: Option<String>,
    /// Trust anybody.
    pub(crate) insecure: bool,
}

/// Everything a URL says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Config {
    pub(crate) servers: Servers,
    pub(crate) account: Account,
    pub(crate) db: u32,
    pub(crate) tls: Option<Tls>,
    /// What all keys and channels begin with.
    pub(crate) namespace: String,
    /// For how long a cluster remembers the last token of a lock that is not in use.
    pub(crate) token_retention: Duration,
    /// How many replicas must have a grant before it counts.
    pub(crate) replicas: u32,
    /// Whose form the locks have, if it is not ours.
    pub(crate) dialect: Option<Dialect>,
}

impl Config {
    pub(crate) const DEFAULT_NAMESPACE: &str = "fencepost";
    pub(crate) const DEFAULT_RETENTION: Duration = Duration::from_secs(3600);

    pub(crate) fn scheme(&self) -> &'static str {
        match (&self.servers, self.tls.is_some()) {
            (Servers::One(_), false) => "redis",
            (Servers::One(_), true) => "rediss",
            (Servers::Sentinel { .. }, false) => "redis+sentinel",
            (Servers::Sentinel { .. }, true) => "rediss+sentinel",
            (Servers::Cluster(_), false) => "redis+cluster",
            (Servers::Cluster(_), true) => "rediss+cluster",
        }
    }

    /// The URL without user and password.
    pub(crate) fn location(&self) -> String {
        let list = |hosts: &[Address]| hosts.iter().map(Address::to_string).collect::<Vec<_>>().join(",");
        let hosts = match &self.servers {
            Servers::One(address) => address.to_string(),
            Servers::Sentinel { sentinels, primary, .. } => format!("{}/{primary}", list(sentinels)),
            Servers::Cluster(seeds) => list(seeds),
        };
        let db = if self.db == 0 { String::new() } else { format!("/{}", self.db) };
        let namespace = Some(&self.namespace).filter(|namespace| *namespace != Self::DEFAULT_NAMESPACE);
        let options = [
            namespace.map(|namespace| format!("namespace={namespace}")),
            self.dialect.as_ref().map(Dialect::option),
        ];
        let options: Vec<String> = options.into_iter().flatten().collect();
        let query = if options.is_empty() { String::new() } else { format!("?{}", options.join("&")) };
        format!("{}://{hosts}{db}{query}", self.scheme())
    }
}
