//! A wire between clients and a server on this machine that can be cut, slowed down and made to lie: a TCP proxy.
//!
//! Where [`Proxy`](crate::proxy::Proxy) stands before a backend and knows operations, this stands before a server and
//! knows bytes: it shows what drivers make of a broken network.

mod carry;
mod conditions;

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::mpsc;
use std::thread::JoinHandle;
use std::time::Duration;

use tokio::net::TcpListener;
use tokio::sync::watch;

use carry::carry;
use conditions::{Conditions, Road};

/// A way along the wire.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// What clients send.
    ToServer,
    /// What the server sends.
    ToClient,
}

/// The wire, with a thread of its own: it carries on while a test blocks its runtime. Dropping it closes everything.
///
/// What is said to it holds at once, for present connections and new ones, and until [`Wire::heal`].
#[derive(Debug)]
pub struct Wire {
    port: u16,
    server: u16,
    conditions: watch::Sender<Conditions>,
    thread: Option<JoinHandle<()>>,
}

impl Wire {
    /// A wire to the server on this port of 127.0.0.1, on a port of its own.
    ///
    /// # Panics
    /// If there is no port or no thread for it.
    pub fn to(server: u16) -> Self {
        Self::with(server, Conditions::default())
    }

    /// Like [`Wire::to`], for a server that is not always there: a client that comes before it does not hear that, but
    /// waits for it on the wire.
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
            runtime.expect("a runtime can be made").block_on(serve(server, seen, tell_port));
        };
        let thread =
            std::thread::Builder::new().name("wire".into()).spawn(run).expect("a thread can be started");
        Self { port: port.recv().expect("the wire says its port"), server, conditions, thread: Some(thread) }
    }

    /// The port on 127.0.0.1 for clients.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// The port of the server.
    pub fn server(&self) -> u16 {
        self.server
    }

    /// How many clients are connected.
    pub fn connections(&self) -> usize {
        self.conditions.borrow().connections
    }

    /// Whatever is sent arrives so much later, in both directions.
    pub fn delay(&self, delay: Duration) {
        self.change(|conditions| conditions.delay = delay);
    }

    /// Only so many bytes arrive in a second, in each direction of each connection.
    ///
    /// # Panics
    /// If nothing would ever arrive: that is [`Wire::blackhole`].
    pub fn throttle(&self, bytes_per_second: u32) {
        assert!(bytes_per_second > 0, "that is `blackhole`");
        self.change(|conditions| conditions.bytes_per_second = Some(bytes_per_second));
    }

    /// Closes all connections, and every new one at once.
    pub fn cut(&self) {
        self.change(|conditions| conditions.road = Road::Cut);
    }

    /// Nothing arrives any more, neither bytes nor the end of a connection; new connections are taken, and nothing arrives
    /// from them. What was sent meanwhile arrives when the wire is healed.
    pub fn blackhole(&self) {
        self.change(|conditions| conditions.road = Road::Blocked);
    }

    /// Things arrive only in this direction; in the other one they wait, as in [`Wire::blackhole`].
    pub fn one_way(&self, direction: Direction) {
        self.change(|conditions| conditions.road = Road::OneWay(direction));
    }

    /// Strands the present connections: their requests are held back and their answers lost, while new connections are fine.
    /// When the wire is healed, the requests arrive up to the first one in which these bytes stand, whether or not the client
    /// has closed the connection; what was sent after it never arrives.
    pub fn strand(&self, last_bytes: &[u8]) {
        self.change(|conditions| {
            conditions.stranded.up_to = conditions.begun;
            conditions.stranded.last_bytes = last_bytes.to_vec();
            conditions.stranded.are_held_back = true;
        });
    }

    /// How many stranded connections have delivered the request that was named.
    pub fn delivered(&self) -> usize {
        self.conditions.borrow().stranded.delivered
    }

    /// Hides the end of a connection from its client, until [`Wire::heal`]; bytes still arrive.
    pub fn hide_close(&self) {
        self.change(|conditions| conditions.hides_close = true);
    }

    /// Resets all present connections, so that both ends get an error; new ones are fine.
    pub fn reset(&self) {
        self.change(|conditions| conditions.resets += 1);
    }

    /// The next request in which these bytes stand takes effect, but its answer gets lost: the server hears the end of the
    /// connection after it, and when it has closed its side too, the client's is reset. Said several times, it happens as
    /// often; no bytes at all stand for any request.
    pub fn lose_reply_to(&self, bytes: &[u8]) {
        self.change(|conditions| conditions.to_lose.push(bytes.to_vec()));
    }

    /// How many answers were lost, as asked for by [`Wire::lose_reply_to`].
    pub fn replies_lost(&self) -> usize {
        self.conditions.borrow().replies_lost
    }

    /// Everything arrives again, undelayed. Answers that were to be lost and were not are no longer.
    pub fn heal(&self) {
        self.change(|conditions| {
            conditions.road = Road::Open;
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
        self.change(|conditions| conditions.is_over = true);
        if let Some(thread) = self.thread.take() {
            // If the thread has panicked, it has said so already.
            let _ = thread.join();
        }
    }
}

/// Takes connections until it is over.
async fn serve(server: u16, conditions: watch::Sender<Conditions>, tell_port: mpsc::Sender<u16>) {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.expect("some port is free");
    let port = listener.local_addr().expect("it has an address").port();
    tell_port.send(port).expect("whoever makes the wire waits for its port");
    let server = SocketAddr::from((Ipv4Addr::LOCALHOST, server));
    let mut seen = conditions.subscribe();
    let take = async {
        loop {
            // A client that is gone before it was taken is none.
            if let Ok((client, _)) = listener.accept().await {
                tokio::spawn(carry(client, server, conditions.clone()));
            }
        }
    };
    tokio::select! {
        () = take => {}
        _ = seen.wait_for(|conditions| conditions.is_over) => {}
    }
}
