//! Locks in Redis: on one server, behind Sentinel, or in a cluster.
//!
//! A flight is one call of a Lua script, which reads and writes atomically. A release hands the lock over to the first waiter
//! of the queue in the same call, and a message on that client's own channel wakes it. See `docs/backends/redis.md` for
//! what is guaranteed and what is not.

mod backend;
mod batch;
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
mod state;
mod task;

use std::sync::Arc;

use fencepost_core::backend::Backend;
use fencepost_core::{Client, Options, Result};

/// Connects to the Redis servers of this URL.
///
/// # Errors
/// If the URL is invalid, no server answers, or the server rejects the client.
///
/// # Cancel safety
/// If the future is dropped, no connection remains.
pub async fn connect(url: &str) -> Result<Client> {
    connect_with(url, Options::new()).await
}

/// Connects with these options.
///
/// # Errors
/// Those of [`connect`], and if an option is invalid.
///
/// # Cancel safety
/// If the future is dropped, no connection remains.
pub async fn connect_with(url: &str, options: Options) -> Result<Client> {
    let (url, backend_options) = (url.to_owned(), options.clone());
    let connecting = async move { dialect::backend::open(&url, &backend_options).await };
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

/// Returns the rights that an account needs on the servers of this URL, as commands for `redis-cli`.
///
/// # Errors
/// If the URL is invalid.
pub fn rights(url: &str) -> Result<String> {
    Ok(rights::rights_on(&config::parse(url)?))
}
