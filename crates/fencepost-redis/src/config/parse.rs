//! Reads a URL. It may name several hosts, which the usual readers of URLs do not know.

use std::path::PathBuf;
use std::time::Duration;

use fencepost_core::{Error, ErrorKind, Result};

use super::{Account, Address, Config, Secret, Servers, Tls};
use crate::dialect::Dialect;
use crate::layout::Layout;

const PORT: u16 = 6379;
const SENTINEL_PORT: u16 = 26379;
/// Keys and channels begin with it; a pattern of rights must be able to name it.
const LONGEST_NAMESPACE: usize = 64;

/// Reads a URL. What it complains about, it names, but never the part that may hold a password.
pub(crate) fn parse(url: &str) -> Result<Config> {
    let (scheme, rest) = url.split_once("://").ok_or_else(|| {
        bad("the URL of a Redis server lacks ://")
            .with_hint("write redis://HOST:6379, or redis://USER:PASSWORD@HOST/DB")
    })?;
    let (rest, query) = rest.split_once('?').unwrap_or((rest, ""));
    let (account, rest) = match rest.rsplit_once('@') {
        Some((account, rest)) => (read_account(account)?, rest),
        None => (Account::default(), rest),
    };
    let (hosts, path) = rest.split_once('/').unwrap_or((rest, ""));
    let (is_tls, kind) = match scheme.split_once('+').unwrap_or((scheme, "")) {
        ("redis", kind) => (false, kind),
        ("rediss", kind) => (true, kind),
        _ => return Err(unknown_scheme()),
    };
    let mut options = Options { tls: is_tls.then(Tls::default), ..Options::default() };
    for pair in query.split('&').filter(|pair| !pair.is_empty()) {
        options.read(pair)?;
    }
    let mut path = path.split('/').filter(|part| !part.is_empty());
    let servers = match kind {
        "" => match addresses(hosts, PORT)?.as_slice() {
            [one] => Servers::One(one.clone()),
            _ => {
                return Err(bad("redis:// names one server").with_hint(
                    "several hosts are a cluster, redis+cluster://A,B, or sentinels, redis+sentinel://A,B/PRIMARY",
                ));
            }
        },
        "sentinel" => {
            let primary = path.next().ok_or_else(|| {
                bad("the URL does not say which primary to ask the sentinels for")
                    .with_hint("write redis+sentinel://HOST,HOST/PRIMARY, for example …/mymaster")
            })?;
            let account = std::mem::take(&mut options.sentinel);
            Servers::Sentinel {
                sentinels: addresses(hosts, SENTINEL_PORT)?,
                primary: decode(primary)?,
                account,
            }
        }
        "cluster" => Servers::Cluster(addresses(hosts, PORT)?),
        _ => return Err(unknown_scheme()),
    };
    if options.sentinel != Account::default() {
        return Err(bad("sentinel_user and sentinel_password belong to redis+sentinel://"));
    }
    let db = match path.next() {
        None => 0,
        Some(db) => db.parse().map_err(|_| bad("the path of a Redis URL is the number of a database: /0"))?,
    };
    if path.next().is_some() {
        return Err(bad("the path of the Redis URL has too many parts"));
    }
    if kind == "cluster" && options.dialect.is_some() {
        return Err(bad("locks in another library's form cannot be in a Redis cluster").with_hint(
            "what is kept beside them would be in another slot than the lock: leave out dialect= and layout=",
        ));
    }
    let dialect = match (options.dialect, options.environment) {
        (Some(Dialect::Shedlock { .. }), Some(environment)) => Some(Dialect::Shedlock { environment }),
        (_, Some(_)) => return Err(bad("environment belongs to dialect=shedlock")),
        (dialect, None) => dialect,
    };
    if kind == "cluster" && db != 0 {
        return Err(bad("a Redis cluster has only database 0"));
    }
    Ok(Config {
        servers,
        account,
        db,
        tls: options.tls,
        namespace: options.namespace.unwrap_or_else(|| Config::DEFAULT_NAMESPACE.into()),
        token_retention: options.token_retention.unwrap_or(Config::DEFAULT_RETENTION),
        replicas: options.replicas,
        dialect,
    })
}

