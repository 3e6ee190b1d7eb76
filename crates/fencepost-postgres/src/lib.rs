//! Fencepost locks in PostgreSQL. In `mode=lease` a lock is a row, and the rules are functions of the database, so that a flight
//! of operations is one round trip. `docs/backends/postgres.md` lists the guarantees.

mod advisory;
mod config;
mod diagnose;
mod dialect;
mod error;
mod lease;
mod link;
mod rights;

use std::sync::Arc;

use fencepost_core::backend::Backend;
use fencepost_core::{Client, Error, ErrorKind, Options, Result};

/// Connects to the PostgreSQL that the URL names.
///
/// # Errors
/// If the URL is invalid, no primary is reachable, or it rejects the client.
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
        config::Layout::Advisory { .. } => advisory::open(config, options).await,
        config::Layout::Shedlock { .. } | config::Layout::Table { .. } => dialect::open(config).await,
        config::Layout::Lease => lease::open(config, options).await,
    }
}

/// Returns the statements for `psql` that grant an account the rights it needs in the database that the URL names.
///
/// # Errors
/// If the URL is invalid.
pub fn rights(url: &str) -> Result<String> {
    Ok(rights::rights_on(&config::parse(url)?))
}

/// Returns the statements for `psql` that create the tables and functions of the URL's namespace. They do nothing where these
/// exist.
///
/// # Errors
/// If the URL is invalid, or its locks are not in Fencepost's own tables.
pub fn schema(url: &str) -> Result<String> {
    let config = config::parse(url)?;
    match config.layout {
        config::Layout::Lease => Ok(lease::schema::printed(&config)),
        config::Layout::Advisory { .. } => Ok(advisory::printed(&config)),
        config::Layout::Shedlock { .. } | config::Layout::Table { .. } => {
            let message = format!("the locks in {} are in a table of another program", config.location());
            Err(Error::new(ErrorKind::Unsupported, message)
                .with_hint("that program, or its documentation, says how to create it"))
        }
    }
}
