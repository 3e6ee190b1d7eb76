//! What a `zk://` URL says: which servers, who we are there, and where the locks are.

use fencepost_core::{Error, Result};
use fencepost_net::{Address, Login, Tls, Url, bad};
use rustls::pki_types::ServerName;

use crate::node_name::is_allowed;

const PORT: u16 = 2181;
const DEFAULT_CHROOT: &str = "/fencepost";

/// How the nodes of locks are named, and so whose locks they are too.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Dialect {
    #[default]
    Curator,
    Kazoo,
    /// `lock-0000000000`, with the owner in the data.
    Plain,
}

impl Dialect {
    const ALL: [Self; 3] = [Self::Curator, Self::Kazoo, Self::Plain];

    /// What it is called in a URL.
    pub(crate) fn word(self) -> &'static str {
        match self {
            Self::Curator => "curator",
            Self::Kazoo => "kazoo",
            Self::Plain => "plain",
        }
    }

    fn named(word: &str) -> Result<Self> {
        let found = Self::ALL.into_iter().find(|dialect| dialect.word() == word);
        let hint = "dialect=curator, which is what you get without it, dialect=kazoo or dialect=plain";
        found.ok_or_else(|| bad("the URL names no dialect of locks that is known").with_hint(hint))
    }
}

/// Who we are, and how the servers are told.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Auth {
    /// ZooKeeper's own: the nodes know who made them, the servers know no users.
    Digest(Login),
    /// The servers have a list of users (DIGEST-MD5).
    Sasl(Login),
}

/// Everything a URL says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Config {
    pub(crate) servers: Vec<Address>,
    pub(crate) auth: Option<Auth>,
    pub(crate) tls: Option<Tls>,
    /// The node below which everything is. It begins with a slash and does not end with one.
    pub(crate) chroot: String,
    pub(crate) dialect: Dialect,
}

impl Config {
    /// The URL without user and password.
    pub(crate) fn location(&self) -> String {
        let dialect = Some(self.dialect).filter(|dialect| *dialect != Dialect::default());
        let options = [
            dialect.map(|dialect| format!("dialect={}", dialect.word())),
            self.tls.as_ref().map(|_| "tls=true".into()),
        ];
        let options: Vec<String> = options.into_iter().flatten().collect();
        let query = if options.is_empty() { String::new() } else { format!("?{}", options.join("&")) };
        format!("zk://{}{}{query}", Address::list(&self.servers), self.chroot)
    }
}

/// Reads a URL. What it complains about, it names, but never the part that may hold a password.
pub(crate) fn parse(url: &str) -> Result<Config> {
    let url = Url::read("ZooKeeper", "zk://HOST:2181, or zk://USER:PASSWORD@HOST,HOST,HOST/CHROOT", url)?;
    if url.scheme != "zk" {
        return Err(url.unknown_scheme("zk://, with ?tls=true for TLS"));
    }
    let (mut dialect, mut auth, mut is_tls) = (Dialect::default(), None, false);
    for (key, value) in url.options() {
        match (key, value) {
            ("dialect", word) => dialect = Dialect::named(word)?,
            ("auth", "digest") => auth = Some(Auth::Digest as fn(Login) -> Auth),
            ("auth", "sasl") => auth = Some(Auth::Sasl),
            ("auth", _) => return Err(bad("auth is digest, which is what you get without it, or sasl")),
            ("tls", "true") => is_tls = true,
            ("tls", _) => return Err(bad("tls is either absent or true")),
            _ => return Err(url.unknown_option("dialect, auth, tls=true, tls_ca, tls_cert and tls_key")),
        }
    }
    let auth = match (url.login()?, auth) {
        (Some(login), auth) => Some(auth.unwrap_or(Auth::Digest)(checked(login)?)),
        (None, None) => None,
        (None, Some(_)) => {
            let hint = "write zk://USER:PASSWORD@HOST, or leave it out";
            return Err(bad("auth makes no sense without user and password").with_hint(hint));
        }
    };
    let servers = url.hosts(PORT)?;
    let tls = url.tls(is_tls, "write ?tls=true for TLS")?;
    if let Some(tls) = &tls {
        check_encryption(tls, &servers)?;
    }
    Ok(Config { servers, auth, tls, chroot: chroot(&url.path)?, dialect })
}

/// Servers take what stands before the first colon for the user.
fn checked(login: Login) -> Result<Login> {
    if login.user.contains(':') {
        return Err(bad("the user in the ZooKeeper URL has a colon in its name"));
    }
    Ok(login)
}

/// The driver checks certificates by itself: for the host's name, and always.
fn check_encryption(tls: &Tls, servers: &[Address]) -> Result<()> {
    if tls.server_name.is_some() || tls.insecure {
        let message = "tls_server_name and tls_insecure are not possible with ZooKeeper";
        let hint = "name the servers as their certificates do, and say with tls_ca=FILE who signed them";
        return Err(bad(message).with_hint(hint));
    }
    if servers.iter().any(|server| ServerName::try_from(server.host.as_str()).is_err()) {
        return Err(bad("the name of a server in the ZooKeeper URL cannot be in a certificate"));
    }
    Ok(())
}

