//! The warden: a second process that kills the command when its lease can end, or when fencepost dies. A fencepost that
//! was stopped cannot kill anything, and the parent-death signal reaches only its children, not their children.
//!
//! It is the same program, started again under another name, so that killing every `fencepost` by name leaves it alive. It
//! has no connection to the backend and prints nothing: it receives each new end of the lease over a socket.

mod orders;
mod process;

use std::ffi::OsStr;
use std::io::{self, Write};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

use fencepost::clock::Moment;
use rustix::process::{Pid, WaitId, WaitIdOptions, waitid};

pub(crate) use orders::{Order, Target};
pub(crate) use process::watch;

/// The name of the warden, in a list of processes too.
const NAME: &str = "fp-warden";
/// What it sends when it is ready.
const READY: &[u8] = b"ready\n";
/// Its exit code after it has killed the command.
const KILLED: u8 = 3;

/// Returns whether this process was started as a warden.
pub(crate) fn is_warden() -> bool {
    std::env::args_os().next().as_deref() == Some(OsStr::new(NAME))
}

/// The state of a warden.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum WardenState {
    Ready,
    /// It has killed the command.
    Killed,
    /// It is gone, was stopped, or does not read its orders.
    Failed,
}

/// A running warden. It is ended when this is dropped: the command must be gone by then.
pub(crate) struct Warden {
    process: Child,
    socket: UnixStream,
    receives: bool,
}

impl Warden {
    /// Starts a warden.
    ///
    /// # Errors
    /// If no process can be started.
    pub(crate) fn start() -> io::Result<Self> {
        Self::start_with(&[])
    }

    /// Starts a warden that finds these orders when it starts: this process may be killed as soon as it has.
    fn start_with(orders: &[Order]) -> io::Result<Self> {
        let (socket, theirs) = UnixStream::pair()?;
        socket.set_nonblocking(true)?;
        let receives = orders.iter().fold(true, |receives, order| receives & send(&socket, *order));
        let mut command = Command::new(own_program());
        let process = command
            .arg0(NAME)
            .stdin(OwnedFd::from(theirs))
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .current_dir("/")
            .env_clear()
            .spawn()?;
        Ok(Self { process, socket, receives })
    }

    /// Waits until it is ready.
    ///
    /// # Errors
    /// If it has exited instead.
    ///
    /// # Cancel safety
    /// Dropping the future loses nothing.
    pub(crate) async fn ready(&self) -> io::Result<()> {
        let socket = tokio::net::UnixStream::from_std(self.socket.try_clone()?)?;
        loop {
            socket.readable().await?;
            match socket.try_read(&mut [0; READY.len()]) {
                Ok(0) => return Err(io::Error::other("it has exited")),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                read => return read.map(drop),
            }
        }
    }

    /// Returns its process id.
    pub(crate) fn id(&self) -> Option<Pid> {
        i32::try_from(self.process.id()).ok().and_then(Pid::from_raw)
    }

    /// Returns the socket over which a command registers before it is executed.
    ///
    /// # Errors
    /// If there are too many open files.
    pub(crate) fn socket(&self) -> io::Result<OwnedFd> {
        Ok(self.socket.try_clone()?.into())
    }

    /// Sends it an order. This never blocks: a warden that does not read its orders is replaced.
    pub(crate) fn tell(&mut self, order: Order) {
        self.receives &= send(&self.socket, order);
    }

    /// Returns its state.
    pub(crate) fn state(&mut self) -> WardenState {
        match self.process.try_wait() {
            Ok(Some(status)) if status.code() == Some(i32::from(KILLED)) => WardenState::Killed,
            Ok(None) if self.receives && !self.is_stopped() => WardenState::Ready,
            _ => WardenState::Failed,
        }
    }

    /// Returns whether it was stopped: it would kill no process.
    fn is_stopped(&self) -> bool {
        let options = WaitIdOptions::STOPPED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
        self.id().is_some_and(|id| matches!(waitid(WaitId::Pid(id), options), Ok(Some(_))))
    }

    /// Replaces it by another one with the same orders.
    ///
    /// # Errors
    /// If no process can be started.
    pub(crate) fn replace(&mut self, target: Target, until: Moment) -> io::Result<()> {
        *self = Self::start_with(&[Order::Watch(target), Order::Until(until)])?;
        Ok(())
    }
}

impl Drop for Warden {
    fn drop(&mut self) {
        // Ends it at once even if it was stopped, and reaps it: the parent of fencepost may never reap adopted zombies.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// Returns whether the whole order could be sent.
fn send(mut socket: &UnixStream, order: Order) -> bool {
    let mut text = [0; Order::MAX];
    let length = order.encode(&mut text);
    socket.write(&text[..length]).is_ok_and(|written| written == length)
}

/// Returns the path of this program, also if its file was replaced or deleted meanwhile.
fn own_program() -> PathBuf {
    let running = PathBuf::from("/proc/self/exe");
    if running.exists() { running } else { std::env::current_exe().unwrap_or_else(|_| executed_file()) }
}

/// Returns the file that was executed to start this process, where there is no `/proc`. The path is made absolute because
/// the warden starts in another folder.
#[cfg(target_os = "linux")]
fn executed_file() -> PathBuf {
    use std::os::unix::ffi::OsStrExt;

    let path = PathBuf::from(OsStr::from_bytes(rustix::param::linux_execfn().to_bytes()));
    std::path::absolute(&path).unwrap_or(path)
}

#[cfg(not(target_os = "linux"))]
fn executed_file() -> PathBuf {
    std::env::args_os().next().unwrap_or_default().into()
}
