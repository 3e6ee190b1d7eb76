//! The warden: a second process that kills the command when its lease can end, or when fencepost dies. A fencepost that
//! was stopped cannot kill anything, and the signal that a dying parent sends reaches its children only, not theirs.
//!
//! It is the same program, started again under another name, so that whoever kills every `fencepost` by name leaves it
//! alive. It has no connection to the storage and nothing to say: it gets each new end of the lease over a socket.

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

/// What the warden is called, in a list of processes too.
const NAME: &str = "fp-warden";
/// What it says when it is ready.
const READY: &[u8] = b"ready\n";
/// Its exit code when it has killed.
const KILLED: u8 = 3;

/// Whether this process was started to be a warden.
pub(crate) fn is_meant() -> bool {
    std::env::args_os().next().as_deref() == Some(OsStr::new(NAME))
}

/// How a warden is found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fate {
    OnDuty,
    /// It has killed the command.
    Killed,
    /// It is gone, was stopped, or does not listen.
    Useless,
}

/// A warden on duty. It ends when this is dropped: the command must be gone by then.
pub(crate) struct Warden {
    process: Child,
    line: UnixStream,
    listens: bool,
}

impl Warden {
    /// Starts a warden.
    ///
    /// # Errors
    /// If no process can be started.
    pub(crate) fn start() -> io::Result<Self> {
        Self::start_with(&[])
    }

    /// Starts a warden that finds these orders when it comes: we may be killed as soon as it is there.
    fn start_with(orders: &[Order]) -> io::Result<Self> {
        let (line, theirs) = UnixStream::pair()?;
        line.set_nonblocking(true)?;
        let listens = orders.iter().fold(true, |listens, order| listens & say(&line, *order));
        let mut command = Command::new(ourselves());
        let process = command
            .arg0(NAME)
            .stdin(OwnedFd::from(theirs))
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .current_dir("/")
            .env_clear()
            .spawn()?;
        Ok(Self { process, line, listens })
    }

    /// Waits until it is ready.
    ///
    /// # Errors
    /// If it has ended instead.
    ///
    /// # Cancel safety
    /// Dropping the future loses nothing.
    pub(crate) async fn ready(&self) -> io::Result<()> {
        let line = tokio::net::UnixStream::from_std(self.line.try_clone()?)?;
        loop {
            line.readable().await?;
            match line.try_read(&mut [0; READY.len()]) {
                Ok(0) => return Err(io::Error::other("it has ended")),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                said => return said.map(drop),
            }
        }
    }

    /// Its process.
    pub(crate) fn id(&self) -> Option<Pid> {
        i32::try_from(self.process.id()).ok().and_then(Pid::from_raw)
    }

    /// The line over which a command can name itself before it begins.
    ///
    /// # Errors
    /// If there are too many open files.
    pub(crate) fn line(&self) -> io::Result<OwnedFd> {
        Ok(self.line.try_clone()?.into())
    }

    /// Tells it something. It is never waited for: one that does not listen is of no use.
    pub(crate) fn tell(&mut self, order: Order) {
        self.listens &= say(&self.line, order);
    }

    /// Looks how it is.
    pub(crate) fn look(&mut self) -> Fate {
        match self.process.try_wait() {
            Ok(Some(status)) if status.code() == Some(i32::from(KILLED)) => Fate::Killed,
            Ok(None) if self.listens && !self.stands_still() => Fate::OnDuty,
            _ => Fate::Useless,
        }
    }

    /// Whether it was stopped: it would not kill anybody.
    fn stands_still(&self) -> bool {
        let options = WaitIdOptions::STOPPED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
        self.id().is_some_and(|id| matches!(waitid(WaitId::Pid(id), options), Ok(Some(_))))
    }

    /// Puts another one in its place, and tells it everything.
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
        // It ends at once even if it stands still, and does not stay a zombie where nobody clears those away.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// Returns whether all of it could be said.
fn say(mut line: &UnixStream, order: Order) -> bool {
    let mut text = [0; Order::MAX];
    let length = order.encode(&mut text);
    line.write(&text[..length]).is_ok_and(|written| written == length)
}

/// This program, also if its file was replaced or deleted meanwhile.
fn ourselves() -> PathBuf {
    let running = PathBuf::from("/proc/self/exe");
    if running.exists() { running } else { std::env::current_exe().unwrap_or_else(|_| as_started()) }
}

/// The file that was executed to start us, where there is no `/proc` to ask. The warden starts in another folder.
#[cfg(target_os = "linux")]
fn as_started() -> PathBuf {
    use std::os::unix::ffi::OsStrExt;

    let path = PathBuf::from(OsStr::from_bytes(rustix::param::linux_execfn().to_bytes()));
    std::path::absolute(&path).unwrap_or(path)
}

#[cfg(not(target_os = "linux"))]
fn as_started() -> PathBuf {
    std::env::args_os().next().unwrap_or_default().into()
}
