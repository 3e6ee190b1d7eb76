//! The process of the warden: it receives orders, and kills when the lease can end or when fencepost is gone.

use std::io;
use std::os::fd::AsFd;
use std::process::ExitCode;

use fencepost::clock::{Clock, Timer};
use rustix::process::{Signal, kill_process, kill_process_group, nice, setsid};
use tokio::net::UnixStream;

use super::KILLED;
use super::orders::{Orders, Target};
use crate::signals::Signals;

/// Runs until the command is gone or has been killed.
pub(crate) fn watch() -> ExitCode {
    let outcome = crate::commands::runtime().and_then(|runtime| runtime.block_on(run()));
    // The error is not printed: fencepost sees the exit code and starts another warden.
    outcome.unwrap_or(ExitCode::FAILURE)
}

async fn run() -> io::Result<ExitCode> {
    // In a session of its own, keys typed at the terminal do not reach it. It leads no session yet, so this cannot fail.
    let _ = setsid();
    set_name();
    raise_priority();
    // Signals that are meant for fencepost or for a whole service are caught and ignored.
    let mut signals = Signals::new()?;
    signals.take_all()?;
    let mut connection = Connection::from_stdin()?;
    let clock = Clock::system();
    let mut timer = clock.timer()?;
    // If fencepost is gone already, there may still be a command to kill.
    let _ = connection.send_ready().await;
    loop {
        let is_closed = connection.receive(&mut timer).await?;
        if is_closed || clock.now() >= connection.orders.end() {
            kill(connection.orders.target);
            return Ok(ExitCode::from(KILLED));
        }
    }
}

/// Sets the name that `pkill` and `killall` compare.
fn set_name() {
    #[cfg(target_os = "linux")]
    let _ = std::ffi::CString::new(super::NAME).map(|name| rustix::thread::set_name(&name));
}

/// Raises the priority: the warden does hardly anything, and that must be in time. Only root may; for others there is the
/// headroom.
fn raise_priority() {
    let _ = nice(-20);
    // With autogroups every session has a share of the CPU of its own, and priorities count only within it.
    #[cfg(target_os = "linux")]
    let _ = std::fs::write("/proc/self/autogroup", "-20");
}

/// The connection to fencepost.
struct Connection {
    stream: UnixStream,
    orders: Orders,
}

impl Connection {
    fn from_stdin() -> io::Result<Self> {
        let stream = std::os::unix::net::UnixStream::from(io::stdin().as_fd().try_clone_to_owned()?);
        stream.set_nonblocking(true)?;
        Ok(Self { stream: UnixStream::from_std(stream)?, orders: Orders::default() })
    }

    async fn send_ready(&self) -> io::Result<()> {
        self.stream.writable().await?;
        self.stream.try_write(super::READY).map(drop)
    }

    /// Waits for orders or for the end of the lease, and applies all orders that have arrived. Returns whether fencepost
    /// has closed the connection.
    async fn receive(&mut self, timer: &mut Timer) -> io::Result<bool> {
        timer.arm(self.orders.end());
        tokio::select! {
            ready = self.stream.readable() => ready?,
            () = timer.fired() => {}
        }
        let mut buffer = [0; 1024];
        loop {
            match self.stream.try_read(&mut buffer) {
                Ok(0) => return Ok(true),
                Ok(count) => self.orders.receive(&buffer[..count]),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(false),
                // The peer was killed before it had read everything.
                Err(error) if error.kind() == io::ErrorKind::ConnectionReset => return Ok(true),
                Err(error) => return Err(error),
            }
        }
    }
}

/// Kills the target. One that is gone need not be killed, and one that may not be signalled cannot be.
fn kill(target: Option<Target>) {
    let _ = match target {
        Some(Target::Group(id)) => kill_process_group(id, Signal::KILL),
        Some(Target::Process(id)) => kill_process(id, Signal::KILL),
        None => Ok(()),
    };
}
