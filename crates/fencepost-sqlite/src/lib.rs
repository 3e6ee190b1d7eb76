//! Locks in an SQLite file, between the processes of one host: nothing to install, nothing to run.
//!
//! Every flight is one transaction, written by one thread, and whatever gathers meanwhile is committed together. A lease
//! is timed by the machine's boot-time clock; what another boot or machine has written is timed by the reader's own
//! clock from when it first saw it, so that nothing is ever taken too early. See `docs/backends/sqlite.md` for what it
//! promises and what it does not.

mod backend;
mod config;
mod error;
mod host_clock;
mod identity;
mod inbox;
mod open;
mod rows;
mod statements;
mod turnstile;
mod wake;
mod writer;

use std::path::Path;
use std::sync::Arc;

use fencepost_core::backend::Backend;
use fencepost_core::{Client, Result};

use crate::config::IfMissing;

/// Connects to the database that `sqlite:REST` names: the user's own if `rest` is empty.
///
/// # Errors
/// If the file cannot be opened, is not ours, or is not on a local disk.
///
/// # Cancel safety
/// If the future is dropped, no connection remains.
pub async fn connect(rest: &str) -> Result<Client> {
    let path = config::path_of(rest, IfMissing::Make)?;
    Client::connect_with(async move { open(&path) }).await
}

/// Connects to a database that is there already: for those who only look.
///
/// # Errors
/// [`ErrorKind::BadConfig`](fencepost_core::ErrorKind::BadConfig) if there is no such file, and those of [`connect`].
///
/// # Cancel safety
/// If the future is dropped, no connection remains.
pub async fn connect_existing(rest: &str) -> Result<Client> {
    let path = config::path_of(rest, IfMissing::Refuse)?;
    let connect = async move { Ok(Arc::new(open::open(&path, IfMissing::Refuse)?) as Arc<dyn Backend>) };
    Client::connect_with(connect).await
}

/// Opens a database as the backend of one client. Must be called inside the runtime in which it will be used.
///
/// # Errors
/// Those of [`connect`].
///
/// # Panics
/// Outside a tokio runtime.
pub fn open(path: &Path) -> Result<Arc<dyn Backend>> {
    Ok(Arc::new(open::open(path, IfMissing::Make)?))
}
