//! Holding a lock without a command: until stdin is closed, a signal comes or the lock is lost.

use std::future::pending;
use std::io::{self, IsTerminal, Read};
use std::time::Duration;

use fencepost::{ErrorKind, Guard, LostReason, Result};
use nix::sys::signal::{SigSet, Signal as NixSignal};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::fs::{FileType, Stat, fstat, stat};
use rustix::io::Errno;
use rustix::process::Signal;
use tokio::sync::oneshot;

use crate::args::Run;
use crate::commands::failed;
use crate::exit::{Exit, NOT_ACQUIRED};
use crate::json;
use crate::lines::Lines;
use crate::locked_run::LockedRun;
use crate::output::{self, Output};
use crate::status::{Event, Status};
use crate::terminal::is_in_foreground;

/// How often a job in the background tries to read from its terminal again.
const FOREGROUND_CHECK_INTERVAL: Duration = Duration::from_millis(500);

/// What ends the hold, apart from a signal.
pub(crate) enum End {
    /// Nothing else.
    Signal,
    /// The end of stdin. The thread that reads it completes or drops the channel.
    Stdin(oneshot::Receiver<()>),
}

impl End {
    /// Starts to read stdin. A job in the background of a terminal must not read it: it would be stopped, and the lease
    /// would expire. There only a signal ends the hold.
    ///
    /// # Errors
    /// If the operating system cannot start a thread.
    pub(crate) fn of_stdin() -> io::Result<Self> {
        if io::stdin().is_terminal() && !is_in_foreground() {
            return Ok(Self::Signal);
        }
        let (ended, end) = oneshot::channel();
        std::thread::Builder::new().name("fencepost-stdin".into()).spawn(move || {
            discard_stdin();
            let _ = ended.send(());
        })?;
        Ok(Self::Stdin(end))
    }

    /// Waits for the end. Must not be called again once it has returned.
    ///
    /// # Cancel safety
    /// Dropping the future loses nothing.
    pub(crate) async fn reached(&mut self) {
        match self {
            Self::Signal => pending().await,
            Self::Stdin(end) => {
                let _ = end.await;
            }
        }
    }
}

/// Reads stdin to its end. An error is an end, too: a terminal that was hung up.
fn discard_stdin() {
    // A job that was moved to the background of its terminal gets an error when it reads, and is not stopped.
    let mut blocked = SigSet::empty();
    blocked.add(NixSignal::SIGTTIN);
    // If this fails, such a job is stopped, as any other that reads.
    let _ = blocked.thread_block();
    let mut buffer = [0; 4096];
    let mut stdin = io::stdin().lock();
    let mut failed_in_foreground = false;
    loop {
        match stdin.read(&mut buffer) {
            Ok(1..) => failed_in_foreground = false,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            // Another process has made the descriptor non-blocking.
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                let _ = poll(&mut [PollFd::new(&io::stdin(), PollFlags::IN)], None);
            }
            Err(error) if Errno::from_io_error(&error) == Some(Errno::IO) && stdin.is_terminal() => {
                let in_foreground = is_in_foreground();
                // Once is no proof: it may have been moved there after the read.
                if in_foreground && failed_in_foreground {
                    return;
                }
                failed_in_foreground = in_foreground;
                std::thread::park_timeout(FOREGROUND_CHECK_INTERVAL);
            }
            Ok(0) | Err(_) => return,
        }
    }
}

/// Returns whether stdin is `/dev/null`. A stdin that was closed is: the standard library opens it as that.
pub(crate) fn stdin_is_null() -> bool {
    let device = |found: Stat| {
        (FileType::from_raw_mode(found.st_mode) == FileType::CharacterDevice).then_some(found.st_rdev)
    };
    let null = stat("/dev/null").ok().and_then(device);
    null.is_some() && fstat(io::stdin()).ok().and_then(device) == null
}

/// Reports that stdin has ended before the lock was acquired. Another client need not hold it, so `--skip-ok` does not
/// make this a success.
pub(crate) fn stdin_ended(args: &Run, output: Output) -> Exit {
    output.note(format_args!("stdin ended before lock {:?} was acquired", args.name));
    Exit::NotAcquired(args.waiting.conflict_exit_code.unwrap_or(NOT_ACQUIRED))
}

/// Why a hold has ended.
enum EndReason {
    Stdin,
    Signalled(Signal),
    Lost(LostReason),
}

impl LockedRun<'_> {
    /// Prints the token, holds the lock until the end is reached, and releases it.
    ///
    /// # Errors
    /// If the token could not be printed. The lock is released then.
    pub(crate) async fn hold_without_command(
        &mut self,
        guard: Guard,
        end: End,
        as_json: bool,
    ) -> Result<Exit> {
        if io::stdin().is_terminal() {
            let input = if matches!(end, End::Stdin(_)) { "end of input (Ctrl-D) or " } else { "" };
            self.output.note(format_args!("holding {:?} until {input}a signal", guard.name()));
        }
        let text = if as_json { json::line(&json::Held::from(&guard)) } else { guard.token().to_string() };
        let exit = match self.print_and_hold(text, &guard, end).await {
            Ok(EndReason::Lost(reason)) => {
                output::failure(format_args!("lock {:?} was lost: {reason}", guard.name()));
                self.status.tell(Event::lost(reason));
                return Ok(Exit::Lost);
            }
            Ok(EndReason::Signalled(signal)) => Ok(Exit::Signalled(signal.as_raw())),
            Ok(EndReason::Stdin) => Ok(Exit::Done),
            Err(error) => Err(failed("could not print the token", error)),
        };
        match self.release(guard).await {
            Err(error) if error.kind() == ErrorKind::Lost => Ok(Exit::Lost),
            _ => exit,
        }
    }

    async fn print_and_hold(&mut self, text: String, guard: &Guard, mut end: End) -> io::Result<EndReason> {
        let lines = Lines::new()?;
        let until_end = async {
            match lines.write(text).await {
                Err(error) if error.kind() != io::ErrorKind::BrokenPipe => return Err(error),
                // A reader that has closed the pipe does not need the token.
                _ => end.reached().await,
            }
            Ok(EndReason::Stdin)
        };
        tokio::select! {
            biased;
            reason = report_renewals(guard, self.status) => Ok(EndReason::Lost(reason)),
            signal = self.signals.next() => Ok(EndReason::Signalled(signal)),
            ended = until_end => ended,
        }
    }
}

/// Reports every renewal, and returns when the lock is lost.
async fn report_renewals(guard: &Guard, status: &Status) -> LostReason {
    let mut known = guard.valid_until();
    loop {
        match guard.renewed(known).await {
            Ok(renewed) => known = renewed,
            Err(reason) => return reason,
        }
        status.tell(Event::renewed(guard));
    }
}
