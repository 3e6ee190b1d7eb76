//! Locks in Redis: on one server, behind Sentinel, or in a cluster.
//!
//! See `docs/backends/redis.md` for what it promises and what it does not.

use fencepost_core::{Client, Error, ErrorKind, Options, Result};

/// The URL schemes of this storage.
pub const SCHEMES: [&str; 4] = ["redis", "rediss", "redis+sentinel", "redis+cluster"];

/// Connects to the Redis that the URL names.
///
/// # Errors
/// If the URL makes no sense, nobody answers, or the server refuses.
///
/// # Cancel safety
/// If the future is dropped, no connection remains.
pub async fn connect(url: &str) -> Result<Client> {
    connect_with(url, Options::new()).await
}

/// Connects with these options.
///
/// # Errors
/// Those of [`connect`], and if an option makes no sense.
///
/// # Cancel safety
/// If the future is dropped, no connection remains.
pub async fn connect_with(url: &str, options: Options) -> Result<Client> {
    let _ = (url, options);
    Err(Error::new(ErrorKind::Unsupported, "not yet"))
}
