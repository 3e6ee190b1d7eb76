//! Reads `SCHEME://[USER[:PASSWORD]@]HOST[:PORT],HOST/PATH?KEY=VALUE&…`. It may name several hosts, which the usual
//! readers of URLs do not know.
//!
//! What it complains about, it names, but it never repeats a part of the URL: any of them may hold a password.

use std::fmt;

use fencepost_core::{Error, ErrorKind, Result};

use crate::{Account, Address, Login, Secret, Tls};

/// Keys begin with it; a pattern of rights must be able to name it.
const LONGEST_NAMESPACE: usize = 64;

/// A URL in its parts, with percent-encoding undone.
pub struct Url {
    storage: &'static str,
    hosts: Vec<String>,
    options: Vec<(String, String)>,
    /// What stands before `://`.
    pub scheme: String,
    /// What stands before `@`.
    pub account: Account,
    /// What stands between the slashes behind the hosts, without empty parts.
    pub path: Vec<String>,
}

impl Url {
    /// Reads a URL of a storage that is called this in messages, such as `Redis`. `examples` are shown to whom has written
    /// something else altogether.
    pub fn read(storage: &'static str, examples: &str, text: &str) -> Result<Self> {
        let (scheme, rest) = text.split_once("://").ok_or_else(|| {
            let article = if storage.starts_with(['a', 'e', 'i', 'o', 'u']) { "an" } else { "a" };
            bad(format!("the URL of {article} {storage} server lacks ://"))
                .with_hint(format!("write {examples}"))
        })?;
        let (rest, query) = rest.split_once('?').unwrap_or((rest, ""));
        let (account, rest) = rest.rsplit_once('@').unwrap_or(("", rest));
        let (hosts, path) = rest.split_once('/').unwrap_or((rest, ""));
        let decoded = |text: &str| decoded(storage, text);
        let option = |pair: &str| {
            let (key, value) = pair.split_once('=').unwrap_or((pair, ""));
            Ok((key.to_owned(), decoded(value)?))
        };
        let (user, password) = match account.split_once(':') {
            Some((user, password)) => (user, Some(password)),
            None => (account, None),
        };
        Ok(Self {
            storage,
            hosts: hosts.split(',').map(str::to_owned).collect(),
            options: parts(query, '&').map(option).collect::<Result<_>>()?,
            scheme: scheme.to_owned(),
            account: Account {
                user: Some(decoded(user)?).filter(|user| !user.is_empty()),
                password: password.map(decoded).transpose()?.map(Secret),
            },
            path: parts(path, '/').map(decoded).collect::<Result<_>>()?,
        })
    }

    /// The hosts, of which there is at least one.
    pub fn hosts(&self, default_port: u16) -> Result<Vec<Address>> {
        self.hosts.iter().map(|host| self.host(host, default_port)).collect()
    }

    fn host(&self, text: &str, default_port: u16) -> Result<Address> {
        let malformed = || {
            let hint =
                format!("write HOST or HOST:PORT, and an IPv6 address in brackets: [::1]:{default_port}");
            bad(format!("a host of the {} URL is malformed", self.storage)).with_hint(hint)
        };
        let (host, port) = Address::read(text, default_port).ok_or_else(malformed)?;
        let host = decoded(self.storage, host)?;
        let is_odd = |char: char| char.is_whitespace() || char.is_control();
        if host.is_empty() || host.contains(is_odd) || (host.contains(':') && !text.starts_with('[')) {
            return Err(malformed());
        }
        Ok(Address { host, port })
    }

    /// The account, for storages where everybody has both a user and a password.
    pub fn login(&self) -> Result<Option<Login>> {
        match self.account.clone() {
            Account { user: Some(user), password: Some(password) } => Ok(Some(Login { user, password })),
            Account { user: None, password: None } => Ok(None),
            _ => {
                let message = format!("the {} URL has only one of user and password", self.storage);
                Err(bad(message).with_hint("write USER:PASSWORD@HOST, or neither of them"))
            }
        }
    }

    /// The options behind the question mark, but for those that [`Url::tls`] reads.
    pub fn options(&self) -> impl Iterator<Item = (&str, &str)> {
        self.all_options().filter(|(key, _)| !Tls::OPTIONS.contains(key))
    }

    /// What the options say about encryption, if it `is_on`. `hint` says how it is switched on.
    pub fn tls(&self, is_on: bool, hint: &str) -> Result<Option<Tls>> {
        let mut options = self.all_options().filter(|(key, _)| Tls::OPTIONS.contains(key));
        if is_on {
            return Tls::read(options).map(Some);
        }
        match options.next() {
            Some((key, _)) => Err(bad(format!("{key} makes no sense without TLS")).with_hint(hint)),
            None => Ok(None),
        }
    }

    fn all_options(&self) -> impl Iterator<Item = (&str, &str)> {
        self.options.iter().map(|(key, value)| (key.as_str(), value.as_str()))
    }

