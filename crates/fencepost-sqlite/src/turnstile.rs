//! The turnstile: a fair lock of two files that a process takes before SQLite's write lock.
//!
//! A process that does not get SQLite's lock sleeps and retries, and one that has just written may write again at once, so that a
//! busy process starves the others. The turnstile has two `flock`s. The process that writes holds `turn`. The next one holds
//! `gate` while it waits in the kernel for `turn`, so a process that has just written gets its next turn after it. The kernel
//! releases both when a process dies.
//!
//! It only provides fairness; SQLite's lock provides exclusion. So no process has to wait for one that was stopped while it held
//! the gate: after [`GATE_TIMEOUT`] the others bypass the gate.

use std::fs::File;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use fencepost_core::clock::{Clock, Moment};
use fencepost_core::{Error, ErrorKind, Result};
use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;

use crate::error::io_error;

/// Bounds the wait for the gate. Its holder counts as stopped afterwards.
const GATE_TIMEOUT: Duration = Duration::from_millis(100);
/// How long the gate is bypassed after the wait for it has timed out.
const BYPASS_PERIOD: Duration = Duration::from_secs(1);
/// The interval at which the gate is tried: `flock` has no timeout.
const GATE_INTERVAL: Duration = Duration::from_micros(100);

#[derive(Debug)]
pub(crate) struct Turnstile {
    files: Arc<Files>,
    /// The gate is bypassed until then.
    bypass_until: Moment,
}

#[derive(Debug)]
struct Files {
    gate: File,
    turn: File,
}

/// A turn. No other process has one until it is dropped.
pub(crate) struct Turn(Arc<Files>);

impl Turnstile {
    pub(crate) fn open(folder: &Path) -> Result<Self> {
        let open = |name: &str| {
            let path = folder.join(name);
            let file = File::options().create(true).truncate(false).write(true).open(&path);
            file.map_err(|error| io_error("could not open", &path, error))
        };
        let files = Arc::new(Files { gate: open("gate")?, turn: open("turn")? });
        Ok(Self { files, bypass_until: Moment::START })
    }

    pub(crate) fn enter(&mut self, clock: &Clock) -> Result<Turn> {
        let files = self.files.clone();
        let holds_gate = self.take_gate(clock)?;
        let turn = lock(&files.turn, FlockOperation::LockExclusive);
        if holds_gate {
            // Unlocking cannot fail while the file is open.
            let _ = flock(&files.gate, FlockOperation::Unlock);
        }
        turn?;
        Ok(Turn(files))
    }

    /// Returns false if the gate is bypassed because its holder seems to be stopped.
    fn take_gate(&mut self, clock: &Clock) -> Result<bool> {
        let started = clock.now();
        if started < self.bypass_until {
            return Ok(false);
        }
        while !lock(&self.files.gate, FlockOperation::NonBlockingLockExclusive)? {
            let now = clock.now();
            if now.since(started) > GATE_TIMEOUT {
                self.bypass_until = now + BYPASS_PERIOD;
                return Ok(false);
            }
            std::thread::park_timeout(GATE_INTERVAL);
        }
        Ok(true)
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        let _ = flock(&self.0.turn, FlockOperation::Unlock);
    }
}

/// Returns false if another process has the lock and `operation` does not wait.
fn lock(file: &File, operation: FlockOperation) -> Result<bool> {
    loop {
        match flock(file, operation) {
            Ok(()) => return Ok(true),
            Err(Errno::WOULDBLOCK) => return Ok(false),
            Err(Errno::INTR) => {}
            Err(error) => {
                return Err(Error::new(ErrorKind::Backend, format!("could not wait for a turn: {error}")));
            }
        }
    }
}
