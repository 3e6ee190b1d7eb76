//! The parsed `etcd://` URL: members, credentials, and the layout of the keys.

use fencepost_core::Result;
use fencepost_net::{Address, Login, Tls, Url, bad, checked_namespace};

const DEFAULT_PORT: u16 = 2379;

const OPTIONS: [&str; 7] =
    ["namespace", "layout", "tls_ca", "tls_cert", "tls_key", "tls_server_name", "tls_insecure"];

/// The path segments that follow the namespace in keys. `a/lock` is not a valid namespace, because `a/lock/cell` is a lock
/// in the namespace `a`.
const KEY_KINDS: [&str; 4] = ["about", "cell", "left", "lock"];

/// The layout of the keys of a lock.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Layout {
    /// Below the namespace; the keys of two locks never overlap.
    #[default]
    Own,
    /// Below the name of the lock, as `etcdctl lock` and the official client store them.
    Raw,
    /// One key with the name of the lock.
    Single,
}

impl Layout {
    const ALL: [Self; 3] = [Self::Own, Self::Raw, Self::Single];

    /// Returns its value of the URL option `layout`; `None` for the default.
    pub(crate) fn word(self) -> Option<&'static str> {
        match self {
            Self::Own => None,
            Self::Raw => Some("raw"),
            Self::Single => Some("single"),
        }
    }

    fn named(word: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|layout| layout.word() == Some(word))
    }
}

/// The parsed URL.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Config {
    pub(crate) members: Vec<Address>,
    pub(crate) login: Option<Login>,
    pub(crate) tls: Option<Tls>,
    /// The prefix of Fencepost's own keys, without the slash.
    pub(crate) namespace: String,
    pub(crate) layout: Layout,
}

impl Config {
    pub(crate) const DEFAULT_NAMESPACE: &str = "fencepost";

    /// Returns the URL without user and password.
    pub(crate) fn location(&self) -> String {
        let scheme = if self.tls.is_some() { "etcds" } else { "etcd" };
        let namespace = Some(&self.namespace).filter(|namespace| *namespace != Self::DEFAULT_NAMESPACE);
        let options = [
            namespace.map(|namespace| format!("namespace={namespace}")),
            self.layout.word().map(|word| format!("layout={word}")),
        ];
        let options: Vec<String> = options.into_iter().flatten().collect();
        let query = if options.is_empty() { String::new() } else { format!("?{}", options.join("&")) };
        format!("{scheme}://{}{query}", Address::list(&self.members))
    }
}

/// Parses a URL. Errors name the invalid part, but never one that may contain a password.
pub(crate) fn parse(url: &str) -> Result<Config> {
    let url = Url::parse("etcd", "etcd://HOST:2379, or etcd://USER:PASSWORD@HOST,HOST,HOST", url)?;
    let is_tls = match url.scheme.as_str() {
        "etcd" => false,
        "etcds" => true,
        _ => return Err(url.unknown_scheme(&["etcd", "etcds"], "etcd://, and etcds:// for TLS")),
    };
    if !url.path.is_empty() {
        let hint = "to set the prefix of all keys, use ?namespace=NAME";
        return Err(bad("the etcd URL has a path").with_hint(hint));
    }
    let mut config = Config {
        members: url.hosts(DEFAULT_PORT)?,
        login: url.login()?,
        tls: url.tls(is_tls, "write etcds:// for TLS")?,
        namespace: Config::DEFAULT_NAMESPACE.into(),
        layout: Layout::default(),
    };
    for (key, value) in url.options() {
        match key {
            "namespace" => config.namespace = checked_namespace(value, '/', &KEY_KINDS)?,
            "layout" => {
                let unknown =
                    || url.unknown_value((key, value), &["raw", "single"], "Fencepost's own layout");
                config.layout = Layout::named(value).ok_or_else(unknown)?;
            }
            _ => return Err(url.unknown_option(key, &OPTIONS)),
        }
    }
    Ok(config)
}

#[cfg(test)]
mod tests {
    use fencepost_core::ErrorKind;

    use super::*;

    #[test]
    fn one_member() {
        let config = parse("etcd://ann:p%40ss@db.example:2380?namespace=team/a").unwrap();
        assert_eq!(config.members, [Address { host: "db.example".into(), port: 2380 }]);
        let login = config.login.as_ref().unwrap();
        assert_eq!((login.user.as_str(), login.password.0.as_str()), ("ann", "p@ss"));
        assert_eq!((config.namespace.as_str(), config.layout), ("team/a", Layout::Own));
        assert_eq!(config.location(), "etcd://db.example:2380?namespace=team/a");
        assert!(!format!("{config:?}").contains("p@ss"), "{config:?}");
    }

    #[test]
    fn several_members() {
        let config = parse("etcds://a,b:1,[::1]/?tls_ca=/ca.pem").unwrap();
        assert_eq!(config.location(), "etcds://a:2379,b:1,[::1]:2379");
        assert_eq!(config.tls.unwrap().ca, Some("/ca.pem".into()));
        assert_eq!((config.login, config.namespace.as_str()), (None, "fencepost"));
    }

    #[test]
    fn layouts() {
        for (word, layout) in [("raw", Layout::Raw), ("single", Layout::Single)] {
            let config = parse(&format!("etcd://h?namespace=x&layout={word}")).unwrap();
            assert_eq!(config.layout, layout);
            assert_eq!(config.location(), format!("etcd://h:2379?namespace=x&layout={word}"));
        }
    }

    #[test]
    fn an_invalid_url_is_rejected_without_repeating_it() {
        let invalid = [
            "etcd:hunter2",
            "etcd://",
            "etcd://hunter2@h",
            "etcd://:hunter2@h",
            "etcd://u:hunter2@",
            "etcd://u:hunter2@h:port",
            "etcd://u:hunter2@h/path",
            "etcd://u:hunter2@h?foo=hunter2",
            "etcd://u:hunter2@h?hunter2!=1",
            "etcd://u:p?hunter2@h",
            "etcd://u:hunter2@h?namespace=",
            "etcd://u:hunter2@h?namespace={a}",
            "etcd://u:hunter2@h?namespace=a/lock",
            "etcd://u:hunter2@h?namespace=a/cell/b",
            "etcd://u:hunter2@h?layout=other",
            "etcd://u:p?layout=hunter2@h",
            "etcd://u:hunter2@h?layout",
            "etcd://u:hunter2@h?tls_ca=hunter2",
            "etcds://u:hunter2@h?tls_insecure=yes",
            "etcd://%zz@h",
            "etcd+floppy://u:hunter2@h",
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
            ("foo=hunter2", "unknown option \"foo\" in the etcd URL"),
            ("layuot=hunter2", "unknown option \"layuot\" in the etcd URL; did you mean \"layout\"?"),
            ("tls_cs=hunter2", "unknown option \"tls_cs\" in the etcd URL; did you mean \"tls_ca\"?"),
            (
                "layout=singel",
                "unknown value \"singel\" of option \"layout\" in the etcd URL; did you mean \"single\"?",
            ),
        ] {
            let error = parse(&format!("etcds://u:hunter2@h?{query}")).unwrap_err();
            assert_eq!(error.to_string(), message);
            assert!(!format!("{error:?}").contains("hunter2"), "{error:?}");
        }
        for option in OPTIONS {
            let value = if option == "layout" { "raw" } else { "true" };
            assert!(parse(&format!("etcds://h?{option}={value}")).is_ok(), "{option}");
        }
        assert_eq!(
            parse("etcdd://h").unwrap_err().to_string(),
            "unknown scheme \"etcdd\" of the etcd URL; did you mean \"etcd\"?"
        );
    }
}
