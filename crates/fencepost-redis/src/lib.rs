//! Locks in Redis: on one server, behind Sentinel, or in a cluster.
//!
//! A flight is one call of one script, which decides and changes in one step; a release hands the lock to the first in
//! line in that same step, and a message on the next holder's own channel tells it. See `docs/backends/redis.md` for
//! what it promises and what it does not.

mod backend;
mod config;
mod decode;
mod diagnose;
mod dialect;
mod encode;
mod error;
mod identity;
mod layout;
mod listing;
mod node;
mod rights;
mod route;
mod script;
mod sentinel;
mod setup;
mod task;

use std::sync::Arc;

use fencepost_core::backend::Backend;
use fencepost_core::{Client, Options, Result};

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
    let (url, told) = (url.to_owned(), options.clone());
    let connecting = async move { dialect::backend::open(&url, &told).await };
    options.connect(connecting).await
}

/// Connects as the backend of one client. Must be called inside the runtime in which it will be used.
///
/// # Errors
/// Those of [`connect`].
///
/// # Panics
/// Outside a tokio runtime.
pub async fn open(url: &str) -> Result<Arc<dyn Backend>> {
    dialect::backend::open(url, &Options::new()).await
}

/// The rights that an account needs on the servers that the URL names, as text that can be pasted.
///
/// # Errors
/// If the URL makes no sense.
pub fn rights(url: &str) -> Result<String> {
    Ok(rights::rights_on(&config::parse(url)?))
}
