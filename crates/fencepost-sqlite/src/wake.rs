//! Wake-ups between processes: every client has a Unix datagram socket beside the database.
//!
//! A datagram may be lost. A socket that refuses a connection belongs to a dead process. The kernel queues only a few datagrams
//! for a socket (`net.unix.max_dgram_qlen`), so all wake-ups of a commit for one client are sent in one datagram, and a receiver
//! that finds many datagrams assumes that others were dropped.

use std::fs::Permissions;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};
use std::time::Duration;

use fencepost_core::backend::Wakeup;
use fencepost_core::record::ClientId;
use fencepost_core::{Award, FencingToken, LostReason, Owner, Result};

use crate::error::io_error;
use crate::waiter_poll::Waiters;

/// The longest path of a socket that all systems accept.
const MAX_SOCKET_PATH: usize = 100;

/// The sockets of all clients of one database.
#[derive(Debug)]
pub(crate) struct Sockets {
    folder: PathBuf,
    /// Keeps the short path valid if the folder's own is too long for a socket.
    _folder_fd: Option<OwnedFd>,
    /// The path of the folder in the addresses of sockets.
    socket_folder: PathBuf,
    /// The unbound socket that sends to, and probes, all others.
    sender: UnixDatagram,
}

impl Sockets {
    pub(crate) fn open(folder: &Path) -> Result<Self> {
        let failed = |error: io::Error| io_error("could not prepare wake-ups beside", folder, error);
        let sender = UnixDatagram::unbound().map_err(failed)?;
        sender.set_nonblocking(true).map_err(failed)?;
        let (folder_fd, socket_folder) = if folder.as_os_str().len() + 17 <= MAX_SOCKET_PATH {
            (None, folder.to_owned())
        } else {
            let fd = OwnedFd::from(std::fs::File::open(folder).map_err(failed)?);
            let short = PathBuf::from(format!("/proc/self/fd/{}", fd.as_raw_fd()));
            (Some(fd), short)
        };
        Ok(Self { folder: folder.to_owned(), _folder_fd: folder_fd, socket_folder, sender })
    }

    /// Creates the socket of this client.
    pub(crate) fn bind(&self, client: ClientId) -> Result<UnixDatagram> {
        let failed = |error: io::Error| io_error("could not listen for wake-ups in", &self.folder, error);
        let path = self.path(client);
        let socket = UnixDatagram::bind(&path).map_err(failed)?;
        socket.set_nonblocking(true).map_err(failed)?;
        // Accounts that share the folder must be able to probe the socket. The mode of the folder excludes all others.
        std::fs::set_permissions(&path, Permissions::from_mode(0o666)).map_err(failed)?;
        Ok(socket)
    }

    /// Whether this client's process is alive. Removes the socket of a dead one.
    pub(crate) fn is_alive(&self, client: ClientId) -> bool {
        match self.sender.connect(self.path(client)) {
            Ok(()) => true,
            Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => {
                self.remove(client);
                false
            }
            Err(error) => error.kind() != io::ErrorKind::NotFound,
        }
    }

    /// Sends the wake-ups of one commit. A client whose queue is full finds out when it polls.
    pub(crate) fn send(&self, client: ClientId, wakeups: &[Wakeup]) {
        if self.sender.connect(self.path(client)).is_err() {
            return;
        }
        for wakeups in wakeups.chunks(MAX_MESSAGES) {
            let datagram: Vec<u8> = wakeups.iter().filter_map(encode).flatten().collect();
            let _ = self.sender.send(&datagram);
        }
    }

    /// Makes a client check its files and poll for grants of its waiters.
    pub(crate) fn request_poll(&self, client: ClientId) {
        if self.sender.connect(self.path(client)).is_ok() {
            let _ = self.sender.send(&POLL_REQUEST);
        }
    }

    pub(crate) fn remove(&self, client: ClientId) {
        let _ = std::fs::remove_file(self.path(client));
    }

    /// Returns the live clients. Removes the sockets of dead processes.
    pub(crate) fn alive(&self) -> Vec<ClientId> {
        let entries = std::fs::read_dir(&self.folder).into_iter().flatten().flatten();
        let client = |name: std::ffi::OsString| u64::from_str_radix(name.to_str()?, 16).ok().map(ClientId);
        let clients = entries.filter_map(|entry| client(entry.file_name()));
        clients.filter(|client| self.is_alive(*client)).collect()
    }

    fn path(&self, client: ClientId) -> PathBuf {
        self.socket_folder.join(format!("{:016x}", client.0))
    }
}

