//! Fencepost locks in etcd: every attempt has a key of its own under the lock's name, with a lease; the earliest holds. The
//! fencing token is the revision that made the key.

mod about;
mod any;
mod backend;
mod cell;
mod cleanup;
mod client_state;
mod config;
mod diagnose;
mod enter;
mod error;
mod flight;
mod keys;
mod leases;
mod link;
mod listing;
mod look;
mod proto;
mod question;
mod renew;
mod request;
mod resting;
mod rights;
mod seats;
mod sharing;
mod standing;
mod store;
mod succession;
mod successor;
mod watches;
mod watching;

use std::sync::Arc;

use fencepost_core::backend::Backend;
use fencepost_core::{Client, Options, Result};

/// Connects to the etcd that the URL names.
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
    options.connect(async move { backend::open(&url, &told).await }).await
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

/// The rights that an account needs on the servers that the URL names, as text that can be pasted.
///
/// # Errors
/// If the URL makes no sense.
pub fn rights(url: &str) -> Result<String> {
    Ok(rights::rights_on(&config::parse(url)?))
}
