//! The only file with `unsafe` in it: what the compiler cannot check, and why it is right.
#![allow(unsafe_code, reason = "the standard library has no safe way to do these things")]

use std::io;
use std::os::fd::{AsFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::process::CommandExt;
use std::process::Command;

use fencepost::clock::{Clock, Moment};
use nix::sys::signal::{SaFlags, SigAction, SigHandler, SigSet, Signal, sigaction};
use rustix::io::{Errno, FdFlags, fcntl_getfd, fcntl_setfd};
use rustix::process::{Pid, getpid, getppid};

use crate::warden::{Order, Target};

/// What a new process does before it becomes the command.
pub(crate) struct Start {
    /// Where it names itself to the warden.
    pub(crate) line: OwnedFd,
    /// The signal mask that the command is to have.
    pub(crate) mask: SigSet,
    /// After this the command must not begin.
    pub(crate) until: Moment,
}

/// Makes a command do this before it begins. It names itself to the warden as this target.
pub(crate) fn before_exec(command: &mut Command, target: fn(Pid) -> Target, start: Start) {
    let fencepost = getpid();
    let work = move || start.work(target, fencepost);
    // SAFETY: between fork and exec, in a process whose other threads are gone, only what is safe in a signal handler
    // may be called. `Start::work` makes system calls, reads the clock and writes to its own stack; it neither allocates
    // nor locks.
    unsafe { command.pre_exec(work) };
}

impl Start {
    fn work(&self, target: fn(Pid) -> Target, fencepost: Pid) -> io::Result<()> {
        die_with_parent()?;
        if getppid() != Some(fencepost) {
            // It died before it could be asked to take us with it. Nobody is left to hear of the error.
            return Err(Errno::SRCH.into());
        }
        self.mask.thread_set_mask()?;
        let mut line = [0; Order::MAX];
        let length = Order::Watch(target(getpid())).encode(&mut line);
        // A warden that does not hear it is replaced by fencepost, and the next one is told.
        let _ = send(&self.line, &line[..length]);
        // From here on the warden keeps the deadline; before, fencepost or we may have stood still.
        if Clock::system().now() >= self.until {
            return Err(Errno::TIMEDOUT.into());
        }
        Ok(())
    }
}

/// The second belt: the command's first process is killed when the thread that started it, our main thread, ends.
#[cfg(target_os = "linux")]
fn die_with_parent() -> io::Result<()> {
    Ok(rustix::process::set_parent_process_death_signal(Some(rustix::process::Signal::KILL))?)
}

#[cfg(not(target_os = "linux"))]
fn die_with_parent() -> io::Result<()> {
    Ok(())
}

/// A closed line must not end the process by a signal.
#[cfg(target_os = "linux")]
fn send(line: impl AsFd, bytes: &[u8]) -> rustix::io::Result<usize> {
    rustix::net::send(line, bytes, rustix::net::SendFlags::NOSIGNAL)
}

#[cfg(not(target_os = "linux"))]
fn send(line: impl AsFd, bytes: &[u8]) -> rustix::io::Result<usize> {
    rustix::io::write(line, bytes)
}

/// From now on an interrupt ends this process, as it ends one that has not asked for anything else.
pub(crate) fn end_by_interrupt() {
    let default = SigAction::new(SigHandler::SigDfl, SaFlags::empty(), SigSet::empty());
    // SAFETY: the default action runs no code of ours. The handler that it replaces is not called any more.
    let _ = unsafe { sigaction(Signal::SIGINT, &default) };
}

/// Takes over a descriptor that this process was started with, so that no other process gets it. To be called before
/// anything else is opened.
///
/// # Errors
/// If there is no such descriptor.
pub(crate) fn inherited(number: RawFd) -> io::Result<OwnedFd> {
    // SAFETY: it is only looked at here, and `fcntl` answers with an error if it is not open.
    let looked_at = unsafe { std::os::fd::BorrowedFd::borrow_raw(number) };
    let flags = fcntl_getfd(looked_at)?;
    fcntl_setfd(looked_at, flags | FdFlags::CLOEXEC)?;
    // SAFETY: it is open, and it is nobody else's: nothing was opened yet, and the first three are not asked for.
    Ok(unsafe { OwnedFd::from_raw_fd(number) })
}
