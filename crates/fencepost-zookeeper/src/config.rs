//! What a URL says.

use fencepost_core::{Error, ErrorKind, Result};

use crate::paths::Dialect;

/// Where the servers are, and how to talk to them.
#[derive(Clone, Debug)]
pub(crate) struct Config {
    /// `host:port,host:port`.
    pub(crate) servers: String,
    pub(crate) chroot: String,
    pub(crate) dialect: Dialect,
    /// User and password, for `digest`.
    pub(crate) account: Option<(String, String)>,
}

impl Config {
    /// Where the locks live, without any secret.
    pub(crate) fn location(&self) -> String {
        format!("zk://{}{}", self.servers, self.chroot)
    }
}

pub(crate) fn parse(url: &str) -> Result<Config> {
    let nonsense = || Error::new(ErrorKind::BadConfig, "not a URL of ZooKeeper: zk://HOST,HOST/CHROOT");
    let rest = url.strip_prefix("zk://").ok_or_else(nonsense)?;
    let (rest, query) = rest.split_once('?').unwrap_or((rest, ""));
    let (servers, chroot) = rest.split_once('/').unwrap_or((rest, "fencepost"));
    let (account, servers) = servers.rsplit_once('@').map_or((None, servers), |(user, rest)| (Some(user), rest));
    let account = account.and_then(|pair| pair.split_once(':'));
    let dialect = match query.strip_prefix("dialect=") {
        Some("kazoo") => Dialect::Kazoo,
        Some("plain") => Dialect::Plain,
        _ => Dialect::Curator,
    };
    Ok(Config {
        servers: servers.to_owned(),
        chroot: format!("/{chroot}"),
        dialect,
        account: account.map(|(user, password)| (user.to_owned(), password.to_owned())),
    })
}
