//! Wake-ups between processes: every client has a Unix datagram socket beside the database.
//!
//! A datagram is a hint that may get lost; a socket that refuses tells that its process is dead. The kernel queues only a
//! few datagrams for a socket (`net.unix.max_dgram_qlen`), so all wake-ups of a commit for one client travel in one, and
//! a receiver that finds many of them takes it that some were dropped.

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
use crate::lookout::Waiters;

/// The longest path of a socket that every system takes.
const MAX_SOCKET_PATH: usize = 100;

/// The sockets of all clients of one database.
#[derive(Debug)]
pub(crate) struct Sockets {
    folder: PathBuf,
    /// Keeps the short way to the folder open, where the long one does not fit.
    _short_way: Option<OwnedFd>,
    /// Where the folder is reached by sockets.
    reach: PathBuf,
    probe: UnixDatagram,
}

impl Sockets {
    pub(crate) fn open(folder: &Path) -> Result<Self> {
        let failed = |error: io::Error| io_error("could not prepare wake-ups beside", folder, error);
        let probe = UnixDatagram::unbound().map_err(failed)?;
        probe.set_nonblocking(true).map_err(failed)?;
        let (short_way, reach) = if folder.as_os_str().len() + 17 <= MAX_SOCKET_PATH {
            (None, folder.to_owned())
        } else {
            let way = OwnedFd::from(std::fs::File::open(folder).map_err(failed)?);
            let reach = PathBuf::from(format!("/proc/self/fd/{}", way.as_raw_fd()));
            (Some(way), reach)
        };
        Ok(Self { folder: folder.to_owned(), _short_way: short_way, reach, probe })
    }

    /// The socket of this client, made new.
    pub(crate) fn bind(&self, client: ClientId) -> Result<UnixDatagram> {
        let failed = |error: io::Error| io_error("could not listen for wake-ups in", &self.folder, error);
        let path = self.path(client);
        let socket = UnixDatagram::bind(&path).map_err(failed)?;
        socket.set_nonblocking(true).map_err(failed)?;
        // Accounts that share the folder must be able to tell a live client from a dead one. The folder keeps all others out.
        std::fs::set_permissions(&path, Permissions::from_mode(0o666)).map_err(failed)?;
        Ok(socket)
    }

    /// Whether this client's process is alive. Clears away the socket of one that is not.
    pub(crate) fn is_alive(&self, client: ClientId) -> bool {
        match self.probe.connect(self.path(client)) {
            Ok(()) => true,
            Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => {
                self.remove(client);
                false
            }
            Err(error) => error.kind() != io::ErrorKind::NotFound,
        }
    }

    /// Sends the wake-ups of one commit. A client that cannot take them now looks by itself later.
    pub(crate) fn send(&self, client: ClientId, wakeups: &[Wakeup]) {
        if self.probe.connect(self.path(client)).is_err() {
            return;
        }
        for wakeups in wakeups.chunks(LETTERS) {
            let datagram: Vec<u8> = wakeups.iter().filter_map(encode).flatten().collect();
            let _ = self.probe.send(&datagram);
        }
    }

    /// Tells a client to look: at its files, and for grants of its waiters.
    pub(crate) fn nudge(&self, client: ClientId) {
        if self.probe.connect(self.path(client)).is_ok() {
            let _ = self.probe.send(&NUDGE);
        }
    }

    pub(crate) fn remove(&self, client: ClientId) {
        let _ = std::fs::remove_file(self.path(client));
    }

    /// The clients that are alive. Clears away the sockets of dead processes.
    pub(crate) fn alive(&self) -> Vec<ClientId> {
        let entries = std::fs::read_dir(&self.folder).into_iter().flatten().flatten();
        let client = |name: std::ffi::OsString| u64::from_str_radix(name.to_str()?, 16).ok().map(ClientId);
        let clients = entries.filter_map(|entry| client(entry.file_name()));
        clients.filter(|client| self.is_alive(*client)).collect()
    }