const GRANTED: u8 = 1;
const CHECK: u8 = 2;
const LOST: u8 = 3;
/// The length of a message: kind, owner, token, ttl, chosen.
const MESSAGE_LEN: usize = 1 + 16 + 8 + 8 + 8;
/// The largest number of messages in a datagram.
const MAX_MESSAGES: usize = 512;
/// The size of the largest datagram.
pub(crate) const MAX_DATAGRAM: usize = MAX_MESSAGES * MESSAGE_LEN;
/// A datagram that is not a message: its receiver polls.
const POLL_REQUEST: [u8; 1] = [0];
/// The number of datagrams in a queue from which others may have been dropped. No system has a shorter queue by default.
pub(crate) const FULL_QUEUE: usize = 8;

fn encode(wakeup: &Wakeup) -> Option<[u8; MESSAGE_LEN]> {
    let message = |kind: u8, owner: Owner, numbers: [u64; 3]| {
        let mut message = [0; MESSAGE_LEN];
        message[0] = kind;
        message[1..17].copy_from_slice(&owner.to_bytes());
        for (at, number) in numbers.into_iter().enumerate() {
            message[17 + 8 * at..25 + 8 * at].copy_from_slice(&number.to_be_bytes());
        }
        message
    };
    Some(match wakeup {
        Wakeup::Granted { attempt, award } => {
            let ttl = u64::try_from(award.ttl.as_nanos()).ok()?;
            message(GRANTED, attempt.owner, [award.token.get(), ttl, award.chosen as u64])
        }
        Wakeup::Offered { attempt } => message(CHECK, attempt.owner, [0; 3]),
        Wakeup::Check { owner } => message(CHECK, *owner, [0; 3]),
        Wakeup::Lost { owner, .. } => message(LOST, *owner, [0; 3]),
        Wakeup::CheckAll => return None,
    })
}

/// Decodes the wake-ups of a datagram; `None` requests a poll.
pub(crate) fn decode(datagram: &[u8], waiters: &Waiters) -> Option<Vec<Wakeup>> {
    datagram.chunks(MESSAGE_LEN).map(|message| decode_message(message, waiters)).collect()
}

fn decode_message(message: &[u8], waiters: &Waiters) -> Option<Wakeup> {
    let number = |at: usize| message.get(at..at + 8)?.try_into().ok().map(u64::from_be_bytes);
    let owner = Owner::from_bytes(message.get(1..MESSAGE_LEN)?.get(..16)?.try_into().ok()?);
    Some(match *message.first()? {
        GRANTED => {
            let award = Award {
                token: FencingToken::new(number(17)?),
                ttl: Duration::from_nanos(number(25)?),
                chosen: usize::try_from(number(33)?).ok()?,
                elapsed: Duration::ZERO,
            };
            match waiters.attempt(owner) {
                Some(attempt) => Wakeup::Granted { attempt, award },
                // The writer thread has not recorded the ticket yet.
                None => Wakeup::Check { owner },
            }
        }
        CHECK => Wakeup::Check { owner },
        LOST => Wakeup::Lost { owner, reason: LostReason::Broken },
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_are_decoded_as_they_were_encoded() {
        let owner = Owner::random();
        let wakeups = [Wakeup::Check { owner }, Wakeup::Lost { owner, reason: LostReason::Broken }];
        let datagram: Vec<u8> = wakeups.iter().filter_map(encode).flatten().collect();
        let waiters = Waiters::default();
        assert_eq!(format!("{:?}", decode(&datagram, &waiters).unwrap()), format!("{wakeups:?}"));
        for request in [&POLL_REQUEST[..], b"garbage", &[9; MESSAGE_LEN]] {
            assert!(decode(request, &waiters).is_none(), "{request:?}");
        }
    }

    #[test]
    fn a_dead_client_is_distinguished_from_a_live_one_however_long_the_path() {
        let folder = tempfile::tempdir().unwrap();
        let deep = folder.path().join("deep".repeat(40));
        std::fs::create_dir(&deep).unwrap();
        for folder in [folder.path(), &deep] {
            let sockets = Sockets::open(folder).unwrap();
            let client = ClientId(42);
            assert!(!sockets.is_alive(client));
            let socket = sockets.bind(client).unwrap();
            assert!(sockets.is_alive(client));
            drop(socket);
            assert!(!sockets.is_alive(client));
            assert!(!folder.join("000000000000002a").exists(), "the dead client's socket is removed");
        }
    }
}
