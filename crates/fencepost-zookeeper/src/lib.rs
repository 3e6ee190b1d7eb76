//! Fencepost locks in ZooKeeper: every attempt has a node below that of its lock, and the sequence numbers that the
//! servers assign order the queue. Curator and kazoo use the same queues.

mod about;
mod acquire;
mod backend;
mod cell;
mod config;
mod containers;
mod conversion;
mod diagnose;
mod ensemble;
mod error;
mod flight;
mod foreign;
mod layout;
mod listing;
mod liveness;
mod maintenance;
mod node_name;
mod nodes;
mod orphans;
mod queue;
mod registry;
mod release;
mod renew;
mod rights;
mod session;
mod session_range;
mod state;
mod tls;
mod watches;

use std::sync::Arc;

use fencepost_core::backend::Backend;
use fencepost_core::{Client, Options, Result};

/// Connects to the ZooKeeper ensemble that the URL names.
///
/// # Errors
/// If the URL is invalid, no server can be reached, or the server rejects the client.
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
    let (url, connect_options) = (url.to_owned(), options.clone());
    let connecting =
        async move { Ok(Arc::new(backend::open(&url, &connect_options).await?) as Arc<dyn Backend>) };
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
    Ok(Arc::new(backend::open(url, &Options::new()).await?))
}

/// Returns the `zkCli.sh` commands that give an account the rights that it needs on the servers of this URL.
///
/// # Errors
/// If the URL is invalid.
pub fn rights(url: &str) -> Result<String> {
    Ok(rights::rights_on(&config::parse(url)?))
}
