//! The same locks for programs without async: every call blocks until it is done.
//!
//! A call blocks its thread until the client's own thread, which does the I/O and the renewals, has the result; no runtime is
//! needed. The calls also work inside an async runtime, but block its thread: use the async ones there.
//!
//! The guarantees are those of [`crate::Client`], [`crate::Lock`] and [`crate::Guard`].
//!
//! ```
//! # fn charge(_invoice: u32, _token: fencepost::FencingToken) {}
//! # fn main() -> fencepost::Result<()> {
//! let client = fencepost::blocking::connect("memory:")?;
//! let lock = client.lock("invoice/42");
//!
//! // Waits in the queue, renews while the work runs, releases at the end; an error if the lock was lost meanwhile.
//! lock.run(|guard| charge(42, guard.token()))?;
//!
//! // Or step by step: without waiting, with a guard that releases when it is dropped.
//! if let Some(guard) = lock.try_acquire()? {
//!     charge(43, guard.token());
//! }
//! # Ok(())
//! # }
//! ```

mod block_on;
mod client;
mod guard;
mod lock;
mod locks;
mod watch;

pub use client::Client;
pub use guard::Guard;
pub use lock::Lock;
pub use locks::Locks;
pub use watch::Watch;

use self::block_on::{block_on, block_on_for};
use crate::{Options, Result};

/// Connects to the backend of this URL, as [`crate::connect`] does.
///
/// # Errors
/// Those of [`crate::connect`].
pub fn connect(url: impl AsRef<str>) -> Result<Client> {
    block_on(crate::connect(url)).map(Client::from)
}

/// Connects with these options, as [`crate::connect_with`] does.
///
/// # Errors
/// Those of [`crate::connect_with`].
pub fn connect_with(url: impl AsRef<str>, options: Options) -> Result<Client> {
    block_on(crate::connect_with(url, options)).map(Client::from)
}
