//! The parsed `mysql://` URL: server, account, database, and the prefix of the tables.

use fencepost_core::Result;
use fencepost_net::{Account, Address, Tls, Url, bad};

const DEFAULT_PORT: u16 = 3306;

const OPTIONS: [&str; 10] = [
    "namespace",
    "mode",
    "key",
    "connections",
    "tls",
    "tls_ca",
    "tls_cert",
    "tls_key",
    "tls_server_name",
    "tls_insecure",
];

/// The longest namespace: names of tables have at most 64 characters.
const MAX_NAMESPACE: usize = 48;

/// How the server's name of a named lock is derived from the lock's name.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum KeyRule {
    /// A hash of database, namespace and name.
    #[default]
    Sha256,
    /// The name itself, as in `tooz` (`OpenStack`).
    Raw,
    /// The SHA-256 of the name in hexadecimal digits, as in Symfony.
    Sha256Hex,
    /// As `DistributedLock.MySql` (madelson) derives it.
    Madelson,
}

impl KeyRule {
    const ALL: [(&str, Self); 4] = [
        ("sha256", Self::Sha256),
        ("raw", Self::Raw),
        ("sha256hex", Self::Sha256Hex),
        ("madelson", Self::Madelson),
    ];
}

/// What a lock is on the server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Layout {
    /// A lease in Fencepost's own tables.
    Lease,
    /// A named lock of the server. At most this many connections wait or hold.
    Named { key: KeyRule, connections: usize },
}

/// The parsed URL.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Config {
    pub(crate) server: Address,
    pub(crate) account: Account,
    pub(crate) database: String,
    pub(crate) tls: Option<Tls>,
    /// The prefix of the tables, without the underscore.
    pub(crate) namespace: String,
    pub(crate) layout: Layout,
}

impl Config {
    pub(crate) const DEFAULT_NAMESPACE: &str = "fencepost";
    /// How many connections wait for or hold named locks, unless the URL says otherwise.
    const NAMED_CONNECTIONS: usize = 32;

    /// Returns the URL without user and password.
    pub(crate) fn location(&self) -> String {
        let mut options = Vec::new();
        if self.namespace != Self::DEFAULT_NAMESPACE {
            options.push(format!("namespace={}", self.namespace));
        }
        if let Layout::Named { key, .. } = self.layout {
            options.push("mode=named".to_owned());
            let word = KeyRule::ALL.iter().find(|(_, rule)| *rule == key && key != KeyRule::default());
            options.extend(word.map(|(word, _)| format!("key={word}")));
        }
        let query = if options.is_empty() { String::new() } else { format!("?{}", options.join("&")) };
        format!("mysql://{}/{}{query}", self.server, self.database)
    }
}

/// Parses a URL. Errors name the invalid part, but never one that may contain a password.
pub(crate) fn parse(url: &str) -> Result<Config> {
    let url = Url::parse("MySQL", "mysql://USER:PASSWORD@HOST:3306/DATABASE", url)?;
    if !["mysql", "mariadb"].contains(&url.scheme.as_str()) {
        return Err(url.unknown_scheme(&["mysql", "mariadb"], "mysql:// or mariadb://"));
    }
    let [server] = <[Address; 1]>::try_from(url.hosts(DEFAULT_PORT)?).map_err(|_| {
        bad("the MySQL URL names several hosts").with_hint(
            "name one server: locks on two servers do not exclude each other, and their clocks differ",
        )
    })?;
    let [database] = url.path.as_slice() else {
        return Err(bad("the MySQL URL must name one database").with_hint("write mysql://HOST/DATABASE"));
    };
    let (mut namespace, mut is_tls) = (Config::DEFAULT_NAMESPACE.to_owned(), false);
    for (key, value) in url.options() {
        match key {
            "namespace" => namespace = checked_namespace(value)?,
            "mode" | "key" | "connections" => {}
            "tls" => {
                is_tls = match value {
                    "true" => true,
                    "false" => false,
                    _ => return Err(url.unknown_value((key, value), &["true", "false"], "false")),
                }
            }
            _ => return Err(url.unknown_option(key, &OPTIONS)),
        }
    }
    let tls = url.tls(is_tls, "add tls=true")?;
    let (account, layout) = (url.account.clone(), layout(&url)?);
    Ok(Config { server, account, database: database.clone(), tls, namespace, layout })
}

