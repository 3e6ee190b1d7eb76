//! The only file with `unsafe` code: what the compiler cannot check, and why it is sound.
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

/// What a new process does between fork and exec.
pub(crate) struct Start {
    /// The socket of the warden, with which it registers.
    pub(crate) socket: OwnedFd,
    /// The signal mask of the command.
    pub(crate) mask: SigSet,
    /// The time after which the command must not be executed.
    pub(crate) until: Moment,
}

/// Makes a command do this before it is executed. It registers with the warden as this target.
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
            // It died before the death signal was set. No process is left to receive the error.
            return Err(Errno::SRCH.into());
        }
        self.mask.thread_set_mask()?;
        let mut order = [0; Order::MAX];
        let length = Order::Watch(target(getpid())).encode(&mut order);
        // A warden that does not receive it is replaced by fencepost, and the next one is told.
        let _ = send(&self.socket, &order[..length]);
        // From here on the warden enforces the deadline; before, fencepost or this process may have been stopped.
        if Clock::system().now() >= self.until {
            return Err(Errno::TIMEDOUT.into());
        }
        Ok(())
    }
}

/// A second safeguard: the command's first process is killed when the thread that started it, the main thread, ends.
#[cfg(target_os = "linux")]
fn die_with_parent() -> io::Result<()> {
    Ok(rustix::process::set_parent_process_death_signal(Some(rustix::process::Signal::KILL))?)
}

#[cfg(not(target_os = "linux"))]
fn die_with_parent() -> io::Result<()> {
    Ok(())
}

/// Sends without SIGPIPE: a closed socket must not kill the process.
#[cfg(target_os = "linux")]
fn send(socket: impl AsFd, bytes: &[u8]) -> rustix::io::Result<usize> {
    rustix::net::send(socket, bytes, rustix::net::SendFlags::NOSIGNAL)
}

#[cfg(not(target_os = "linux"))]
fn send(socket: impl AsFd, bytes: &[u8]) -> rustix::io::Result<usize> {
    rustix::io::write(socket, bytes)
}

/// Restores the default action of SIGINT: from now on it terminates this process.
pub(crate) fn end_by_interrupt() {
    let default = SigAction::new(SigHandler::SigDfl, SaFlags::empty(), SigSet::empty());
    // SAFETY: the default action runs no code of this program. The handler that it replaces is not called any more.
    let _ = unsafe { sigaction(Signal::SIGINT, &default) };
}

/// Takes ownership of a descriptor that this process was started with, so that no child inherits it. Must be called before
/// anything else is opened.
///
/// # Errors
/// If there is no such descriptor.
pub(crate) fn inherited(number: RawFd) -> io::Result<OwnedFd> {
    // SAFETY: it is only borrowed here, and `fcntl` returns an error if it is not open.
    let borrowed = unsafe { std::os::fd::BorrowedFd::borrow_raw(number) };
    let flags = fcntl_getfd(borrowed)?;
    fcntl_setfd(borrowed, flags | FdFlags::CLOEXEC)?;
    // SAFETY: it is open and has no other owner: nothing was opened yet, and the first three are never requested.
    Ok(unsafe { OwnedFd::from_raw_fd(number) })
}
