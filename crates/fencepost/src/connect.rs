//! The only list of backends: which URL scheme is which backend, and which feature it needs.

use fencepost_core::{Client, Error, ErrorKind, Finding, Options, Result, nearest};

/// The URL schemes, and the feature that enables the backend of each.
const SCHEMES: [(&str, &str); 15] = [
    ("etcd", "etcd"),
    ("etcds", "etcd"),
    ("mariadb", "mysql"),
    ("memory", "memory"),
    ("mysql", "mysql"),
    ("postgres", "postgres"),
    ("postgresql", "postgres"),
    ("redis", "redis"),
    ("rediss", "redis"),
    ("redis+cluster", "redis"),
    ("redis+sentinel", "redis"),
    ("rediss+cluster", "redis"),
    ("rediss+sentinel", "redis"),
    ("sqlite", "sqlite"),
    ("zk", "zookeeper"),
];

/// Schemes of backends that are planned, so that they are not mistaken for misspelt ones.
const PLANNED: [&str; 1] = ["redlock"];

/// The longest scheme that an error quotes.
const MAX_SCHEME_BYTES: usize = 16;

/// Connects to the backend that the URL names.
///
/// | URL | backend |
/// |---|---|
/// | `etcd://HOST,HOST`, `etcds://HOST,HOST` | an etcd cluster, without or with TLS |
/// | `memory:` or `memory:NAME` | this process |
/// | `mysql://USER:PASSWORD@HOST/DATABASE` | a MariaDB or MySQL database; `mariadb://` is the same |
/// | `postgres://USER:PASSWORD@HOST/DATABASE` | a PostgreSQL database; `postgresql://` is the same |
/// | `redis://HOST`, `rediss://HOST` | a Redis server, without or with TLS |
/// | `redis+sentinel://HOST,HOST/PRIMARY` | the Redis server that Sentinel names |
/// | `redis+cluster://HOST,HOST` | a Redis cluster; `rediss+…` for TLS |
/// | `sqlite:` | an SQLite file in the user's state folder |
/// | `sqlite:PATH` | the SQLite file at that path |
/// | `zk://HOST,HOST/CHROOT` | a ZooKeeper ensemble |
///
/// # Errors
/// [`ErrorKind::BadConfig`] if the URL is malformed, [`ErrorKind::Unsupported`] if its backend is not built in, and those
/// of the backend.
///
/// # Cancel safety
/// If the future is dropped, no connection remains.
pub async fn connect(url: impl AsRef<str>) -> Result<Client> {
    connect_with(url, Options::new()).await
}

/// Connects to the backend that the URL names, as [`connect`] does, with these options.
///
/// ```
/// use std::time::Duration;
/// use fencepost::Options;
///
/// # async fn example() -> fencepost::Result<()> {
/// let options = Options::new().call_timeout(Duration::from_secs(5));
/// let client = fencepost::connect_with("memory:", options).await?;
/// # drop(client);
/// # Ok(())
/// # }
/// # futures_executor::block_on(example()).unwrap();
/// ```
///
/// # Errors
/// Those of [`connect`], and [`ErrorKind::BadConfig`] if an option is invalid.
///
/// # Cancel safety
/// If the future is dropped, no connection remains.
pub async fn connect_with(url: impl AsRef<str>, options: Options) -> Result<Client> {
    let url = url.as_ref();
    match split(url)? {
        #[cfg(feature = "etcd")]
        ("etcd", _) => fencepost_etcd::connect_with(url, options).await,
        #[cfg(feature = "memory")]
        ("memory", rest) => memory(rest, options),
        #[cfg(feature = "mysql")]
        ("mysql", _) => fencepost_mysql::connect_with(url, options).await,
        #[cfg(feature = "postgres")]
        ("postgres", _) => fencepost_postgres::connect_with(url, options).await,
        #[cfg(feature = "redis")]
        ("redis", _) => fencepost_redis::connect_with(url, options).await,
        #[cfg(feature = "sqlite")]
        ("sqlite", rest) => fencepost_sqlite::connect_with(rest, options).await,
        #[cfg(feature = "zookeeper")]
        ("zookeeper", _) => fencepost_zookeeper::connect_with(url, options).await,
        (feature, _) => {
            drop(options);
            Err(not_built_in(feature))
        }
    }
}