/// What stands behind the question mark.
#[derive(Default)]
struct Options {
    tls: Option<Tls>,
    namespace: Option<String>,
    token_retention: Option<Duration>,
    replicas: u32,
    sentinel: Account,
    dialect: Option<Dialect>,
    environment: Option<String>,
}

impl Options {
    fn read(&mut self, pair: &str) -> Result<()> {
        let (key, value) = pair.split_once('=').unwrap_or((pair, ""));
        let value = decode(value)?;
        match key {
            "namespace" => self.namespace = Some(checked_namespace(value)?),
            "token_retention" => self.token_retention = Some(duration(&value)?),
            "replicas" => {
                self.replicas = value.parse().map_err(|_| bad("replicas is a number: ?replicas=1"))?;
            }
            "dialect" | "layout" => self.speak(Dialect::named(key, &value))?,
            "environment" => self.environment = Some(value),
            "sentinel_user" => self.sentinel.user = Some(value),
            "sentinel_password" => self.sentinel.password = Some(Secret(value)),
            "tls_ca" => self.tls(key)?.ca = Some(value.into()),
            "tls_cert" => self.identity(key)?.0 = value.into(),
            "tls_key" => self.identity(key)?.1 = value.into(),
            "tls_server_name" => self.tls(key)?.server_name = Some(value),
            "tls_insecure" if value == "true" => self.tls(key)?.insecure = true,
            "tls_insecure" => return Err(bad("tls_insecure is either absent or true")),
            _ => {
                return Err(bad("an option of the Redis URL is unknown").with_hint(
                    "known are namespace, token_retention, replicas, dialect, layout, environment, sentinel_user, \
                     sentinel_password, tls_ca, tls_cert, tls_key, tls_server_name and tls_insecure=true",
                ));
            }
        }
        Ok(())
    }

    fn speak(&mut self, dialect: Option<Dialect>) -> Result<()> {
        if dialect.is_none() || self.dialect.is_some() {
            let known = Dialect::options().join(", ");
            let hint = format!("one of {known}; without it they have Fencepost's own form");
            return Err(bad("the URL names no form of locks that is known, or two of them").with_hint(hint));
        }
        self.dialect = dialect;
        Ok(())
    }

    fn tls(&mut self, key: &str) -> Result<&mut Tls> {
        let hint = "write rediss:// for TLS";
        self.tls.as_mut().ok_or_else(|| bad(format!("{key} makes no sense without TLS")).with_hint(hint))
    }

    fn identity(&mut self, key: &str) -> Result<&mut (PathBuf, PathBuf)> {
        Ok(self.tls(key)?.identity.get_or_insert_default())
    }
}

fn read_account(text: &str) -> Result<Account> {
    let (user, password) = match text.split_once(':') {
        Some((user, password)) => (user, Some(password)),
        None => (text, None),
    };
    let user = decode(user)?;
    Ok(Account {
        user: (!user.is_empty()).then_some(user),
        password: password.map(decode).transpose()?.map(Secret),
    })
}

fn addresses(hosts: &str, port: u16) -> Result<Vec<Address>> {
    hosts.split(',').map(|host| address(host, port)).collect()
}

