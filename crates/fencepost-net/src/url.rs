//! Parses `SCHEME://[USER[:PASSWORD]@]HOST[:PORT],HOST/PATH?KEY=VALUE&…`. Usual URL parsers do not accept several hosts.
//!
//! Errors name the part that is wrong but quote only schemes, keys of options and enumerated values: any other part may hold a
//! password.

mod errors;
mod namespace;

use std::fmt;

use fencepost_core::Result;

pub use self::errors::bad;
pub use self::namespace::checked_namespace;
use crate::{Account, Address, Login, Secret, Tls};

/// A URL in its parts, percent-decoded.
pub struct Url {
    /// The server's name in messages: `Redis`.
    server: &'static str,
    hosts: Vec<String>,
    options: Vec<(String, String)>,
    /// How many of the options, from the first, may be quoted in messages.
    quotable_options: usize,
    /// The part before `://`.
    pub scheme: String,
    /// The part before `@`.
    pub account: Account,
    /// The parts between the slashes after the hosts, without empty ones.
    pub path: Vec<String>,
}

impl Url {
    /// Parses the URL of a server that messages call `server`, such as `Redis`. `examples` are shown in the hint if the text is
    /// not a URL at all.
    ///
    /// # Errors
    /// If it is not a URL, or its percent-encoding is invalid.
    pub fn parse(server: &'static str, examples: &str, text: &str) -> Result<Self> {
        let (scheme, rest) = text.split_once("://").ok_or_else(|| {
            let article = if server.starts_with(['a', 'e', 'i', 'o', 'u']) { "an" } else { "a" };
            bad(format!("the URL of {article} {server} server lacks ://"))
                .with_hint(format!("write {examples}"))
        })?;
        let (rest, query) = rest.split_once('?').unwrap_or((rest, ""));
        let (account, rest) = rest.rsplit_once('@').unwrap_or(("", rest));
        let (hosts, path) = rest.split_once('/').unwrap_or((rest, ""));
        let decoded = |text: &str| decoded(server, text);
        let option = |pair: &str| {
            let (key, value) = pair.split_once('=').unwrap_or((pair, ""));
            Ok((key.to_owned(), decoded(value)?))
        };
        let (user, password) = match account.split_once(':') {
            Some((user, password)) => (user, Some(password)),
            None => (account, None),
        };
        Ok(Self {
            server,
            hosts: hosts.split(',').map(str::to_owned).collect(),
            options: parts(query, '&').map(option).collect::<Result<_>>()?,
            quotable_options: quotable_options(query),
            scheme: scheme.to_owned(),
            account: Account {
                user: Some(decoded(user)?).filter(|user| !user.is_empty()),
                password: password.map(decoded).transpose()?.map(Secret),
            },
            path: parts(path, '/').map(decoded).collect::<Result<_>>()?,
        })
    }

    /// Returns the hosts, at least one.
    ///
    /// # Errors
    /// If one of them is malformed.
    pub fn hosts(&self, default_port: u16) -> Result<Vec<Address>> {
        self.hosts.iter().map(|host| self.host(host, default_port)).collect()
    }

    fn host(&self, text: &str, default_port: u16) -> Result<Address> {
        let malformed = || {
            let hint =
                format!("write HOST or HOST:PORT, and an IPv6 address in brackets: [::1]:{default_port}");
            bad(format!("a host of the {} URL is malformed", self.server)).with_hint(hint)
        };
        let (host, port) = Address::parse(text, default_port).ok_or_else(malformed)?;
        let host = decoded(self.server, host)?;
        let is_invalid = |char: char| char.is_whitespace() || char.is_control();
        if host.is_empty() || host.contains(is_invalid) || (host.contains(':') && !text.starts_with('[')) {
            return Err(malformed());
        }
        Ok(Address { host, port })
    }

    /// Returns the account, for servers on which each account has both a user and a password.
    ///
    /// # Errors
    /// If the URL has only one of them.
    pub fn login(&self) -> Result<Option<Login>> {
        match self.account.clone() {
            Account { user: Some(user), password: Some(password) } => Ok(Some(Login { user, password })),
            Account { user: None, password: None } => Ok(None),
            _ => {
                let message = format!("the {} URL has only one of user and password", self.server);
                Err(bad(message).with_hint("write USER:PASSWORD@HOST, or neither of them"))
            }
        }
    }

    /// Returns the options after the question mark, except those that [`Url::tls`] reads.
    pub fn options(&self) -> impl Iterator<Item = (&str, &str)> {
        self.all_options().filter(|(key, _)| !Tls::OPTIONS.contains(key))
    }

    /// Returns the options about encryption if it `is_on`. `hint` says how to switch it on.
    ///
    /// # Errors
    /// If there are such options without encryption, or one has an unknown value.
    pub fn tls(&self, is_on: bool, hint: &str) -> Result<Option<Tls>> {
        if is_on {
            return Tls::from_url(self).map(Some);
        }
        match self.tls_options().next() {
            Some((key, _)) => Err(bad(format!("option {key:?} requires TLS")).with_hint(hint)),
            None => Ok(None),
        }
    }

