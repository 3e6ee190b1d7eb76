//! Parses `zk://` URLs: servers, user, TLS, chroot and dialect.

use fencepost_core::{Error, Result};
use fencepost_net::{Address, Login, Tls, Url, bad};
use rustls::pki_types::ServerName;

use crate::node_name::is_allowed;

const PORT: u16 = 2181;
const DEFAULT_CHROOT: &str = "/fencepost";
const OPTIONS: [&str; 6] = ["dialect", "auth", "tls", "tls_ca", "tls_cert", "tls_key"];

/// The naming of contenders' nodes: which other libraries share the locks.
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

    /// Returns the value of the URL option.
    pub(crate) fn word(self) -> &'static str {
        match self {
            Self::Curator => "curator",
            Self::Kazoo => "kazoo",
            Self::Plain => "plain",
        }
    }

    fn parse(word: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|dialect| dialect.word() == word)
    }
}

/// User and password, and how they are presented to the servers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Auth {
    /// ZooKeeper's `digest` scheme: ACLs contain a hash of user and password; the servers have no list of users.
    Digest(Login),
    /// SASL with DIGEST-MD5: the servers have a list of users.
    Sasl(Login),
}

/// A parsed URL.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Config {
    pub(crate) servers: Vec<Address>,
    pub(crate) auth: Option<Auth>,
    pub(crate) tls: Option<Tls>,
    /// The node below which all nodes are. Begins with a slash and does not end with one.
    pub(crate) chroot: String,
    pub(crate) dialect: Dialect,
}

