//! One process at a time, in fair turns: what stands before SQLite's write lock.
//!
//! SQLite lets a process that is refused sleep and try again, and one that has just written may write again at once, so
//! that a busy process starves the others. Here the next in line waits in the kernel, and while it waits it holds the
//! gate: one that has just left stands behind it. The kernel frees both when a process dies.
//!
//! It is for fairness alone; SQLite's own lock keeps writers apart. So nobody has to wait for a process that was stopped
//! while it held the gate: after a while the others go past it.

use std::fs::File;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use fencepost_core::clock::{Clock, Moment};
use fencepost_core::{Error, ErrorKind, Result};
use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;

use crate::error::io_error;

/// After this long whoever holds the gate is taken to stand still.
const PATIENCE: Duration = Duration::from_millis(100);
/// And for this long nobody cares for the gate then.
const FORGETFULNESS: Duration = Duration::from_secs(1);
/// How often those behind the gate try it. There is no wait in the kernel that ends by itself.
const STEP: Duration = Duration::from_micros(100);

#[derive(Debug)]
pub(crate) struct Turnstile {
    files: Arc<Files>,
    /// Until then the gate is passed by.
    open_until: Moment,
}

#[derive(Debug)]
struct Files {
    gate: File,
    turn: File,
}

/// A turn: nobody else has one until it is dropped.
pub(crate) struct Turn(Arc<Files>);

impl Turnstile {
    pub(crate) fn open(folder: &Path) -> Result<Self> {
        let open = |name: &str| {
            let path = folder.join(name);
            let file = File::options().create(true).truncate(false).write(true).open(&path);
            file.map_err(|error| io_error("could not open", &path, error))
        };
        let files = Arc::new(Files { gate: open("gate")?, turn: open("turn")? });
        Ok(Self { files, open_until: Moment::START })
    }

    pub(crate) fn enter(&mut self, clock: &Clock) -> Result<Turn> {
        let files = self.files.clone();
        let at_the_gate = self.take_gate(clock)?;
        let turn = lock(&files.turn, FlockOperation::LockExclusive);
        if at_the_gate {
            // Leaving the gate cannot fail while the file is open.
            let _ = flock(&files.gate, FlockOperation::Unlock);
        }
        turn?;
        Ok(Turn(files))
    }

    /// False if whoever holds the gate stands still.
    fn take_gate(&mut self, clock: &Clock) -> Result<bool> {
        let begun = clock.now();
        if begun < self.open_until {
            return Ok(false);
        }
        while !lock(&self.files.gate, FlockOperation::NonBlockingLockExclusive)? {
            let now = clock.now();
            if now.since(begun) > PATIENCE {
                self.open_until = now + FORGETFULNESS;
                return Ok(false);
            }
            std::thread::park_timeout(STEP);
        }
        Ok(true)
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        let _ = flock(&self.0.turn, FlockOperation::Unlock);
    }
}

/// Whether the lock was taken; if not, somebody else has it.
fn lock(file: &File, how: FlockOperation) -> Result<bool> {
    loop {
        match flock(file, how) {
            Ok(()) => return Ok(true),
            Err(Errno::WOULDBLOCK) => return Ok(false),
            Err(Errno::INTR) => {}
            Err(error) => {
                return Err(Error::new(ErrorKind::Backend, format!("could not wait for a turn: {error}")));
            }
        }
    }
}
