//! Life-cycle events for programs: one JSON object a line, on a descriptor or in a file. The names are stable; new ones
//! may be added. `docs/reference/status.schema.json` describes each one.
//!
//! Events are written by a separate thread: a reader that does not read must not delay the deadline.

use std::fs::File;
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::time::Duration;

use fencepost::clock::wall_time;
use fencepost::{Error, ErrorKind, Guard, LockName, LockState, LostReason, Result};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::fs::OFlags;
use serde::Serialize;

use crate::args;
use crate::exit::{Ended, Exit};
use crate::json::{self, Holder, millis};
use crate::timestamps::rfc3339_millis;
use crate::unchecked::inherited;

/// The number of events that may wait to be written; further ones are dropped.
const BACKLOG: usize = 256;
/// How long the end of the program waits for the last events to be written.
const FLUSH_TIMEOUT: Duration = Duration::from_millis(500);

/// A life-cycle event.
#[derive(Debug, Serialize)]
#[serde(tag = "event", rename_all = "kebab-case")]
pub(crate) enum Event<'a> {
    /// Another client holds the lock.
    Waiting {
        holders: Vec<Holder<'a>>,
        /// The number of waiters ahead of this run, if known.
        ahead: Option<usize>,
        waiting_for_ms: u64,
    },
    /// The lock is held.
    Acquired { token: u64, storage_id: String, backend: &'a str, label: &'a str, ttl_ms: u64, waited_ms: u64 },
    /// The command was started.
    ChildStart { pid: i32 },
    /// The lease was renewed.
    Renewed { valid_for_ms: u64 },
    /// The lock is lost.
    Lost { reason: &'static str },
    /// The command has ended.
    ChildExit {
        #[serde(skip_serializing_if = "Option::is_none")]
        code: Option<i32>,
        #[serde(skip_serializing_if = "Option::is_none")]
        signal: Option<i32>,
    },
    /// The lock was released, or could not be.
    Released { outcome: &'static str },
    /// fencepost exits.
    Exit { code: u8, reason: &'static str },
}

impl<'a> Event<'a> {
    /// fencepost was stopped for so long that the warden has killed the command.
    pub(crate) const STOPPED_TOO_LONG: Self = Self::Lost { reason: "stood-still" };

    pub(crate) fn waiting(state: &'a LockState, ahead: Option<usize>, waited: Duration) -> Self {
        let holders = state.holders.iter().map(Holder::from).collect();
        Self::Waiting { holders, ahead, waiting_for_ms: millis(waited) }
    }

    pub(crate) fn acquired(guard: &'a Guard, backend: &'a str, waited: Duration) -> Self {
        Self::Acquired {
            token: guard.token().get(),
            storage_id: guard.storage_id().to_string(),
            backend,
            label: guard.label(),
            ttl_ms: millis(guard.ttl()),
            waited_ms: millis(waited),
        }
    }

    pub(crate) fn renewed(guard: &Guard) -> Self {
        Self::Renewed { valid_for_ms: millis(guard.remaining()) }
    }

    pub(crate) fn lost(reason: LostReason) -> Self {
        let reason = match reason {
            LostReason::Expired => "expired",
            LostReason::NotHeld => "not-held",
            LostReason::Broken => "broken",
            _ => "other",
        };
        Self::Lost { reason }
    }

    pub(crate) fn child_exit(ended: Ended) -> Self {
        match ended {
            Ended::Exited(code) => Self::ChildExit { code: Some(code), signal: None },
            Ended::Killed(signal) => Self::ChildExit { code: None, signal: Some(signal) },
        }
    }

    pub(crate) fn exit(exit: Exit) -> Self {
        Self::Exit { code: exit.code(), reason: exit.reason() }
    }
}

/// A line of the output.
#[derive(Serialize)]
struct EventRecord<'a> {
    time: String,
    lock: &'a str,
    #[serde(flatten)]
    event: Event<'a>,
}

/// Returns the file that the events are written to. Must be called before anything else is opened.
///
/// # Errors
/// If the descriptor or the file cannot be written to.
pub(crate) fn destination(args: &args::Status) -> Result<Option<File>> {
    let bad = |what: String, error| Error::new(ErrorKind::BadConfig, what).with_source(error);
    if let Some(number) = args.status_fd {
        let opened = inherited(number).map_err(|error| {
            bad(format!("--status-fd {number} is not open"), error)
                .with_hint(format!("open it in the shell: {number}>events.ndjson, or {number}>&1"))
        })?;
        let access = rustix::fs::fcntl_getfl(&opened).map(|flags| flags & OFlags::RWMODE);
        if access == Ok(OFlags::RDONLY) {
            return Err(Error::new(
                ErrorKind::BadConfig,
                format!("--status-fd {number} is open for reading only"),
            ));
        }
        return Ok(Some(opened.into()));
    }
    let Some(path) = &args.status_file else { return Ok(None) };
    // A named pipe without a reader is rejected instead of waited for.
    let flags = i32::try_from(OFlags::NONBLOCK.bits()).unwrap_or(0);
    let opened = File::options().append(true).create(true).custom_flags(flags).open(path);
    opened.map(Some).map_err(|error| bad(format!("could not open --status-file {}", path.display()), error))
}

/// The destination of events, if there is one.
pub(crate) struct Status {
    lock: LockName,
    lines: Option<SyncSender<String>>,
    /// Disconnected when the last event is written.
    written: Receiver<()>,
}

impl Status {
    /// Writes the events of this lock to this file.
    pub(crate) fn new(lock: LockName, file: Option<File>) -> io::Result<Self> {
        let (done, written) = sync_channel(0);
        let Some(file) = file else {
            return Ok(Self { lock, lines: None, written });
        };
        let (lines, to_write) = sync_channel(BACKLOG);
        let writer = std::thread::Builder::new().name("fencepost-status".into());
        writer.spawn(move || {
            write(file, &to_write);
            drop(done);
        })?;
        Ok(Self { lock, lines: Some(lines), written })
    }

    /// Returns whether events are written at all.
    pub(crate) fn is_wanted(&self) -> bool {
        self.lines.is_some()
    }

    /// Queues an event without waiting until it is written.
    pub(crate) fn tell(&self, event: Event<'_>) {
        let Some(lines) = &self.lines else { return };
        let record = EventRecord { time: rfc3339_millis(wall_time()), lock: self.lock.as_str(), event };
        // A reader that is too far behind gets a gap.
        let _ = lines.try_send(json::line(&record) + "\n");
    }
}

impl Drop for Status {
    fn drop(&mut self) {
        if self.lines.take().is_some() {
            // Returns an error when the writer is done, and a timeout if it cannot write.
            let _ = self.written.recv_timeout(FLUSH_TIMEOUT);
        }
    }
}

/// Writes events until there are no more, or no reader.
fn write(mut file: File, lines: &Receiver<String>) {
    for line in lines {
        if write_line(&mut file, line.as_bytes()).is_err() {
            return;
        }
    }
}

/// Writes an event with one call, so that those of several processes do not mix in one file. The descriptor may be
/// non-blocking: then this waits.
fn write_line(file: &mut File, mut line: &[u8]) -> io::Result<()> {
    while !line.is_empty() {
        match file.write(line) {
            Ok(written) => line = &line[written..],
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                poll(&mut [PollFd::new(file, PollFlags::OUT)], None)?;
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reader_that_does_not_read_delays_nothing() {
        let (_reader, writer) = io::pipe().unwrap();
        let status =
            Status::new(LockName::new("a").unwrap(), Some(std::os::fd::OwnedFd::from(writer).into()));
        let status = status.unwrap();
        for _ in 0..10_000 {
            status.tell(Event::Renewed { valid_for_ms: 20_000 });
        }
    }

    #[test]
    fn a_reader_that_is_gone_does_no_harm() {
        let (reader, writer) = io::pipe().unwrap();
        drop(reader);
        let status =
            Status::new(LockName::new("a").unwrap(), Some(std::os::fd::OwnedFd::from(writer).into()));
        status.unwrap().tell(Event::ChildStart { pid: 1 });
    }
}
