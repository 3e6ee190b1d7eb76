//! Parses a URL.

use std::time::Duration;

use fencepost_core::Result;
use fencepost_net::{Account, Secret, Url, bad, checked_namespace};

use super::{Config, Servers};
use crate::dialect::Dialect;
use crate::layout::Layout;

const PORT: u16 = 6379;
const SENTINEL_PORT: u16 = 26379;

const SCHEMES: [&str; 6] =
    ["redis", "rediss", "redis+sentinel", "rediss+sentinel", "redis+cluster", "rediss+cluster"];

const OPTIONS: [&str; 13] = [
    "namespace",
    "token_retention",
    "replicas",
    "dialect",
    "layout",
    "environment",
    "sentinel_user",
    "sentinel_password",
    "tls_ca",
    "tls_cert",
    "tls_key",
    "tls_server_name",
    "tls_insecure",
];

/// Parses a URL. Errors name the invalid part, but never a part that may contain a password.
pub(crate) fn parse(url: &str) -> Result<Config> {
    let url = Url::parse("Redis", "redis://HOST:6379, or redis://USER:PASSWORD@HOST/DB", url)?;
    let unknown_scheme = || {
        url.unknown_scheme(&SCHEMES, "redis://, redis+sentinel:// and redis+cluster://, and rediss… for TLS")
    };
    let (is_tls, kind) = match url.scheme.split_once('+').unwrap_or((&url.scheme, "")) {
        ("redis", kind) => (false, kind),
        ("rediss", kind) => (true, kind),
        _ => return Err(unknown_scheme()),
    };
    let tls = url.tls(is_tls, "write rediss:// for TLS")?;
    let mut options = Options::parse(&url)?;
    let mut path = url.path.iter();
    let servers = match kind {
        "" => one(&url)?,
        "sentinel" => {
            let primary = path.next().ok_or_else(|| {
                bad("the URL does not name the primary to ask the sentinels for")
                    .with_hint("write redis+sentinel://HOST,HOST/PRIMARY, for example …/mymaster")
            })?;
            let account = std::mem::take(&mut options.sentinel);
            Servers::Sentinel { sentinels: url.hosts(SENTINEL_PORT)?, primary: primary.clone(), account }
        }
        "cluster" => Servers::Cluster(url.hosts(PORT)?),
        _ => return Err(unknown_scheme()),
    };
    if options.sentinel != Account::default() {
        return Err(bad("sentinel_user and sentinel_password are options of redis+sentinel://"));
    }
    let db = match path.next() {
        None => 0,
        Some(db) => db.parse().map_err(|_| bad("the path of a Redis URL is the number of a database: /0"))?,
    };
    if path.next().is_some() {
        return Err(bad("the path of the Redis URL has too many parts"));
    }
    if kind == "cluster" && options.dialect.is_some() {
        return Err(bad("dialect= and layout= cannot be used with a Redis cluster")
            .with_hint("Fencepost's own keys would be in another slot than the lock: omit the option"));
    }
    if kind == "cluster" && db != 0 {
        return Err(bad("a Redis cluster has only database 0"));
    }
    Ok(Config {
        servers,
        account: url.account,
        db,
        tls,
        namespace: options.namespace.unwrap_or_else(|| Config::DEFAULT_NAMESPACE.into()),
        token_retention: options.token_retention.unwrap_or(Config::DEFAULT_RETENTION),
        replicas: options.replicas,
        dialect: options.dialect,
    })
}

fn one(url: &Url) -> Result<Servers> {
    match url.hosts(PORT)?.as_slice() {
        [one] => Ok(Servers::One(one.clone())),
        _ => Err(bad("redis:// names one server").with_hint(
            "several hosts are a cluster, redis+cluster://A,B, or sentinels, redis+sentinel://A,B/PRIMARY",
        )),
    }
}

/// The options of a URL, after the question mark.
#[derive(Default)]
struct Options {
    namespace: Option<String>,
    token_retention: Option<Duration>,
    replicas: u32,
    sentinel: Account,
    dialect: Option<Dialect>,
    environment: Option<String>,
}

impl Options {
    fn parse(url: &Url) -> Result<Self> {
        let mut options = Self::default();
        for (key, value) in url.options() {
            match key {
                "namespace" => options.namespace = Some(checked_namespace(value, ':', &Layout::KINDS)?),
                "token_retention" => options.token_retention = Some(duration(value)?),
                "replicas" => {
                    options.replicas = value.parse().map_err(|_| bad("replicas is a number: ?replicas=1"))?;
                }
                "dialect" | "layout" => options.set_dialect(url, (key, value))?,
                "environment" => options.environment = Some(value.into()),
                "sentinel_user" => options.sentinel.user = Some(value.into()),
                "sentinel_password" => options.sentinel.password = Some(Secret(value.into())),
                _ => return Err(url.unknown_option(key, &OPTIONS)),
            }
        }
        match (&mut options.dialect, options.environment.take()) {
            (Some(Dialect::Shedlock { environment }), Some(named)) => *environment = named,
            (_, Some(_)) => return Err(bad("environment is an option of dialect=shedlock")),
            (_, None) => {}
        }
        Ok(options)
    }

