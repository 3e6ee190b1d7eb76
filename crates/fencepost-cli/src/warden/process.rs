//! The warden's own process: it hears its orders, and kills when the lease can end or when fencepost is gone.

use std::io;
use std::os::fd::AsFd;
use std::process::ExitCode;

use fencepost::clock::{Clock, Timer};
use rustix::process::{Signal, kill_process, kill_process_group, nice, setsid};
use tokio::net::UnixStream;

use super::KILLED;
use super::orders::{Orders, Target};
use crate::signals::Signals;

/// Watches until there is nothing left to watch.
pub(crate) fn watch() -> ExitCode {
    let outcome = crate::commands::runtime().and_then(|runtime| runtime.block_on(on_duty()));
    // Nobody hears it: fencepost sees the exit code and finds another warden.
    outcome.unwrap_or(ExitCode::FAILURE)
}

async fn on_duty() -> io::Result<ExitCode> {
    // A session of its own: what is typed at the terminal does not reach it. It leads none yet, so this cannot fail.
    let _ = setsid();
    take_name();
    take_priority();
    // Signals that are meant for fencepost or for a whole service are taken, and not acted on.
    let mut signals = Signals::new()?;
    signals.take_all()?;
    let mut line = Line::from_stdin()?;
    let clock = Clock::system();
    let mut timer = clock.timer()?;
    // If fencepost is gone already, there may be somebody to kill all the same.
    let _ = line.say_ready().await;
    loop {
        let hung_up = line.listen(&mut timer).await?;
        if hung_up || clock.now() >= line.orders.end() {
            kill(line.orders.target);
            return Ok(ExitCode::from(KILLED));
        }
    }
}

/// Whoever kills all of one name looks at this one.
fn take_name() {
    #[cfg(target_os = "linux")]
    let _ = std::ffi::CString::new(super::NAME).map(|name| rustix::thread::set_name(&name));
}

/// It does hardly anything, and that should be in time. Only root gets this; others have the headroom.
fn take_priority() {
    let _ = nice(-20);
    // On a desktop or a small machine every session has a share of its own, and priorities count within it.
    #[cfg(target_os = "linux")]
    let _ = std::fs::write("/proc/self/autogroup", "-20");
}

/// The line to fencepost.
struct Line {
    stream: UnixStream,
    orders: Orders,
}

impl Line {
    fn from_stdin() -> io::Result<Self> {
        let stream = std::os::unix::net::UnixStream::from(io::stdin().as_fd().try_clone_to_owned()?);
        stream.set_nonblocking(true)?;
        Ok(Self { stream: UnixStream::from_std(stream)?, orders: Orders::default() })
    }

    async fn say_ready(&self) -> io::Result<()> {
        self.stream.writable().await?;
        self.stream.try_write(super::READY).map(drop)
    }

    /// Waits for orders or for the end of the lease. Whatever has been said is heard before anything is decided.
    /// Returns whether fencepost has gone.
    async fn listen(&mut self, timer: &mut Timer) -> io::Result<bool> {
        timer.arm(self.orders.end());
        tokio::select! {
            ready = self.stream.readable() => ready?,
            () = timer.fired() => {}
        }
        let mut buffer = [0; 1024];
        loop {
            match self.stream.try_read(&mut buffer) {
                Ok(0) => return Ok(true),
                Ok(count) => self.orders.hear(&buffer[..count]),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(false),
                // A peer that was killed with words of ours unread hangs up like this.
                Err(error) if error.kind() == io::ErrorKind::ConnectionReset => return Ok(true),
                Err(error) => return Err(error),
            }
        }
    }
}

/// Whoever is gone already need not be killed; whoever may not be signalled cannot be.
fn kill(target: Option<Target>) {
    let _ = match target {
        Some(Target::Group(id)) => kill_process_group(id, Signal::KILL),
        Some(Target::Process(id)) => kill_process(id, Signal::KILL),
        None => Ok(()),
    };
}