fn address(text: &str, default_port: u16) -> Result<Address> {
    let malformed = || {
        bad("a host of the Redis URL is malformed")
            .with_hint("write HOST or HOST:PORT, and an IPv6 address in brackets: [::1]:6379")
    };
    let (host, port) = match text.strip_prefix('[') {
        Some(rest) => {
            let (host, port) = rest.split_once(']').ok_or_else(malformed)?;
            (host, port.strip_prefix(':').or_else(|| port.is_empty().then_some("")))
        }
        None => match text.split_once(':') {
            Some((host, port)) => (host, Some(port)),
            None => (text, Some("")),
        },
    };
    let port = match port.ok_or_else(malformed)? {
        "" => default_port,
        port => port.parse().map_err(|_| malformed())?,
    };
    let host = decode(host)?;
    let is_odd = |char: char| char.is_whitespace() || char.is_control();
    if host.is_empty() || host.contains(is_odd) || (host.contains(':') && !text.starts_with('[')) {
        return Err(malformed());
    }
    Ok(Address { host, port })
}

fn checked_namespace(namespace: String) -> Result<String> {
    let is_fine = |char: char| char.is_ascii_alphanumeric() || "-_.:/".contains(char);
    if namespace.is_empty() || namespace.len() > LONGEST_NAMESPACE || !namespace.chars().all(is_fine) {
        return Err(bad(format!(
            "a namespace has 1 to {LONGEST_NAMESPACE} letters, digits or any of - _ . : /"
        )));
    }
    if namespace.split(':').skip(1).any(|part| Layout::KINDS.contains(&part)) {
        let message = "the namespace could be taken for keys of another one";
        let hint = format!("behind a colon there is none of {}", Layout::KINDS.join(", "));
        return Err(bad(message).with_hint(hint));
    }
    Ok(namespace)
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
        // Long enough that the servers' clocks, which keep the order after that, differ by less.
        Some(seconds @ 60..=31_536_000) => Ok(Duration::from_secs(seconds)),
        _ => Err(bad("token_retention is a time from 60s to 365d, such as 1h")),
    }
}

/// Undoes percent-encoding.
fn decode(text: &str) -> Result<String> {
    let malformed = || bad("a percent sign in the Redis URL is not followed by two hexadecimal digits");
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((byte, tail)) = rest.split_first() {
        if *byte == b'%' {
            let digits = tail.get(..2).and_then(|digits| std::str::from_utf8(digits).ok());
            let decoded =
                digits.and_then(|digits| u8::from_str_radix(digits, 16).ok()).ok_or_else(malformed)?;
            bytes.push(decoded);
            rest = &tail[2..];
        } else {
            bytes.push(*byte);
            rest = tail;
        }
    }
    String::from_utf8(bytes).map_err(|_| bad("a part of the Redis URL is not UTF-8"))
}

fn unknown_scheme() -> Error {
    bad("the scheme of the Redis URL is unknown")
        .with_hint("known are redis://, redis+sentinel:// and redis+cluster://, and rediss… for TLS")
}

fn bad(message: impl Into<String>) -> Error {
    Error::new(ErrorKind::BadConfig, message)
}

#[cfg(test)]
mod tests {
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
        assert!(error.hint().is_some_and(|hint| hint.contains("dialect=node-redlock")), "{error:?}");
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
    fn nonsense_is_refused_without_repeating_it() {
        let nonsense = [
            "redis:hunter2",
            "redis://",
            "redis://hunter2@",
            "redis://:hunter2@h:port",
            "redis://hunter2@a,b",
            "redis://hunter2@h/db",
            "redis://hunter2@h/0/1",
            "redis://hunter2@h?hunter2=1",
            "redis://hunter2@h?namespace=",
            "redis://hunter2@h?namespace={a}",
            "redis://hunter2@h?namespace=a:l",
            "redis://hunter2@h?namespace=a:peer:b",
            "redis://hunter2@h?token_retention=1s",
            "redis://hunter2@h?token_retention=hunter2",
            "redis://hunter2@h?replicas=-1",
            "redis://hunter2@h?tls_ca=x",
            "redis://hunter2@h?dialect=hunter2",
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
        for url in nonsense {
            let error = parse(url).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::BadConfig, "{url}");
            assert!(!format!("{error:?}").contains("hunter2"), "{error:?}");
        }
    }
}