    fn path(&self, client: ClientId) -> PathBuf {
        self.reach.join(format!("{:016x}", client.0))
    }
}

const GRANTED: u8 = 1;
const TURN: u8 = 2;
const GONE: u8 = 3;
/// The length of every letter: kind, owner, token, ttl, chosen.
const LETTER: usize = 1 + 16 + 8 + 8 + 8;
/// How many letters a datagram has at most.
const LETTERS: usize = 512;
/// The size of the longest datagram.
pub(crate) const LONGEST: usize = LETTERS * LETTER;
/// A letter that makes no sense: its receiver looks.
const NUDGE: [u8; 1] = [0];
/// With so many datagrams in a queue others may have been dropped. No system has a shorter queue by default.
pub(crate) const FULL_QUEUE: usize = 8;

fn encode(wakeup: &Wakeup) -> Option<[u8; LETTER]> {
    let letter = |kind: u8, owner: Owner, numbers: [u64; 3]| {
        let mut letter = [0; LETTER];
        letter[0] = kind;
        letter[1..17].copy_from_slice(&owner.to_bytes());
        for (at, number) in numbers.into_iter().enumerate() {
            letter[17 + 8 * at..25 + 8 * at].copy_from_slice(&number.to_be_bytes());
        }
        letter
    };
    Some(match wakeup {
        Wakeup::Granted { attempt, award } => {
            let ttl = u64::try_from(award.ttl.as_nanos()).ok()?;
            letter(GRANTED, attempt.owner, [award.token.get(), ttl, award.chosen as u64])
        }
        Wakeup::Offered { attempt } => letter(TURN, attempt.owner, [0; 3]),
        Wakeup::Check { owner } => letter(TURN, *owner, [0; 3]),
        Wakeup::Lost { owner, .. } => letter(GONE, *owner, [0; 3]),
        Wakeup::CheckAll => return None,
    })
}

/// Reads a datagram: its wake-ups, or nothing if it asks for a look.
pub(crate) fn decode(datagram: &[u8], waiters: &Waiters) -> Option<Vec<Wakeup>> {
    datagram.chunks(LETTER).map(|letter| decode_letter(letter, waiters)).collect()
}

fn decode_letter(letter: &[u8], waiters: &Waiters) -> Option<Wakeup> {
    let number = |at: usize| letter.get(at..at + 8)?.try_into().ok().map(u64::from_be_bytes);
    let owner = Owner::from_bytes(letter.get(1..LETTER)?.get(..16)?.try_into().ok()?);
    Some(match *letter.first()? {
        GRANTED => {
            let award = Award {
                token: FencingToken::new(number(17)?),
                ttl: Duration::from_nanos(number(25)?),
                chosen: usize::try_from(number(33)?).ok()?,
                elapsed: Duration::ZERO,
            };
            match waiters.attempt(owner) {
                Some(attempt) => Wakeup::Granted { attempt, award },
                // The writer has not noted the ticket yet.
                None => Wakeup::Check { owner },
            }
        }
        TURN => Wakeup::Check { owner },
        GONE => Wakeup::Lost { owner, reason: LostReason::Broken },
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn letters_are_read_as_they_were_written() {
        let owner = Owner::random();
        let wakeups = [Wakeup::Check { owner }, Wakeup::Lost { owner, reason: LostReason::Broken }];
        let datagram: Vec<u8> = wakeups.iter().filter_map(encode).flatten().collect();
        let waiters = Waiters::default();
        assert_eq!(format!("{:?}", decode(&datagram, &waiters).unwrap()), format!("{wakeups:?}"));
        for look in [&NUDGE[..], b"garbage", &[9; LETTER]] {
            assert!(decode(look, &waiters).is_none(), "{look:?}");
        }
    }

    #[test]
    fn a_dead_client_is_told_from_a_live_one_however_long_the_path() {
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
            assert!(!folder.join("000000000000002a").exists(), "the dead one's socket is cleared away");
        }
    }
}
