//! Watching locks, for programs without async.

use std::time::Duration;

use super::block_on;
use crate::{Change, ErrorKind, Result};

/// Watches the locks of a [`super::Client`]: a [`crate::Watch`] as an iterator that blocks until the next change. It continues
/// after an error, and ends when the client is closed.
///
/// ```
/// # fn main() -> fencepost::Result<()> {
/// # let client = fencepost::blocking::connect("memory:watched")?;
/// let _held = client.lock("invoice/42").acquire()?;
/// for change in client.watch("invoice/").take(1) {
///     println!("{:?}", change?);
/// }
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
#[must_use = "a watch polls only when the next change is asked for"]
pub struct Watch(crate::Watch);

impl Watch {
    /// Sets the interval between two polls. 1 s by default.
    pub fn every(self, every: Duration) -> Self {
        Self(self.0.every(every))
    }
}

impl Iterator for Watch {
    type Item = Result<Change>;

    fn next(&mut self) -> Option<Result<Change>> {
        match block_on(self.0.next()) {
            Err(error) if error.kind() == ErrorKind::Closed => None,
            change => Some(change),
        }
    }
}

impl From<crate::Watch> for Watch {
    fn from(watch: crate::Watch) -> Self {
        Self(watch)
    }
}