/// Returns the rights that an account needs on the backend that the URL names, as text that an administrator can paste. It
/// does not connect, and repeats no secret of the URL.
///
/// ```
/// # #[cfg(feature = "sqlite")]
/// assert!(fencepost::rights("sqlite:/var/lib/jobs/locks.db").unwrap().contains("/var/lib/jobs"));
/// ```
///
/// # Errors
/// [`ErrorKind::BadConfig`] if the URL is malformed, [`ErrorKind::Unsupported`] if its backend is not built in.
pub fn rights(url: impl AsRef<str>) -> Result<String> {
    let url = url.as_ref();
    match split(url)? {
        #[cfg(feature = "etcd")]
        ("etcd", _) => fencepost_etcd::rights(url),
        #[cfg(feature = "memory")]
        ("memory", _) => Ok("# Locks within one process need no rights.\n".to_owned()),
        #[cfg(feature = "mysql")]
        ("mysql", _) => fencepost_mysql::rights(url),
        #[cfg(feature = "postgres")]
        ("postgres", _) => fencepost_postgres::rights(url),
        #[cfg(feature = "redis")]
        ("redis", _) => fencepost_redis::rights(url),
        #[cfg(feature = "sqlite")]
        ("sqlite", rest) => fencepost_sqlite::rights(rest),
        #[cfg(feature = "zookeeper")]
        ("zookeeper", _) => fencepost_zookeeper::rights(url),
        (feature, _) => Err(not_built_in(feature)),
    }
}

/// Returns the statements that create the tables that the URL needs, for an administrator to run before the first client
/// connects with an account that may not create them. They do nothing where the tables exist. It does not connect.
///
/// ```
/// # #[cfg(feature = "postgres")]
/// assert!(fencepost::schema("postgres://app@db.example/jobs").unwrap().contains("CREATE TABLE locks"));
/// ```
///
/// # Errors
/// [`ErrorKind::BadConfig`] if the URL is malformed, [`ErrorKind::Unsupported`] if its backend has no schema, or is not built
/// in.
pub fn schema(url: impl AsRef<str>) -> Result<String> {
    let url = url.as_ref();
    match split(url)? {
        #[cfg(feature = "mysql")]
        ("mysql", _) => fencepost_mysql::schema(url),
        #[cfg(feature = "postgres")]
        ("postgres", _) => fencepost_postgres::schema(url),
        #[cfg(not(feature = "mysql"))]
        ("mysql", _) => Err(not_built_in("mysql")),
        #[cfg(not(feature = "postgres"))]
        ("postgres", _) => Err(not_built_in("postgres")),
        (feature, _) => {
            let message = format!("the backend {feature} has no schema: it needs no preparation");
            Err(Error::new(ErrorKind::Unsupported, message)
                .with_hint("only databases have one: `postgres://…`, `mysql://…`"))
        }
    }
}

/// Checks what can be checked of the backend that the URL names without connecting to it, such as the folder of a file: it
/// helps to find out why connecting failed. [`Client::diagnose`] returns these findings too, and more.
///
/// # Errors
/// Those of [`rights`].
pub fn preflight(url: impl AsRef<str>) -> Result<Vec<Finding>> {
    match split(url.as_ref())? {
        #[cfg(feature = "etcd")]
        ("etcd", _) => Ok(Vec::new()),
        #[cfg(feature = "memory")]
        ("memory", _) => Ok(Vec::new()),
        #[cfg(feature = "mysql")]
        ("mysql", _) => Ok(Vec::new()),
        #[cfg(feature = "postgres")]
        ("postgres", _) => Ok(Vec::new()),
        #[cfg(feature = "redis")]
        ("redis", _) => Ok(Vec::new()),
        #[cfg(feature = "sqlite")]
        ("sqlite", rest) => fencepost_sqlite::preflight(rest),
        #[cfg(feature = "zookeeper")]
        ("zookeeper", _) => Ok(Vec::new()),
        (feature, _) => Err(not_built_in(feature)),
    }
}

/// Returns the feature that enables the backend, and what follows the scheme.
fn split(url: &str) -> Result<(&'static str, &str)> {
    let Some((scheme, rest)) = url.split_once(':') else {
        let text = if url.is_empty() { "the backend URL is empty" } else { "the backend URL has no scheme" };
        return Err(Error::new(ErrorKind::BadConfig, text)
            .with_hint("a URL looks like sqlite:/var/lib/jobs.db or redis://HOST"));
    };
    let known = SCHEMES.iter().find(|(known, _)| *known == scheme);
    known.map(|(_, feature)| (*feature, rest)).ok_or_else(|| unknown_scheme(scheme, rest))
}

