//! The only list of storages: which URL scheme is which backend, and which feature it needs.

use fencepost_core::{Client, Error, ErrorKind, Result};

/// Schemes, and the feature that brings each.
const SCHEMES: [(&str, &str); 2] = [("memory", "memory"), ("sqlite", "sqlite")];

/// Connects to the storage that the URL names.
///
/// | URL | storage |
/// |---|---|
/// | `memory:` or `memory:NAME` | this process |
/// | `sqlite:` | an SQLite file in the user's state folder |
/// | `sqlite:PATH` | an SQLite file anywhere |
///
/// # Errors
/// [`ErrorKind::BadConfig`] if the URL is malformed, [`ErrorKind::Unsupported`] if its storage is not built in, and
/// what the storage says.
///
/// # Cancel safety
/// If the future is dropped, no connection remains.
pub async fn connect(url: impl AsRef<str>) -> Result<Client> {
    match parts(url.as_ref())? {
        #[cfg(feature = "memory")]
        ("memory", rest) => memory(rest),
        #[cfg(feature = "sqlite")]
        ("sqlite", rest) => fencepost_sqlite::connect(rest).await,
        (scheme, _) => Err(not_built_in(scheme)),
    }
}

/// Connects like [`connect`], but makes nothing: for programs that only look. A mistyped path is an error, and not an
/// empty storage that says that nothing is locked.
///
/// # Errors
/// [`ErrorKind::BadConfig`] if there is no such storage yet, and those of [`connect`].
///
/// # Cancel safety
/// If the future is dropped, no connection remains.
pub async fn connect_existing(url: impl AsRef<str>) -> Result<Client> {
    match parts(url.as_ref())? {
        #[cfg(feature = "sqlite")]
        ("sqlite", rest) => fencepost_sqlite::connect_existing(rest).await,
        // The others make nothing that would stay.
        _ => connect(url).await,
    }
}

/// The scheme, and what stands behind it.
fn parts(url: &str) -> Result<(&str, &str)> {
    url.split_once(':').ok_or_else(|| {
        Error::new(ErrorKind::BadConfig, "the storage's URL has no scheme")
            .with_hint("a URL looks like sqlite:/var/lib/jobs.db")
    })
}

/// One storage per name, for the life of the process.
#[cfg(feature = "memory")]
fn memory(name: &str) -> Result<Client> {
    use std::collections::HashMap;
    use std::sync::{LazyLock, Mutex, PoisonError};

    use fencepost_memory::Memory;

    static NAMED: LazyLock<Mutex<HashMap<String, Memory>>> = LazyLock::new(Mutex::default);
    let memory = {
        let mut named = NAMED.lock().unwrap_or_else(PoisonError::into_inner);
        named.entry(name.to_owned()).or_default().clone()
    };
    memory.client()
}

/// The scheme is repeated only if it is one of ours: of a malformed URL any part may be a secret.
fn not_built_in(scheme: &str) -> Error {
    if let Some((scheme, feature)) = SCHEMES.iter().find(|(known, _)| *known == scheme) {
        return Error::new(ErrorKind::Unsupported, format!("{scheme}: is not built into this program"))
            .with_hint(format!("build fencepost with the feature {feature:?}"));
    }
    let known: Vec<String> = SCHEMES.iter().map(|(scheme, _)| format!("{scheme}:")).collect();
    Error::new(ErrorKind::BadConfig, "the scheme of the storage's URL is unknown")
        .with_hint(format!("known are {}; storages for several hosts are to come", known.join(", ")))
}