    pub(crate) fn tls_options(&self) -> impl Iterator<Item = (&str, &str)> {
        self.all_options().filter(|(key, _)| Tls::OPTIONS.contains(key))
    }

    fn all_options(&self) -> impl Iterator<Item = (&str, &str)> {
        self.options.iter().map(|(key, value)| (key.as_str(), value.as_str()))
    }
}

impl fmt::Debug for Url {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Url").field("server", &self.server).finish_non_exhaustive()
    }
}

/// Returns how many options of the query, from the first, may be quoted. A `?` or `&` in a password that is not
/// percent-encoded makes the rest of the password look like options: none may be quoted if there is an `@`, which ends a
/// password, and none after an option that is a password.
fn quotable_options(query: &str) -> usize {
    if query.contains('@') {
        return 0;
    }
    let is_password = |pair: &str| pair.split('=').next().is_some_and(|key| key.contains("pass"));
    parts(query, '&').position(is_password).map_or(usize::MAX, |password| password + 1)
}

fn parts(text: &str, separator: char) -> impl Iterator<Item = &str> {
    text.split(separator).filter(|part| !part.is_empty())
}

/// Decodes percent-encoding.
fn decoded(server: &str, text: &str) -> Result<String> {
    let malformed =
        || bad(format!("a percent sign in the {server} URL is not followed by two hexadecimal digits"));
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
    String::from_utf8(bytes).map_err(|_| bad(format!("a part of the {server} URL is not UTF-8")))
}

#[cfg(test)]
mod tests {
    use fencepost_core::ErrorKind;

    use super::*;

    fn parse(text: &str) -> Result<Url> {
        Url::parse("etcd", "etcd://HOST:2379", text)
    }

    #[test]
    fn all_parts() {
        let url = parse("etcds://ann:p%40s%3as@a,[::1]:7//x%2Fy/z/?k=v%26&tls_ca=/ca&flag&k=w").unwrap();
        assert_eq!(url.scheme, "etcds");
        let ann = Account { user: Some("ann".into()), password: Some(Secret("p@s:s".into())) };
        assert_eq!(url.account, ann);
        let login = url.login().unwrap().unwrap();
        assert_eq!((login.user.as_str(), login.password), ("ann", Secret("p@s:s".into())));
        assert_eq!(Address::list(&url.hosts(2379).unwrap()), "a:2379,[::1]:7");
        assert_eq!(url.path, ["x/y", "z"]);
        let options: Vec<_> = url.options().collect();
        assert_eq!(options, [("k", "v&"), ("flag", ""), ("k", "w")]);
        assert_eq!(url.tls(true, "").unwrap().unwrap().ca, Some("/ca".into()));
    }

    #[test]
    fn most_parts_are_optional() {
        let url = parse("etcd://h").unwrap();
        assert_eq!((&url.account, url.path.len(), url.options().count()), (&Account::default(), 0, 0));
        assert_eq!(url.tls(false, "").unwrap(), None);
        assert_eq!(url.tls(true, "").unwrap(), Some(Tls::default()));
        assert_eq!(parse("etcd://:p@h").unwrap().account.user, None);
        assert_eq!(parse("etcd://u@h").unwrap().account.password, None);
        assert_eq!(url.login().unwrap(), None);
    }

    #[test]
    fn a_malformed_url_is_rejected_without_quoting_a_secret() {
        let parse = |text: &str| {
            let url = parse(text)?;
            url.hosts(1)?;
            url.login()?;
            url.tls(url.scheme == "etcds", "write etcds:// for TLS").map(|_| url)
        };
        let malformed = [
            "etcd:hunter2",
            "etcd://",
            "etcd://u:hunter2@",
            "etcd://hunter2@h",
            "etcd://:hunter2@h",
            "etcd://u:hunter2@a,,b",
            "etcd://u:hunter2@h:port",
            "etcd://::1",
            "etcd://[::1",
            "etcd://a%20hunter2",
            "etcd://hunter2%zz@h",
            "etcd://hunter2%ff@h",
            "etcd://h/hunter2%",
            "etcd://h?k=hunter2%4",
            "etcd://h?tls_ca=hunter2",
            "etcds://u:hunter2@h?tls_insecure=yes",
        ];
        for text in malformed {
            let error = parse(text).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::BadConfig, "{text}");
            assert!(!format!("{error:?}").contains("hunter2"), "{error:?}");
        }
        assert!(!format!("{:?}", parse("etcd://u:hunter2@h?k=hunter2").unwrap()).contains("hunter2"));
    }

    #[test]
    fn a_text_without_a_scheme_is_answered_with_an_example() {
        let error = parse("etcd").unwrap_err();
        assert_eq!(error.to_string(), "the URL of an etcd server lacks ://");
        assert_eq!(error.hint(), Some("write etcd://HOST:2379"));
    }
}