/// Returns the error for a scheme that is not in the list. The scheme is quoted only if it looks like one: of a malformed URL
/// any part may be a secret.
fn unknown_scheme(scheme: &str, rest: &str) -> Error {
    let available: Vec<String> = SCHEMES.iter().map(|(scheme, _)| format!("{scheme}:")).collect();
    let available = available.join(", ");
    if PLANNED.iter().any(|planned| planned.eq_ignore_ascii_case(scheme)) {
        let scheme = scheme.to_ascii_lowercase();
        return Error::new(ErrorKind::Unsupported, format!("the backend {scheme}:// is not available yet"))
            .with_hint(format!("available are {available}"));
    }
    let suggestion = nearest(scheme, SCHEMES.iter().map(|(scheme, _)| *scheme));
    let text = match suggestion {
        Some(nearest) if is_scheme(scheme) => {
            let slashes = if matches!(nearest, "memory" | "sqlite") { "" } else { "//" };
            format!("unknown URL scheme {scheme:?}; did you mean {nearest}:{slashes}?")
        }
        None if is_scheme(scheme) && rest.starts_with("//") => format!("unknown URL scheme {scheme:?}"),
        _ => "the scheme of the backend URL is unknown".to_owned(),
    };
    Error::new(ErrorKind::BadConfig, text).with_hint(format!("known are {available}"))
}

fn is_scheme(text: &str) -> bool {
    let is_allowed = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'+';
    (1..=MAX_SCHEME_BYTES).contains(&text.len()) && text.bytes().all(is_allowed)
}

/// Returns a client of the store of this name; there is one store per name, for the life of the process.
#[cfg(feature = "memory")]
fn memory(name: &str, options: Options) -> Result<Client> {
    use std::collections::HashMap;
    use std::sync::{LazyLock, Mutex, PoisonError};

    use fencepost_memory::Memory;

    static NAMED: LazyLock<Mutex<HashMap<String, Memory>>> = LazyLock::new(Mutex::default);
    let memory = {
        let mut named = NAMED.lock().unwrap_or_else(PoisonError::into_inner);
        named.entry(name.to_owned()).or_default().clone()
    };
    memory.client_with(options)
}

fn not_built_in(feature: &str) -> Error {
    Error::new(ErrorKind::Unsupported, format!("the backend {feature} is not built into this program"))
        .with_hint(format!("build fencepost with the feature {feature:?}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rejected(url: &str) -> Error {
        split(url).unwrap_err()
    }

    #[test]
    fn a_misspelt_scheme_is_quoted_and_the_nearest_is_suggested() {
        for (url, text) in [
            ("redsi://h", "unknown URL scheme \"redsi\"; did you mean redis://?"),
            ("ectd://h", "unknown URL scheme \"ectd\"; did you mean etcd://?"),
            ("sqllite:/x", "unknown URL scheme \"sqllite\"; did you mean sqlite:?"),
            ("REDIS://h", "unknown URL scheme \"REDIS\"; did you mean redis://?"),
            ("http://h", "unknown URL scheme \"http\""),
            ("gopher:x", "the scheme of the backend URL is unknown"),
            ("geheim@h:6379", "the scheme of the backend URL is unknown"),
            ("abcdefghijklmnopq://h", "the scheme of the backend URL is unknown"),
            ("", "the backend URL is empty"),
            ("nonsense", "the backend URL has no scheme"),
        ] {
            assert_eq!(rejected(url).to_string(), text, "{url}");
            assert_eq!(rejected(url).kind(), ErrorKind::BadConfig, "{url}");
        }
        assert!(rejected("http://h").hint().unwrap().starts_with("known are etcd:, "));
    }

    #[test]
    fn a_planned_backend_is_not_available_yet() {
        for scheme in PLANNED {
            let error = rejected(&format!("{scheme}://user:geheim@h/db"));
            assert_eq!(error.kind(), ErrorKind::Unsupported);
            assert_eq!(error.to_string(), format!("the backend {scheme}:// is not available yet"));
            assert!(error.hint().unwrap().contains("redis:"), "{error:?}");
        }
    }
}