fn chroot(path: &[String]) -> Result<String> {
    if path.is_empty() {
        return Ok(DEFAULT_CHROOT.into());
    }
    if path[0] == "zookeeper" {
        return Err(bad("/zookeeper is where the servers keep what they need themselves"));
    }
    if path.iter().all(|node| is_node(node)) { Ok(format!("/{}", path.join("/"))) } else { Err(no_path()) }
}

/// Whether ZooKeeper would have a node of this name.
fn is_node(name: &str) -> bool {
    name.chars().all(is_allowed) && !matches!(name, "." | "..")
}

fn no_path() -> Error {
    bad("the path of the ZooKeeper URL is none that ZooKeeper could have")
        .with_hint("it is the node below which the locks are, such as /team/locks; no part of it is . or ..")
}

#[cfg(test)]
mod tests {
    use fencepost_core::ErrorKind;

    use super::*;

    #[test]
    fn one_server() {
        let config = parse("zk://h").unwrap();
        assert_eq!(config.servers, [Address { host: "h".into(), port: 2181 }]);
        assert_eq!((config.auth.as_ref(), config.tls.as_ref()), (None, None));
        assert_eq!((config.chroot.as_str(), config.dialect), ("/fencepost", Dialect::Curator));
        assert_eq!(config.location(), "zk://h:2181/fencepost");
        assert_eq!(parse("zk://h/").unwrap(), config);
    }

    #[test]
    fn several_servers_and_a_chroot() {
        let config = parse("zk://a,b:1,[::1]/team/locks%20of%20ours/?dialect=kazoo").unwrap();
        assert_eq!(config.chroot, "/team/locks of ours");
        assert_eq!(config.location(), "zk://a:2181,b:1,[::1]:2181/team/locks of ours?dialect=kazoo");
        for dialect in Dialect::ALL {
            assert_eq!(parse(&format!("zk://h?dialect={}", dialect.word())).unwrap().dialect, dialect);
        }
    }

    #[test]
    fn who_we_are() {
        let ann = || Login { user: "ann".into(), password: fencepost_net::Secret("p@ss:x".into()) };
        let url = "zk://ann:p%40ss:x@h";
        assert_eq!(parse(url).unwrap().auth, Some(Auth::Digest(ann())));
        assert_eq!(parse(&format!("{url}?auth=digest")).unwrap().auth, Some(Auth::Digest(ann())));
        let sasl = parse(&format!("{url}?auth=sasl")).unwrap();
        assert_eq!(sasl.auth, Some(Auth::Sasl(ann())));
        assert_eq!(sasl.location(), "zk://h:2181/fencepost");
        assert!(!format!("{sasl:?}").contains("p@ss"), "{sasl:?}");
    }

    #[test]
    fn encryption() {
        let config = parse("zk://h,[::1]?tls_ca=/ca.pem&tls_cert=/c.pem&tls_key=/k.pem&tls=true").unwrap();
        assert_eq!(config.location(), "zk://h:2181,[::1]:2181/fencepost?tls=true");
        let tls = config.tls.unwrap();
        assert_eq!(tls.identity, Some(("/c.pem".into(), "/k.pem".into())));
    }

    #[test]
    fn nonsense_is_refused_without_repeating_it() {
        let nonsense = [
            "zk:hunter2",
            "zk://",
            "zk://hunter2@h",
            "zk://:hunter2@h",
            "zk://u%3A:hunter2@h",
            "zk://u:hunter2@h:port",
            "zk://u:hunter2@h/./hunter2",
            "zk://u:hunter2@h/..",
            "zk://u:hunter2@h/a%2Fb",
            "zk://u:hunter2@h/a%00",
            "zk://u:hunter2@h/%EE%80%80",
            "zk://u:hunter2@h/zookeeper/quota",
            "zk://u:hunter2@h?hunter2=1",
            "zk://u:hunter2@h?dialect=hunter2",
            "zk://u:hunter2@h?auth=hunter2",
            "zk://h?auth=digest",
            "zk://u:hunter2@h?tls=hunter2",
            "zk://u:hunter2@h?tls_ca=hunter2",
            "zk://u:hunter2@h?tls=true&tls_server_name=hunter2",
            "zk://u:hunter2@h?tls=true&tls_insecure=true",
            "zk://u:hunter2@a_b!?tls=true",
            "zk://%zz@h",
            "zks://u:hunter2@h",
        ];
        for url in nonsense {
            let error = parse(url).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::BadConfig, "{url}");
            assert!(!format!("{error:?}").contains("hunter2"), "{error:?}");
        }
    }
}
