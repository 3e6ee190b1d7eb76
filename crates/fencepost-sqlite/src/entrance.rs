//! The first turn of a new client: no database is opened, or made, while other clients have files open that were
//! removed from its path. Those clients hold locks that the newcomer would not see.

use std::path::Path;
use std::time::Duration;

use fencepost_core::clock::Clock;
use fencepost_core::record::ClientId;
use fencepost_core::{Error, ErrorKind, Result};

use crate::identity::is_whole;
use crate::turnstile::{Turn, Turnstile};
use crate::wake::Sockets;

/// How long clients of removed files are waited for. They are told to look, and need a moment.
const EVICTION: Duration = Duration::from_secs(5);
const STEP: Duration = Duration::from_millis(5);

/// Takes the turn in which a new client opens the database.
pub(crate) fn enter(
    path: &Path,
    turnstile: &mut Turnstile,
    sockets: &Sockets,
    clock: &Clock,
) -> Result<Turn> {
    let give_up = clock.now() + EVICTION;
    loop {
        let turn = turnstile.enter(clock)?;
        // A client has a socket for as long as it has the files open, so all of them are there if one has.
        let evicted = if is_whole(path) { Vec::new() } else { sockets.alive() };
        if evicted.is_empty() {
            return Ok(turn);
        }
        // They may need the turn to find out.
        drop(turn);
        if clock.now() > give_up {
            return Err(still_open(path, &evicted));
        }
        for client in evicted {
            sockets.nudge(client);
        }
        std::thread::park_timeout(STEP);
    }
}

fn still_open(path: &Path, clients: &[ClientId]) -> Error {
    let text = format!(
        "the database was removed or replaced, and clients of the old one do not react ({}): sqlite:{}",
        clients.len(),
        path.display()
    );
    Error::new(ErrorKind::Backend, text).with_hint("stop the processes that have it open, then connect again")
}
