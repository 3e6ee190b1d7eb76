//! A TCP proxy between clients and a server on this machine that can cut, delay and lose what it forwards.
//!
//! [`Proxy`](crate::proxy::Proxy) works on the operations of a backend, this works on the bytes of a connection: it shows
//! how drivers behave on a faulty network.

mod conditions;
mod forward;

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::mpsc;
use std::thread::JoinHandle;
use std::time::Duration;

use tokio::net::TcpListener;
use tokio::sync::watch;

use conditions::{Conditions, Link};
use forward::forward;

/// A direction of the wire.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// What clients send.
    ToServer,
    /// What the server sends.
    ToClient,
}

/// The proxy, with a thread of its own: it works while a test blocks its runtime. Dropping it closes all connections.
///
/// Conditions apply at once, to present and new connections, until [`Wire::heal`].
#[derive(Debug)]
pub struct Wire {
    port: u16,
    server: u16,
    conditions: watch::Sender<Conditions>,
    thread: Option<JoinHandle<()>>,
}

impl Wire {
    /// Creates a wire to the server on this port of 127.0.0.1, on a port of its own.
    ///
    /// # Panics
    /// If there is no port or no thread for it.
    pub fn to(server: u16) -> Self {
        Self::with(server, Conditions::default())
    }

    /// Like [`Wire::to`], for a server that is not always up: a client that connects before it is waits on the wire instead
    /// of being refused.
    ///
    /// # Panics
    /// If there is no port or no thread for it.
    pub fn to_late(server: u16) -> Self {
        Self::with(server, Conditions { waits_for_server: true, ..Conditions::default() })
    }

    fn with(server: u16, conditions: Conditions) -> Self {
        let conditions = watch::Sender::new(conditions);
        let (tell_port, port) = mpsc::channel();
        let seen = conditions.clone();
        let run = move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
            runtime.expect("a runtime can be created").block_on(serve(server, seen, tell_port));
        };
        let thread =
            std::thread::Builder::new().name("wire".into()).spawn(run).expect("a thread can be started");
        Self {
            port: port.recv().expect("the wire reports its port"),
            server,
            conditions,
            thread: Some(thread),
        }
    }

    /// The port on 127.0.0.1 for clients.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// The port of the server.
    pub fn server(&self) -> u16 {
        self.server
    }

    /// Returns how many clients are connected.
    pub fn connections(&self) -> usize {
        self.conditions.borrow().connections
    }

    /// Returns how many pieces clients have sent so far: no more than one for each request that fits into a packet, since one that
    /// waits for a reply is sent at once.
    pub fn sent(&self) -> usize {
        self.conditions.borrow().sent
    }

    /// Delays everything by this much, in both directions.
    pub fn delay(&self, delay: Duration) {
        self.change(|conditions| conditions.delay = delay);
    }

    /// Limits the bytes per second, in each direction of each connection.
    ///
    /// # Panics
    /// If nothing would ever arrive: that is [`Wire::blackhole`].
    pub fn throttle(&self, bytes_per_second: u32) {
        assert!(bytes_per_second > 0, "that is `blackhole`");
        self.change(|conditions| conditions.bytes_per_second = Some(bytes_per_second));
    }

    /// Closes all connections, and every new one at once.
    pub fn cut(&self) {
        self.change(|conditions| conditions.link = Link::Cut);
    }

    /// Blocks everything, bytes as well as the close of a connection; new connections are accepted, and nothing arrives from
    /// them. What was sent meanwhile arrives when the wire is healed.
    pub fn blackhole(&self) {
        self.change(|conditions| conditions.link = Link::Blocked);
    }

    /// Forwards in this direction only; the other one is blocked as in [`Wire::blackhole`].
    pub fn one_way(&self, direction: Direction) {
        self.change(|conditions| conditions.link = Link::OneWay(direction));
    }

    /// Strands the present connections: their requests are held back and their replies lost, while new connections work.
    /// When the wire is healed, the requests arrive up to the first one that contains these bytes, whether or not the client
    /// has closed the connection; what was sent after it never arrives.
    pub fn strand(&self, last_bytes: &[u8]) {
        self.change(|conditions| {
            conditions.stranded.up_to = conditions.opened;
            conditions.stranded.last_bytes = last_bytes.to_vec();
            conditions.stranded.are_held_back = true;
        });
    }

    /// Returns how many stranded connections have delivered the request with these bytes.
    pub fn delivered(&self) -> usize {
        self.conditions.borrow().stranded.delivered
    }

    /// Hides the close of a connection from its client, until [`Wire::heal`]; bytes still arrive.
    pub fn hide_close(&self) {
        self.change(|conditions| conditions.hides_close = true);
    }

    /// Resets all present connections, so that both ends get an error; new ones work.
    pub fn reset(&self) {
        self.change(|conditions| conditions.resets += 1);
    }

    /// Loses the reply to the next request that contains these bytes: the request takes effect, the server then reads the
    /// close of the connection, and when it has closed its side too, the client's side is reset. Each call loses one reply;
    /// empty bytes match any request.
    pub fn lose_reply_to(&self, bytes: &[u8]) {
        self.change(|conditions| conditions.to_lose.push(bytes.to_vec()));
    }

    /// Returns how many replies were lost by [`Wire::lose_reply_to`].
    pub fn replies_lost(&self) -> usize {
        self.conditions.borrow().replies_lost
    }

    /// Ends all conditions. Replies that were to be lost and were not are no longer.
    pub fn heal(&self) {
        self.change(|conditions| {
            conditions.link = Link::Open;
            conditions.stranded.are_held_back = false;
            conditions.delay = Duration::ZERO;
            conditions.bytes_per_second = None;
            conditions.hides_close = false;
            conditions.to_lose.clear();
        });
    }

    fn change(&self, change: impl FnOnce(&mut Conditions)) {
        self.conditions.send_modify(change);
    }
}

impl Drop for Wire {
    fn drop(&mut self) {
        self.change(|conditions| conditions.is_closed = true);
        if let Some(thread) = self.thread.take() {
            // A panic of the thread was printed already.
            let _ = thread.join();
        }
    }
}

/// Accepts connections until the wire is dropped.
async fn serve(server: u16, conditions: watch::Sender<Conditions>, tell_port: mpsc::Sender<u16>) {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.expect("some port is free");
    let port = listener.local_addr().expect("it has an address").port();
    tell_port.send(port).expect("the creator of the wire waits for its port");
    let server = SocketAddr::from((Ipv4Addr::LOCALHOST, server));
    let mut seen = conditions.subscribe();
    let take = async {
        loop {
            // A client may be gone before it was accepted.
            if let Ok((client, _)) = listener.accept().await {
                tokio::spawn(forward(client, server, conditions.clone()));
            }
        }
    };
    tokio::select! {
        () = take => {}
        _ = seen.wait_for(|conditions| conditions.is_closed) => {}
    }
}
