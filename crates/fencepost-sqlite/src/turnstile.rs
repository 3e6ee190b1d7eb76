//! One process at a time, in fair turns: what stands before SQLite's write lock.
//!
//! SQLite lets a process that is refused sleep and try again, and one that has just written may write again at once, so
//! that a busy process starves the others. Here a process waits in the kernel, and whoever waits holds the gate: one
//! that has just left stands behind it. The kernel frees both when a process dies.

use std::fs::File;
use std::path::Path;
use std::sync::Arc;

use fencepost_core::{Error, ErrorKind, Result};
use rustix::fs::{FlockOperation, flock};

use crate::error::io_error;

#[derive(Debug)]
pub(crate) struct Turnstile {
    gate: File,
    turn: File,
}

/// A turn: nobody else has one until it is dropped.
pub(crate) struct Turn(Arc<Turnstile>);

impl Turnstile {
    pub(crate) fn open(folder: &Path) -> Result<Arc<Self>> {
        let open = |name: &str| {
            let path = folder.join(name);
            let file = File::options().create(true).truncate(false).write(true).open(&path);
            file.map_err(|error| io_error("could not open", &path, error))
        };
        Ok(Arc::new(Self { gate: open("gate")?, turn: open("turn")? }))
    }

    pub(crate) fn enter(self: &Arc<Self>) -> Result<Turn> {
        lock(&self.gate)?;
        let turn = lock(&self.turn);
        // Leaving the gate cannot fail while the file is open.
        let _ = flock(&self.gate, FlockOperation::Unlock);
        turn?;
        Ok(Turn(self.clone()))
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        let _ = flock(&self.0.turn, FlockOperation::Unlock);
    }
}

fn lock(file: &File) -> Result<()> {
    loop {
        match flock(file, FlockOperation::LockExclusive) {
            Ok(()) => return Ok(()),
            Err(rustix::io::Errno::INTR) => {}
            Err(error) => {
                return Err(Error::new(ErrorKind::Storage, format!("could not wait for a turn: {error}")));
            }
        }
    }
}
