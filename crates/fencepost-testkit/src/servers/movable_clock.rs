//! A wall clock that a test can move under a running server: a library that is preloaded into it.
//!
//! libfaketime would be the usual one, but does not work with Debian's Redis.

use std::ffi::OsString;
use std::path::Path;

use super::preload::{Library, Preloaded};

const LIBRARY: Library =
    Library { name: "clock", source: include_str!("movable_clock.c"), variable: "CLOCK_OFFSET" };

/// The offset of a server's wall clock from that of the machine.
#[derive(Debug)]
pub(crate) struct MovableClock {
    offset: Preloaded,
}

impl MovableClock {
    /// Compiles the library into the directory.
    pub(crate) fn make(folder: &Path) -> Self {
        Self { offset: Preloaded::make(LIBRARY, folder) }
    }

    /// Returns the args before the command of the server.
    pub(crate) fn prefix(&self) -> impl Iterator<Item = OsString> {
        self.offset.prefix()
    }

    /// Sets the offset, in seconds.
    pub(crate) fn set(&self, seconds: i64) {
        self.offset.set(seconds);
    }
}
