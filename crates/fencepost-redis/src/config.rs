//! The configuration of a client, parsed from a `redis://` URL.

mod parse;

use std::time::Duration;

use fencepost_net::{Account, Address, Tls};
pub(crate) use parse::parse;

use crate::dialect::Dialect;

/// The servers that keep the locks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Servers {
    One(Address),
    Sentinel { sentinels: Vec<Address>, primary: String, account: Account },
    Cluster(Vec<Address>),
}

/// A parsed URL.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Config {
    pub(crate) servers: Servers,
    pub(crate) account: Account,
    pub(crate) db: u32,
    pub(crate) tls: Option<Tls>,
    /// The prefix of all keys and channels.
    pub(crate) namespace: String,
    /// How long a cluster keeps the last token of a lock that is not in use.
    pub(crate) token_retention: Duration,
    /// How many replicas must confirm a grant before it counts.
    pub(crate) replicas: u32,
    /// The other library whose key format is used, if any.
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

    /// Returns the URL without user and password.
    pub(crate) fn location(&self) -> String {
        let hosts = match &self.servers {
            Servers::One(address) => address.to_string(),
            Servers::Sentinel { sentinels, primary, .. } => format!("{}/{primary}", Address::list(sentinels)),
            Servers::Cluster(seeds) => Address::list(seeds),
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
