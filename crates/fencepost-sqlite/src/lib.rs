//! Locks in an SQLite file, between the processes of one host: nothing to install, nothing to run.
//!
//! Every flight is one transaction, written by one thread, and whatever gathers meanwhile is committed together. A lease
//! is timed by the machine's boot-time clock; what another boot or machine has written is timed by the reader's own
//! clock from when it first saw it, so that nothing is ever taken too early. See `docs/backends/sqlite.md` for what it
//! promises and what it does not.

mod backend;
mod config;
mod entrance;
mod error;
mod file_system;
mod host_clock;
mod identity;
mod inbox;
mod listing;
mod locate;
mod lookout;
mod open;
mod preflight;
mod replaced;
mod rights;
mod rows;
mod statements;
mod turnstile;
mod wake;
mod writer;

use std::path::Path;
use std::sync::Arc;

use fencepost_core::backend::Backend;
use fencepost_core::{Client, Finding, Options, Result};

use crate::config::IfMissing;

/// Connects to the database that `sqlite:REST` names: the user's own if `rest` is empty.
///
/// # Errors
/// If the file cannot be opened, is not ours, or is not on a local disk.
///
/// # Cancel safety
/// If the future is dropped, no connection remains.
pub async fn connect(rest: &str) -> Result<Client> {
    connect_with(rest, Options::new()).await
}

/// Connects with these options.
///
/// # Errors
/// Those of [`connect`]; if an option makes no sense; and
/// [`ErrorKind::Missing`](fencepost_core::ErrorKind::Missing) if there is no such file and it was not to be made.
///
/// # Cancel safety
/// If the future is dropped, no connection remains.
pub async fn connect_with(rest: &str, options: Options) -> Result<Client> {
    let if_missing = if options.wants_existing() { IfMissing::Refuse } else { IfMissing::Make };
    let path = config::path_of(rest, if_missing)?;
    options.connect(async move { Ok(Arc::new(open::open(&path, if_missing)?) as Arc<dyn Backend>) }).await
}

/// The rights that an account needs to keep locks in the database that `sqlite:REST` names, as text for whoever grants
/// them. The file is not looked at.
///
/// # Errors
/// If `rest` is malformed.
pub fn rights(rest: &str) -> Result<String> {
    config::path_of(rest, IfMissing::Refuse).map(|path| rights::rights_on(&path))
}

/// What can be seen of the database that `sqlite:REST` names without opening it: its folder, who may use it, the disk.
///
/// # Errors
/// If `rest` is malformed.
pub fn preflight(rest: &str) -> Result<Vec<Finding>> {
    let path = config::path_of(rest, IfMissing::Refuse)?;
    let is_made_with_it = config::names_nothing(rest) && path.parent().is_some_and(|folder| !folder.exists());
    Ok(if is_made_with_it { Vec::new() } else { preflight::preflight_of(&path) })
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