    /// A complaint about the scheme. `known` are those that there are.
    pub fn unknown_scheme(&self, known: &str) -> Error {
        let message = format!("the scheme of the {} URL is unknown", self.storage);
        bad(message).with_hint(format!("known are {known}"))
    }

    /// A complaint about an option. `known` are those that there are.
    pub fn unknown_option(&self, known: &str) -> Error {
        let message = format!("an option of the {} URL is unknown", self.storage);
        bad(message).with_hint(format!("known are {known}"))
    }
}

impl fmt::Debug for Url {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Url").field("storage", &self.storage).finish_non_exhaustive()
    }
}

/// A complaint about what a URL says.
pub fn bad(message: impl Into<String>) -> Error {
    Error::new(ErrorKind::BadConfig, message)
}

/// A namespace whose keys cannot be taken for those of another one: behind a `separator` there is none of the `kinds` of
/// keys that a namespace has.
pub fn checked_namespace(namespace: &str, separator: char, kinds: &[&str]) -> Result<String> {
    let is_fine = |char: char| char.is_ascii_alphanumeric() || "-_.:/".contains(char);
    if namespace.is_empty() || namespace.len() > LONGEST_NAMESPACE || !namespace.chars().all(is_fine) {
        return Err(bad(format!(
            "a namespace has 1 to {LONGEST_NAMESPACE} letters, digits or any of - _ . : /"
        )));
    }
    if namespace.split(separator).skip(1).any(|part| kinds.contains(&part)) {
        let sign = if separator == ':' { "colon" } else { "slash" };
        let hint = format!("behind a {sign} there is none of {}", kinds.join(", "));
        return Err(bad("the namespace could be taken for keys of another one").with_hint(hint));
    }
    Ok(namespace.to_owned())
}

fn parts(text: &str, separator: char) -> impl Iterator<Item = &str> {
    text.split(separator).filter(|part| !part.is_empty())
}

/// Undoes percent-encoding.
fn decoded(storage: &str, text: &str) -> Result<String> {
    let malformed =
        || bad(format!("a percent sign in the {storage} URL is not followed by two hexadecimal digits"));
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
    String::from_utf8(bytes).map_err(|_| bad(format!("a part of the {storage} URL is not UTF-8")))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Result<Url> {
        Url::read("etcd", "etcd://HOST:2379", text)
    }

    #[test]
    fn all_parts() {
        let url = read("etcds://ann:p%40s%3as@a,[::1]:7//x%2Fy/z/?k=v%26&tls_ca=/ca&flag&k=w").unwrap();
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
    fn most_parts_may_be_left_out() {
        let url = read("etcd://h").unwrap();
        assert_eq!((&url.account, url.path.len(), url.options().count()), (&Account::default(), 0, 0));
        assert_eq!(url.tls(false, "").unwrap(), None);
        assert_eq!(url.tls(true, "").unwrap(), Some(Tls::default()));
        assert_eq!(read("etcd://:p@h").unwrap().account.user, None);
        assert_eq!(read("etcd://u@h").unwrap().account.password, None);
        assert_eq!(url.login().unwrap(), None);
    }

    #[test]
    fn nonsense_is_refused_without_repeating_it() {
        let read = |text: &str| {
            let url = read(text)?;
            url.hosts(1)?;
            url.login()?;
            url.tls(url.scheme == "etcds", "write etcds:// for TLS").map(|_| url)
        };
        let nonsense = [
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
            "etcds://h?tls_insecure=hunter2",
        ];
        for text in nonsense {
            let error = read(text).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::BadConfig, "{text}");
            assert!(!format!("{error:?}").contains("hunter2"), "{error:?}");
        }
        assert!(!format!("{:?}", read("etcd://u:hunter2@h?k=hunter2").unwrap()).contains("hunter2"));
    }

    #[test]
    fn complaints_name_the_storage() {
        let error = read("etcd").unwrap_err();
        assert_eq!(error.to_string(), "the URL of an etcd server lacks ://");
        assert_eq!(error.hint(), Some("write etcd://HOST:2379"));
        let url = read("etcd://h:").unwrap();
        assert_eq!(url.unknown_scheme("a").to_string(), "the scheme of the etcd URL is unknown");
        assert_eq!(url.unknown_option("a and b").hint(), Some("known are a and b"));
    }

    #[test]
    fn a_namespace_is_not_inside_another_one() {
        let check = |namespace: &str| checked_namespace(namespace, '/', &["lock", "cell"]);
        for fine in ["a", "lock", "team/a", "a/locks", "a:lock", "A-1_2.3"] {
            assert_eq!(check(fine).unwrap(), fine);
        }
        for wrong in ["", "a b", "ä", "{a}", "a/lock", "a/cell/b", &"a".repeat(65)] {
            assert_eq!(check(wrong).unwrap_err().kind(), ErrorKind::BadConfig, "{wrong}");
        }
    }
}
