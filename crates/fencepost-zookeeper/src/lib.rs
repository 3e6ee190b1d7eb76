//! Fencepost locks in ZooKeeper.

mod config;
mod rights;

use std::sync::Arc;

use fencepost_core::backend::Backend;
use fencepost_core::{Client, Error, ErrorKind, Options, Result};

/// Connects to the ZooKeeper that the URL names.
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
    let url = url.to_owned();
    options.connect(async move { open(&url).await }).await
}

/// Connects as the backend of one client. Must be called inside the runtime in which it will be used.
///
/// # Errors
/// Those of [`connect`].
///
/// # Panics
/// Outside a tokio runtime.
pub async fn open(_url: &str) -> Result<Arc<dyn Backend>> {
    Err(Error::new(ErrorKind::Unsupported, "not yet"))
}

/// The rights that an account needs on the servers that the URL names, as text that can be pasted.
///
/// # Errors
/// If the URL makes no sense.
pub fn rights(url: &str) -> Result<String> {
    Ok(rights::rights_on(&config::parse(url)?))
}