    fn set_dialect(&mut self, url: &Url, (key, value): (&str, &str)) -> Result<()> {
        let Some(dialect) = Dialect::named(key, value) else {
            let unknown =
                url.unknown_value((key, value), &Dialect::values(key), "Fencepost's own key format");
            let other = if key == "layout" { "dialect" } else { "layout" };
            return Err(match Dialect::named(other, value) {
                Some(_) => unknown.with_hint(format!("write {other}={value}")),
                None => unknown,
            });
        };
        if self.dialect.replace(dialect).is_some() {
            let hint = "leave out all but one of the options dialect= and layout=";
            return Err(bad("the Redis URL has two key formats for its locks").with_hint(hint));
        }
        Ok(())
    }
}

fn duration(text: &str) -> Result<Duration> {
    let unit = text.trim_start_matches(|char: char| char.is_ascii_digit());
    let number = text[..text.len() - unit.len()].parse::<u64>().ok();
    let seconds = match unit {
        "s" | "" => Some(1),
        "m" => Some(60),
        "h" => Some(3600),
        "d" => Some(24 * 3600),
        _ => None,
    };
    let total = number.zip(seconds).and_then(|(number, seconds)| number.checked_mul(seconds));
    match total {
        // Tokens are ordered by the servers' clocks afterwards: clocks must differ by less than the minimum.
        Some(seconds @ 60..=31_536_000) => Ok(Duration::from_secs(seconds)),
        _ => Err(bad("token_retention is a duration from 60s to 365d, such as 1h")),
    }
}

#[cfg(test)]
mod tests {
    use fencepost_core::ErrorKind;
    use fencepost_net::Address;

    use super::*;

    fn host(text: &str, port: u16) -> Address {
        Address { host: text.into(), port }
    }

    #[test]
    fn one_server() {
        let config = parse("redis://ann:p%40ss@db.example:6380/3?namespace=team:a").unwrap();
        assert_eq!(config.servers, Servers::One(host("db.example", 6380)));
        assert_eq!(config.account.user.as_deref(), Some("ann"));
        assert_eq!(config.account.password, Some(Secret("p@ss".into())));
        assert_eq!((config.db, config.namespace.as_str(), config.tls.is_some()), (3, "team:a", false));
        assert_eq!(config.location(), "redis://db.example:6380/3?namespace=team:a");
        let bare = parse("redis://localhost").unwrap();
        assert_eq!(bare.location(), "redis://localhost:6379");
        assert_eq!(parse("redis://[::1]:7/").unwrap().location(), "redis://[::1]:7");
        assert_eq!(parse("redis://:secret@h").unwrap().account.user, None);
    }

    #[test]
    fn several_servers() {
        let sentinel = parse("redis+sentinel://a,b:1/main/2?sentinel_password=x").unwrap();
        let Servers::Sentinel { sentinels, primary, account } = &sentinel.servers else {
            panic!("{sentinel:?}");
        };
        assert_eq!(sentinels, &[host("a", 26379), host("b", 1)]);
        assert_eq!((primary.as_str(), sentinel.db), ("main", 2));
        assert_eq!(account.password, Some(Secret("x".into())));
        let cluster = parse("rediss+cluster://a,b").unwrap();
        assert_eq!(cluster.servers, Servers::Cluster(vec![host("a", 6379), host("b", 6379)]));
        assert!(cluster.tls.is_some());
    }

    #[test]
    fn dialects() {
        assert_eq!(parse("redis://h").unwrap().dialect, None);
        for option in Dialect::options() {
            let config = parse(&format!("redis+sentinel://h/main?{option}")).unwrap();
            assert_eq!(config.dialect.as_ref().map(Dialect::option), Some(option.clone()));
            assert_eq!(config.location(), format!("redis+sentinel://h:26379/main?{option}"));
        }
        let shedlock = parse("redis://h?environment=test&dialect=shedlock").unwrap();
        assert_eq!(shedlock.dialect, Some(Dialect::Shedlock { environment: "test".into() }));
        let error = parse("redis://h?dialect=redlock").unwrap_err();
        assert!(error.hint().is_some_and(|hint| hint.contains("node-redlock")), "{error:?}");
    }

