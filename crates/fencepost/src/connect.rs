//! The only list of storages: which URL scheme is which backend, and which feature it needs.

use fencepost_core::{Client, Error, ErrorKind, Finding, Options, Result};

/// Schemes, and the feature that brings the storage of each.
const SCHEMES: [(&str, &str); 11] = [
    ("etcd", "etcd"),
    ("etcds", "etcd"),
    ("memory", "memory"),
    ("redis", "redis"),
    ("rediss", "redis"),
    ("redis+cluster", "redis"),
    ("redis+sentinel", "redis"),
    ("rediss+cluster", "redis"),
    ("rediss+sentinel", "redis"),
    ("sqlite", "sqlite"),
    ("zk", "zookeeper"),
];

/// Connects to the storage that the URL names.
///
/// | URL | storage |
/// |---|---|
/// | `etcd://HOST,HOST`, `etcds://HOST,HOST` | an etcd cluster, plainly or through TLS |
/// | `memory:` or `memory:NAME` | this process |
/// | `redis://HOST`, `rediss://HOST` | a Redis server, plainly or through TLS |
/// | `redis+sentinel://HOST,HOST/PRIMARY` | the Redis server that Sentinel names |
/// | `redis+cluster://HOST,HOST` | a Redis cluster; `rediss+…` for TLS |
/// | `sqlite:` | an SQLite file in the user's state folder |
/// | `sqlite:PATH` | an SQLite file anywhere |
/// | `zk://HOST,HOST/CHROOT` | a ZooKeeper ensemble |
///
/// # Errors
/// [`ErrorKind::BadConfig`] if the URL is malformed, [`ErrorKind::Unsupported`] if its storage is not built in, and
/// what the storage says.
///
/// # Cancel safety
/// If the future is dropped, no connection remains.
pub async fn connect(url: impl AsRef<str>) -> Result<Client> {
    connect_with(url, Options::new()).await
}

/// Connects to the storage that the URL names, as [`connect`] does, with these options.
///
/// ```
/// use std::time::Duration;
/// use fencepost::Options;
///
/// # async fn example() -> fencepost::Result<()> {
/// let options = Options::new().deadline(Duration::from_secs(5));
/// let client = fencepost::connect_with("memory:", options).await?;
/// # drop(client);
/// # Ok(())
/// # }
/// # futures_executor::block_on(example()).unwrap();
/// ```
///
/// # Errors
/// Those of [`connect`], and [`ErrorKind::BadConfig`] if an option makes no sense.
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

/// The rights that an account needs on the storage that the URL names, as text that whoever grants them can paste. Nothing
/// is connected to, and no secret of the URL is repeated.
///
/// ```
/// # #[cfg(feature = "sqlite")]
/// assert!(fencepost::rights("sqlite:/var/lib/jobs/locks.db").unwrap().contains("/var/lib/jobs"));
/// ```
///
/// # Errors
/// [`ErrorKind::BadConfig`] if the URL is malformed, [`ErrorKind::Unsupported`] if its storage is not built in.
pub fn rights(url: impl AsRef<str>) -> Result<String> {
    let url = url.as_ref();
    match split(url)? {
        #[cfg(feature = "etcd")]
        ("etcd", _) => fencepost_etcd::rights(url),
        #[cfg(feature = "memory")]
        ("memory", _) => Ok("# Locks within one process need no rights.\n".to_owned()),
        #[cfg(feature = "redis")]
        ("redis", _) => fencepost_redis::rights(url),
        #[cfg(feature = "sqlite")]
        ("sqlite", rest) => fencepost_sqlite::rights(rest),
        #[cfg(feature = "zookeeper")]
        ("zookeeper", _) => fencepost_zookeeper::rights(url),
        (feature, _) => Err(not_built_in(feature)),
    }
}

/// What can be seen of the storage that the URL names without connecting to it, such as the folder of a file: for those who
/// could not connect and want to know why. [`Client::diagnose`] tells it too, and more.
///
/// # Errors
/// Those of [`rights`].
pub fn preflight(url: impl AsRef<str>) -> Result<Vec<Finding>> {
    match split(url.as_ref())? {
        #[cfg(feature = "etcd")]
        ("etcd", _) => Ok(Vec::new()),
        #[cfg(feature = "memory")]
        ("memory", _) => Ok(Vec::new()),
        #[cfg(feature = "redis")]
        ("redis", _) => Ok(Vec::new()),
        #[cfg(feature = "sqlite")]
        ("sqlite", rest) => fencepost_sqlite::preflight(rest),
        #[cfg(feature = "zookeeper")]
        ("zookeeper", _) => Ok(Vec::new()),
        (feature, _) => Err(not_built_in(feature)),
    }
}

/// The feature that brings the storage, and what is behind the scheme. The scheme is repeated only if it is one of ours: of a
/// malformed URL any part may be a secret.
fn split(url: &str) -> Result<(&'static str, &str)> {
    let Some((scheme, rest)) = url.split_once(':') else {
        return Err(Error::new(ErrorKind::BadConfig, "the storage's URL has no scheme")
            .with_hint("a URL looks like sqlite:/var/lib/jobs.db or redis://HOST"));
    };
    let known = SCHEMES.iter().find(|(known, _)| *known == scheme);
    known.map(|(_, feature)| (*feature, rest)).ok_or_else(|| {
        let known: Vec<String> = SCHEMES.iter().map(|(scheme, _)| format!("{scheme}:")).collect();
        Error::new(ErrorKind::BadConfig, "the scheme of the storage's URL is unknown")
            .with_hint(format!("known are {}", known.join(", ")))
    })
}

/// One storage per name, for the life of the process.
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
    Error::new(ErrorKind::Unsupported, format!("{feature}: is not built into this program"))
        .with_hint(format!("build fencepost with the feature {feature:?}"))
}
