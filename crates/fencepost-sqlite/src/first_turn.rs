//! The first turn of a new client. A database is not opened, or created, while other clients have files open that were removed
//! from its path: they hold locks that the new client would not see.

use std::path::Path;
use std::time::Duration;

use fencepost_core::clock::Clock;
use fencepost_core::record::ClientId;
use fencepost_core::{Error, ErrorKind, Result};

use crate::identity::is_whole;
use crate::turnstile::{Turn, Turnstile};
use crate::wake::Sockets;

/// Bounds the wait for clients of removed files, which are asked to check them, to notice and close their sockets.
const EVICTION_TIMEOUT: Duration = Duration::from_secs(5);
/// The interval at which they are asked again.
const POLL_INTERVAL: Duration = Duration::from_millis(5);

/// Takes the turn in which a new client opens the database.
pub(crate) fn take(path: &Path, turnstile: &mut Turnstile, sockets: &Sockets, clock: &Clock) -> Result<Turn> {
    let deadline = clock.now() + EVICTION_TIMEOUT;
    loop {
        let turn = turnstile.enter(clock)?;
        // A client has a socket for as long as it has the files open, so all files exist if a client has a socket.
        let stale = if is_whole(path) { Vec::new() } else { sockets.alive() };
        if stale.is_empty() {
            return Ok(turn);
        }
        // The stale clients may need the turn to find out.
        drop(turn);
        if clock.now() > deadline {
            return Err(still_open(path, &stale));
        }
        for client in stale {
            sockets.request_poll(client);
        }
        std::thread::park_timeout(POLL_INTERVAL);
    }
}

fn still_open(path: &Path, clients: &[ClientId]) -> Error {
    let text = format!(
        "the database was removed or replaced, and clients of the old one do not respond ({}): sqlite:{}",
        clients.len(),
        path.display()
    );
    Error::new(ErrorKind::Backend, text).with_hint("stop the processes that have it open, then connect again")
}
