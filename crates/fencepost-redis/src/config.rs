//! What a `redis://` URL says: which servers, who we are there, and how the locks are kept.

mod parse;

use std::time::Duration;

use fencepost_net::{Account, Address, Tls};
pub(crate) use parse::parse;

use crate::dialect::Dialect;

/// Where the locks are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Servers {
    One(Address),
    Sentinel { sentinels: Vec<Address>, primary: String, account: Account },
    Cluster(Vec<Address>),
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
