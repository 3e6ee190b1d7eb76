//! Fencepost locks in etcd: every attempt has its own key with a lease below the name of the lock, and the oldest key
//! holds. The fencing token is the revision that created the key.

mod acquire;
mod backend;
mod cell;
mod check;
mod cleanup;
mod cluster;
mod config;
mod diagnose;
mod error;
mod flight;
mod key_ops;
mod layout;
mod lease_migration;
mod leases;
mod leave;
mod link;
mod listing;
mod optimistic;
mod position;
mod proto;
mod release;
mod renew;
mod request;
mod rights;
mod sharing;
mod state;
mod storage_id;
mod successor;
mod suffixes;
mod transactions;
mod watch_events;
mod watch_registry;
mod yielding;

use std::sync::Arc;

use fencepost_core::backend::Backend;
use fencepost_core::{Client, Options, Result};

/// Connects to the etcd that the URL names.
///
/// # Errors
/// If the URL is invalid, no member is reachable, or the cluster rejects the client.
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
    options.connect(async move { backend::open(&url, &backend_options).await }).await
}

/// Connects as the backend of one client. Must be called inside the runtime in which it will be used.
///
/// # Errors
/// Those of [`connect`].
///
/// # Panics
/// Outside a tokio runtime.
pub async fn open(url: &str) -> Result<Arc<dyn Backend>> {
    backend::open(url, &Options::new()).await
}

/// Returns the `etcdctl` commands that grant an account the permissions it needs on the cluster that the URL names.
///
/// # Errors
/// If the URL is invalid.
pub fn rights(url: &str) -> Result<String> {
    Ok(rights::rights_on(&config::parse(url)?))
}