/// Reads the options that say what a lock is on the server.
fn layout(url: &Url) -> Result<Layout> {
    let last = |wanted: &str| url.options().filter(|(key, _)| *key == wanted).last().map(|(_, value)| value);
    match last("mode") {
        None | Some("lease") => match ["key", "connections"].into_iter().find(|key| last(key).is_some()) {
            Some(key) => Err(bad(format!("option {key:?} needs mode=named"))),
            None => Ok(Layout::Lease),
        },
        Some("named") => {
            let word = last("key").unwrap_or("sha256");
            let found = KeyRule::ALL.iter().find(|(known, _)| *known == word);
            let unknown = || url.unknown_value(("key", word), &KeyRule::ALL.map(|(word, _)| word), "sha256");
            let key = found.ok_or_else(unknown)?.1;
            let number =
                last("connections").map_or(Some(Config::NAMED_CONNECTIONS), |value| value.parse().ok());
            let connections = number.filter(|number| (1..=1000).contains(number)).ok_or_else(|| {
                bad("option \"connections\" is not a number from 1 to 1000")
                    .with_hint("each lock that is held or waited for has a connection of its own")
            })?;
            Ok(Layout::Named { key, connections })
        }
        Some(mode) => Err(url.unknown_value(("mode", mode), &["lease", "named"], "lease")),
    }
}

/// Returns a namespace that is a prefix of table names on every system: some do not distinguish case there.
pub(crate) fn checked_namespace(namespace: &str) -> Result<String> {
    let is_allowed = |char: char| char.is_ascii_lowercase() || char.is_ascii_digit() || char == '_';
    let is_valid = (1..=MAX_NAMESPACE).contains(&namespace.len()) && namespace.chars().all(is_allowed);
    if is_valid {
        return Ok(namespace.to_owned());
    }
    Err(bad(format!("a namespace has 1 to {MAX_NAMESPACE} lower-case letters, digits or underscores"))
        .with_hint("the names of all tables begin with it"))
}

#[cfg(test)]
mod tests {
    use fencepost_core::ErrorKind;

    use super::*;

    #[test]
    fn all_parts() {
        let config = parse("mariadb://ann:p%40ss@db.example:3307/app?namespace=team_a&mode=lease").unwrap();
        assert_eq!(config.server, Address { host: "db.example".into(), port: 3307 });
        assert_eq!(config.account.user.as_deref(), Some("ann"));
        assert_eq!((config.database.as_str(), config.namespace.as_str()), ("app", "team_a"));
        assert_eq!(config.location(), "mysql://db.example:3307/app?namespace=team_a");
        assert!(!format!("{config:?}").contains("p@ss"), "{config:?}");
    }

    #[test]
    fn most_parts_are_optional() {
        let config = parse("mysql://h/app").unwrap();
        assert_eq!(config.location(), "mysql://h:3306/app");
        assert_eq!((config.tls, config.account), (None, Account::default()));
        let tls = parse("mysql://h/app?tls=true&tls_ca=/ca.pem").unwrap().tls.unwrap();
        assert_eq!(tls.ca, Some("/ca.pem".into()));
    }

    #[test]
    fn named_locks() {
        let named = |url: &str| parse(url).unwrap();
        let config = named("mysql://h/app?mode=named");
        assert_eq!(config.layout, Layout::Named { key: KeyRule::Sha256, connections: 32 });
        assert_eq!(config.location(), "mysql://h:3306/app?mode=named");
        let config = named("mysql://h/app?mode=named&namespace=x&key=raw&connections=4");
        assert_eq!(config.layout, Layout::Named { key: KeyRule::Raw, connections: 4 });
        assert_eq!(config.location(), "mysql://h:3306/app?namespace=x&mode=named&key=raw");
        assert_eq!(named("mysql://h/app?mode=lease").layout, Layout::Lease);
    }

    #[test]
    fn an_invalid_url_is_rejected_without_repeating_it() {
        let invalid = [
            "mysql:hunter2",
            "mysql://u:hunter2@h",
            "mysql://u:hunter2@h/a/b",
            "mysql://u:hunter2@a,b/app",
            "mysql://u:hunter2@h:port/app",
            "mysql://u:hunter2@h/app?foo=hunter2",
            "mysql://u:p?hunter2@h/app",
            "mysql://u:hunter2@h/app?namespace=",
            "mysql://u:hunter2@h/app?namespace=A",
            "mysql://u:hunter2@h/app?namespace=a`b",
            "mysql://u:hunter2@h/app?namespace=aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa",
            "mysql://u:hunter2@h/app?mode=other",
            "mysql://u:hunter2@h/app?key=raw",
            "mysql://u:hunter2@h/app?connections=2",
            "mysql://u:hunter2@h/app?mode=named&key=other",
            "mysql://u:hunter2@h/app?mode=named&connections=0",
            "mysql://u:hunter2@h/app?tls=maybe",
            "mysql://u:hunter2@h/app?tls_ca=hunter2",
            "mysqls://u:hunter2@h/app",
        ];
        for url in invalid {
            let error = parse(url).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::BadConfig, "{url}");
            assert!(!format!("{error:?}").contains("hunter2"), "{error:?}");
        }
    }
}
