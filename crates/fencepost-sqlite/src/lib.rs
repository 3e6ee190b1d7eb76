//! Locks in an SQLite file, for the processes of one host. No server has to be installed or run.
//!
//! One thread per client writes. Each flight is one transaction, and flights that arrive while the thread is busy are committed
//! together. A lease is timed by the host's boot-time clock. A lease written under another boot or on another host is timed by
//! the reader's own clock from when the reader first saw it, so that no lock is granted too early. `docs/backends/sqlite.md`
//! lists the guarantees.

mod backend;
mod config;
mod diagnose;
mod error;
mod execute;
mod file_system;
mod first_turn;
mod host_clock;
mod identity;
mod inbox;
mod listing;
mod open;
mod replaced;
mod rights;
mod state;
mod statements;
mod turnstile;
mod waiter_poll;
mod wake;
mod writer;

use std::path::Path;
use std::sync::Arc;

use fencepost_core::backend::Backend;
use fencepost_core::{Client, Finding, Options, Result};

use crate::config::IfMissing;

/// Connects to the database that `sqlite:REST` names, or to the user's default one if `rest` is empty.
///
/// # Errors
/// If the file cannot be opened, is not a Fencepost database, or is not on a local disk.
///
/// # Cancel safety
/// If the future is dropped, no connection remains.
pub async fn connect(rest: &str) -> Result<Client> {
    connect_with(rest, Options::new()).await
}

/// Connects with these options.
///
/// # Errors
/// Those of [`connect`]; if an option is invalid; and
/// [`ErrorKind::Missing`](fencepost_core::ErrorKind::Missing) if the file does not exist and the options forbid creating it.
///
/// # Cancel safety
/// If the future is dropped, no connection remains.
pub async fn connect_with(rest: &str, options: Options) -> Result<Client> {
    let if_missing = if options.is_only_existing() { IfMissing::Fail } else { IfMissing::Create };
    let path = config::path_of(rest, if_missing)?;
    options.connect(async move { Ok(Arc::new(open::open(&path, if_missing)?) as Arc<dyn Backend>) }).await
}

/// Returns the rights that an account needs on the database that `sqlite:REST` names, as text that an administrator can paste.
/// The file is not accessed.
///
/// # Errors
/// If `rest` is malformed.
pub fn rights(rest: &str) -> Result<String> {
    config::path_of(rest, IfMissing::Fail).map(|path| rights::rights_on(&path))
}

/// Checks the database that `sqlite:REST` names without opening it: its folder, permissions, and the disk.
///
/// # Errors
/// If `rest` is malformed.
pub fn preflight(rest: &str) -> Result<Vec<Finding>> {
    let path = config::path_of(rest, IfMissing::Fail)?;
    let is_to_be_created = config::is_default(rest) && path.parent().is_some_and(|folder| !folder.exists());
    Ok(if is_to_be_created { Vec::new() } else { diagnose::preflight::preflight_of(&path) })
}

/// Opens a database as the backend of one client. Must be called inside the runtime in which it will be used.
///
/// # Errors
/// Those of [`connect`].
///
/// # Panics
/// Outside a tokio runtime.
pub fn open(path: &Path) -> Result<Arc<dyn Backend>> {
    Ok(Arc::new(open::open(path, IfMissing::Create)?))
}
