//! Ports for servers.

use std::hash::{BuildHasher, RandomState};
use std::net::{Ipv4Addr, TcpListener};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

/// Below the ports that systems use for outgoing connections, also 10,000 further up, where the nodes of a cluster listen
/// for each other: no other process gets the port of a server that is down for a moment.
const FIRST: u16 = 10_000;
const COUNT: u16 = 12_000;

/// Returns a port on 127.0.0.1 without a listener, which was not returned by this process recently.
///
/// Another process may get the same one before the server listens, so the start of a server retries with another port.
///
/// # Panics
/// If there is none.
pub fn free_port() -> u16 {
    static NEXT: OnceLock<AtomicU64> = OnceLock::new();
    let next = NEXT.get_or_init(|| AtomicU64::new(RandomState::new().hash_one("port") >> 1));
    let candidates = (0..COUNT).map(|_| {
        let turn = next.fetch_add(1, Ordering::Relaxed) % u64::from(COUNT);
        FIRST + u16::try_from(turn).expect("it is less than COUNT")
    });
    let is_free = |port: &u16| TcpListener::bind((Ipv4Addr::LOCALHOST, *port)).is_ok();
    candidates.into_iter().find(is_free).expect("some port is free")
}
