//! Fencepost locks in MariaDB or MySQL: holders, waiters and cells are rows, and the row of a lock is its mutex.
//!
//! A flight is one transaction of two round trips: it locks the rows of its locks and fetches what is stored about them, the rules
//! decide in the client, and the changes are saved. Leases are timed by the server's clock alone. The fencing token is minted by an
//! `AUTO_INCREMENT` counter while the row is locked. With `mode=named` the locks are the server's own (`GET_LOCK`).

mod config;
mod diagnose;
mod error;
mod lease;
mod literal;
mod named;
mod rights;
mod session;
mod sessions;

use std::sync::Arc;

use fencepost_core::backend::Backend;
use fencepost_core::{Client, Options, Result};

use config::Layout;

/// Connects to the database that the URL names.
///
/// # Errors
/// If the URL is invalid, the server is not reachable or rejects the client, or the tables are not those of this version.
///
/// # Cancel safety
/// If the future is dropped, no connection remains.
pub async fn connect(url: &str) -> Result<Client> {
    connect_with(url, Options::new()).await
}

/// Connects with these options.
///
/// # Errors
/// Those of [`connect`]; if an option is invalid; and
/// [`ErrorKind::Missing`](fencepost_core::ErrorKind::Missing) if the tables do not exist and the options forbid creating them.
///
/// # Cancel safety
/// If the future is dropped, no connection remains.
pub async fn connect_with(url: &str, options: Options) -> Result<Client> {
    let (url, backend_options) = (url.to_owned(), options.clone());
    options.connect(async move { open_with(&url, &backend_options).await }).await
}

/// Connects as the backend of one client. Must be called inside the runtime in which it will be used.
///
/// # Errors
/// Those of [`connect`].
///
/// # Panics
/// Outside a tokio runtime.
pub async fn open(url: &str) -> Result<Arc<dyn Backend>> {
    open_with(url, &Options::new()).await
}

async fn open_with(url: &str, options: &Options) -> Result<Arc<dyn Backend>> {
    let config = config::parse(url)?;
    match config.layout {
        Layout::Lease => lease::open(config, options).await,
        Layout::Named { .. } => named::open(config, options).await,
    }
}

/// Returns the statements that grant an account the rights it needs on the database that the URL names.
///
/// # Errors
/// If the URL is invalid.
pub fn rights(url: &str) -> Result<String> {
    let config = config::parse(url)?;
    Ok(match config.layout {
        Layout::Lease => rights::rights_on(&config),
        Layout::Named { .. } => named::rights_on(&config),
    })
}

/// Returns the statements that create the tables in the database that the URL names.
///
/// # Errors
/// If the URL is invalid.
pub fn schema(url: &str) -> Result<String> {
    let config = config::parse(url)?;
    Ok(match config.layout {
        Layout::Lease => lease::layout::schema_with_row(&config.namespace),
        Layout::Named { .. } => named::statements(&config),
    })
}