impl Config {
    /// Returns the URL without user and password.
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

/// Parses a URL. Errors name the part that is wrong, but never repeat one that may contain a password.
pub(crate) fn parse(url: &str) -> Result<Config> {
    let url = Url::parse("ZooKeeper", "zk://HOST:2181, or zk://USER:PASSWORD@HOST,HOST,HOST/CHROOT", url)?;
    if url.scheme != "zk" {
        return Err(url.unknown_scheme(&["zk"], "zk://, with ?tls=true for TLS"));
    }
    let (mut dialect, mut auth, mut has_tls) = (Dialect::default(), None, false);
    for (key, value) in url.options() {
        let unknown = |accepted: &[&str], default| url.unknown_value((key, value), accepted, default);
        match (key, value) {
            ("dialect", word) => {
                dialect = Dialect::parse(word)
                    .ok_or_else(|| unknown(&Dialect::ALL.map(Dialect::word), Dialect::default().word()))?;
            }
            ("auth", "digest") => auth = Some(Auth::Digest as fn(Login) -> Auth),
            ("auth", "sasl") => auth = Some(Auth::Sasl),
            ("auth", _) => return Err(unknown(&["digest", "sasl"], "digest")),
            ("tls", "true") => has_tls = true,
            ("tls", _) => return Err(unknown(&["true"], "no encryption")),
            _ => return Err(url.unknown_option(key, &OPTIONS)),
        }
    }
    let auth = match (url.login()?, auth) {
        (Some(login), auth) => Some(auth.unwrap_or(Auth::Digest)(check_login(login)?)),
        (None, None) => None,
        (None, Some(_)) => {
            let hint = "write zk://USER:PASSWORD@HOST, or remove the option";
            return Err(bad("the URL option \"auth\" requires user and password").with_hint(hint));
        }
    };
    let servers = url.hosts(PORT)?;
    let tls = url.tls(has_tls, "write ?tls=true for TLS")?;
    if let Some(tls) = &tls {
        check_tls(tls, &servers)?;
    }
    Ok(Config { servers, auth, tls, chroot: chroot(&url.path)?, dialect })
}

/// Rejects a colon in the user: servers take everything before the first colon as the user.
fn check_login(login: Login) -> Result<Login> {
    if login.user.contains(':') {
        return Err(bad("the user in the ZooKeeper URL must not contain a colon"));
    }
    Ok(login)
}

/// Rejects options that the driver does not support: it always verifies certificates, for the host name.
fn check_tls(tls: &Tls, servers: &[Address]) -> Result<()> {
    if tls.server_name.is_some() || tls.insecure {
        let message =
            "the URL options \"tls_server_name\" and \"tls_insecure\" are not supported with ZooKeeper";
        let hint =
            "use the host names in the certificates of the servers, and name their CA with tls_ca=FILE";
        return Err(bad(message).with_hint(hint));
    }
    if servers.iter().any(|server| ServerName::try_from(server.host.as_str()).is_err()) {
        return Err(bad("a host in the ZooKeeper URL cannot be the name in a certificate"));
    }
    Ok(())
}

fn chroot(path: &[String]) -> Result<String> {
    if path.is_empty() {
        return Ok(DEFAULT_CHROOT.into());
    }
    if path[0] == "zookeeper" {
        return Err(bad("the chroot /zookeeper is reserved for the servers"));
    }
    if path.iter().all(|node| is_node_name(node)) {
        Ok(format!("/{}", path.join("/")))
    } else {
        Err(invalid_path())
    }
}

/// Returns whether ZooKeeper allows a node with this name.
fn is_node_name(name: &str) -> bool {
    name.chars().all(is_allowed) && !matches!(name, "." | "..")
}

fn invalid_path() -> Error {
    bad("the path of the ZooKeeper URL is not a valid ZooKeeper path")
        .with_hint("the path is the node below which the locks are stored, such as /team/locks; no part of it may be . or ..")
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
    fn user_and_password() {
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
    fn invalid_urls_are_rejected_without_repeating_secrets() {
        let invalid = [
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
            "zk://u:hunter2@h?foo=hunter2",
            "zk://u:hunter2@h?hunter2!=1",
            "zk://u:p?hunter2@h",
            "zk://u:hunter2@h?dialect=other",
            "zk://u:p?dialect=hunter2@h",
            "zk://u:hunter2@h?auth=other",
            "zk://h?auth=digest",
            "zk://u:hunter2@h?tls=yes",
            "zk://u:hunter2@h?tls_ca=hunter2",
            "zk://u:hunter2@h?tls=true&tls_server_name=hunter2",
            "zk://u:hunter2@h?tls=true&tls_insecure=true",
            "zk://u:hunter2@a_b!?tls=true",
            "zk://%zz@h",
            "zks://u:hunter2@h",
        ];
        for url in invalid {
            let error = parse(url).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::BadConfig, "{url}");
            assert!(!format!("{error:?}").contains("hunter2"), "{error:?}");
        }
    }

    #[test]
    fn an_unknown_option_or_value_is_named_with_the_nearest_known_one() {
        for (query, message) in [
            ("foo=hunter2", "unknown option \"foo\" in the ZooKeeper URL"),
            ("dailect=hunter2", "unknown option \"dailect\" in the ZooKeeper URL; did you mean \"dialect\"?"),
            ("tls_cs=hunter2", "unknown option \"tls_cs\" in the ZooKeeper URL; did you mean \"tls_ca\"?"),
            (
                "dialect=curater",
                "unknown value \"curater\" of option \"dialect\" in the ZooKeeper URL; did you mean \"curator\"?",
            ),
            (
                "auth=slas",
                "unknown value \"slas\" of option \"auth\" in the ZooKeeper URL; did you mean \"sasl\"?",
            ),
            ("tls=yes", "unknown value \"yes\" of option \"tls\" in the ZooKeeper URL"),
        ] {
            let error = parse(&format!("zk://u:hunter2@h?{query}")).unwrap_err();
            assert_eq!(error.to_string(), message);
            assert!(!format!("{error:?}").contains("hunter2"), "{error:?}");
        }
        for option in OPTIONS {
            let value = match option {
                "dialect" => "kazoo",
                "auth" => "sasl",
                _ => "true",
            };
            assert!(parse(&format!("zk://u:p@h?tls=true&{option}={value}")).is_ok(), "{option}");
        }
        assert_eq!(
            parse("zks://h").unwrap_err().to_string(),
            "unknown scheme \"zks\" of the ZooKeeper URL; did you mean \"zk\"?"
        );
    }
}