    #[test]
    fn encryption() {
        let url =
            "rediss://h?tls_ca=/ca.pem&tls_cert=/c.pem&tls_key=/k.pem&tls_server_name=n&tls_insecure=true";
        let tls = parse(url).unwrap().tls.unwrap();
        assert_eq!(tls.identity, Some(("/c.pem".into(), "/k.pem".into())));
        assert!(tls.insecure && tls.server_name.as_deref() == Some("n"));
    }

    #[test]
    fn an_invalid_url_is_rejected_without_quoting_it() {
        let invalid = [
            "redis:hunter2",
            "redis://",
            "redis://hunter2@",
            "redis://:hunter2@h:port",
            "redis://hunter2@a,b",
            "redis://hunter2@h/db",
            "redis://hunter2@h/0/1",
            "redis://hunter2@h?foo=hunter2",
            "redis://hunter2@h?hunter2!=1",
            "redis://:p?hunter2@h",
            "redis+sentinel://h/main?sentinel_password=p&hunter2",
            "redis+sentinel://h/main?sentinel_pasword=hunter2",
            "redis://hunter2@h?namespace=",
            "redis://hunter2@h?namespace={a}",
            "redis://hunter2@h?namespace=a:l",
            "redis://hunter2@h?namespace=a:peer:b",
            "redis://hunter2@h?token_retention=1s",
            "redis://hunter2@h?token_retention=hunter2",
            "redis://hunter2@h?replicas=-1",
            "redis://hunter2@h?tls_ca=x",
            "redis://hunter2@h?dialect=other",
            "redis://:p?dialect=hunter2@h",
            "redis://hunter2@h?layout=redis-py",
            "redis://hunter2@h?dialect=rslock&layout=raw",
            "redis://hunter2@h?environment=hunter2",
            "redis+cluster://hunter2@h?layout=raw",
            "redis://hunter2@h?sentinel_user=x",
            "redis://%zz@h",
            "redis://::1",
            "rediss://hunter2@h?tls_insecure=yes",
            "redis+sentinel://hunter2@h",
            "redis+cluster://hunter2@h/1",
            "redis+floppy://hunter2@h",
        ];
        for url in invalid {
            let error = parse(url).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::BadConfig, "{url}");
            assert!(!format!("{error:?}").contains("hunter2"), "{error:?}");
        }
    }

    #[test]
    fn an_unknown_option_or_value_is_named_with_the_nearest_known_one() {
        let cases = [
            ("redis://:hunter2@h?foo=hunter2", "unknown option \"foo\" in the Redis URL", ""),
            ("rediss://:hunter2@h?tls_cs=hunter2", "unknown option \"tls_cs\" in the Redis URL", "tls_ca"),
            (
                "redis+sentinel://h/m?sentinel_pasword=hunter2",
                "unknown option \"sentinel_pasword\" in the Redis URL",
                "sentinel_password",
            ),
            (
                "redis+cluster://:hunter2@h?namspace=hunter2",
                "unknown option \"namspace\" in the Redis URL",
                "namespace",
            ),
            (
                "redis://h?dialect=resync",
                "unknown value \"resync\" of option \"dialect\" in the Redis URL",
                "redsync",
            ),
            (
                "rediss://h?tls_insecure=ture",
                "unknown value \"ture\" of option \"tls_insecure\" in the Redis URL",
                "true",
            ),
            ("redsi://:hunter2@h", "unknown scheme \"redsi\" of the Redis URL", "redis"),
            ("redis+clustr://h", "unknown scheme \"redis+clustr\" of the Redis URL", "redis+cluster"),
        ];
        for (url, message, nearest) in cases {
            let error = parse(url).unwrap_err();
            let suggestion =
                if nearest.is_empty() { String::new() } else { format!("; did you mean {nearest:?}?") };
            assert_eq!(error.to_string(), format!("{message}{suggestion}"));
            assert!(!format!("{error:?}").contains("hunter2"), "{error:?}");
        }
        let error = parse("redis://h?layout=redis-py").unwrap_err();
        assert_eq!(error.hint(), Some("write dialect=redis-py"));
    }

    #[test]
    fn all_options_that_errors_list_are_known() {
        for option in OPTIONS {
            let value = match option {
                "token_retention" => "1h",
                "replicas" => "1",
                "dialect" => "shedlock",
                "environment" => "test&dialect=shedlock",
                "layout" => "raw",
                _ => "true",
            };
            assert!(parse(&format!("rediss+sentinel://h/m?{option}={value}")).is_ok(), "{option}");
        }
    }
}
