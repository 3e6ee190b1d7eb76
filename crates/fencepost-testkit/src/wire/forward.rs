//! One connection of a wire: a pump for each direction, and the ways in which it ends.

use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use fencepost_core::clock::{Clock, Moment};
use futures_util::FutureExt;
use tokio::io::{AsyncReadExt, AsyncWriteExt, Interest, Ready};
use tokio::net::TcpStream;
use tokio::net::tcp::{ReadHalf, WriteHalf};
use tokio::sync::{mpsc, watch};

use super::Direction;
use super::conditions::{Conditions, Link};

const CHUNK: usize = 16 * 1024;
/// The largest number of chunks in flight.
const MAX_CHUNKS_IN_FLIGHT: usize = 64;
/// The interval between attempts to connect to a server that is not up yet.
const CONNECT_INTERVAL: Duration = Duration::from_millis(5);
/// The number of writes per second on a throttled connection.
const WRITES_PER_SECOND: u32 = 20;

/// How a connection ends.
enum End {
    Closed,
    Reset,
}

/// Forwards everything between the client and the server, until one of them or the conditions end it.
pub(super) async fn forward(
    mut client: TcpStream,
    server: SocketAddr,
    conditions: watch::Sender<Conditions>,
) {
    let counted = Counted::new(&conditions);
    let mut seen = conditions.subscribe();
    let resets = seen.borrow().resets;
    let mut to_server = None;
    let end = tokio::select! {
        biased;
        end = until_broken(seen.clone(), resets) => end,
        end = async {
            // A blocked connection does not connect to the server either.
            let _ = seen.wait_for(|conditions| conditions.lets_through(Direction::ToServer)).await;
            match connect(&client, server, &conditions).await {
                Ok(connected) => pump_both(&mut client, to_server.insert(connected), &counted).await,
                Err(_) => End::Reset,
            }
        } => end,
    };
    if matches!(end, End::Reset) {
        for stream in [Some(client), to_server].into_iter().flatten() {
            // A connection that the other end has closed already cannot be reset any more.
            let _ = stream.set_zero_linger();
        }
    }
}

async fn connect(
    client: &TcpStream,
    server: SocketAddr,
    conditions: &watch::Sender<Conditions>,
) -> io::Result<TcpStream> {
    let clock = Clock::system();
    loop {
        let connected = TcpStream::connect(server).await;
        if connected.is_ok() || !conditions.borrow().waits_for_server || is_gone(client) {
            return connected;
        }
        clock.sleep_until(clock.now() + CONNECT_INTERVAL).await?;
    }
}

/// Returns whether the client has closed its side, maybe with unread data.
fn is_gone(client: &TcpStream) -> bool {
    let ready = client.ready(Interest::READABLE).now_or_never();
    ready.is_some_and(|ready| ready.is_ok_and(Ready::is_read_closed))
}

/// Waits until the conditions end the connection.
async fn until_broken(mut seen: watch::Receiver<Conditions>, resets: usize) -> End {
    let ended = seen.wait_for(|conditions| conditions.link == Link::Cut || conditions.resets != resets).await;
    match ended {
        Ok(conditions) if conditions.resets != resets => End::Reset,
        _ => End::Closed,
    }
}

async fn pump_both(client: &mut TcpStream, server: &mut TcpStream, counted: &Counted<'_>) -> End {
    let &Counted { conditions, number } = counted;
    // The wire must not delay small packets.
    let _ = (client.set_nodelay(true), server.set_nodelay(true));
    let (from_client, to_client) = client.split();
    let (from_server, to_server) = server.split();
    let (lose, losing) = watch::channel(false);
    let requests =
        Pump { direction: Direction::ToServer, number, conditions, lose: Some(lose), losing: losing.clone() };
    let answers =
        Pump { direction: Direction::ToClient, number, conditions, lose: None, losing: losing.clone() };
    let done = tokio::try_join!(requests.run(from_client, to_server), answers.run(from_server, to_client));
    match done {
        Ok(_) => End::Closed,
        Err(_) => End::Reset,
    }
}

/// One direction of a connection.
struct Pump<'a> {
    direction: Direction,
    /// The number of the connection.
    number: usize,
    conditions: &'a watch::Sender<Conditions>,
    /// Set when the replies of this connection are lost from now on.
    lose: Option<watch::Sender<bool>>,
    losing: watch::Receiver<bool>,
}

type Chunk = (Moment, Vec<u8>);

impl Pump<'_> {
    async fn run(&self, from: ReadHalf<'_>, to: WriteHalf<'_>) -> io::Result<()> {
        let (chunks, arriving) = mpsc::channel(MAX_CHUNKS_IN_FLIGHT);
        tokio::try_join!(self.take_in(from, chunks), self.put_out(arriving, to)).map(|_| ())
    }

    async fn take_in(&self, mut from: ReadHalf<'_>, chunks: mpsc::Sender<Chunk>) -> io::Result<()> {
        let clock = Clock::system();
        loop {
            self.until_let_through().await;
            let mut bytes = vec![0; CHUNK];
            let read = from.read(&mut bytes).await;
            if read.is_err() {
                self.until_let_through().await;
            }
            bytes.truncate(read?);
            if self.direction == Direction::ToServer {
                // No condition changes: nothing is woken.
                self.conditions.send_if_modified(|conditions| {
                    conditions.sent += usize::from(!bytes.is_empty());
                    false
                });
            }
            if bytes.is_empty() || chunks.send((clock.now(), bytes)).await.is_err() {
                return Ok(());
            }
        }
    }

    async fn put_out(&self, mut arriving: mpsc::Receiver<Chunk>, mut to: WriteHalf<'_>) -> io::Result<()> {
        let mut before = Vec::new();
        while let Some((sent, bytes)) = arriving.recv().await {
            self.until_due(sent).await;
            self.until_let_through().await;
            self.until_not_held_back().await;
            if self.is_lost() || self.is_reply_of_stranded() {
                continue;
            }
            let is_last = self.is_last_of_stranded(&before, &bytes);
            let loses_reply = self.loses_reply(&before, &bytes);
            self.write(&mut to, &bytes).await?;
            if is_last {
                // The close of the connection does not arrive either: the server goes on with the request.
                self.conditions.send_modify(|conditions| conditions.stranded.delivered += 1);
                return std::future::pending().await;
            }
            if loses_reply {
                // Now the server reads the whole request, and then the close.
                return to.shutdown().await;
            }
            before = bytes;
        }
        if self.is_lost() {
            self.conditions.send_modify(|conditions| conditions.replies_lost += 1);
            return Err(io::ErrorKind::ConnectionReset.into());
        }
        self.until_let_through().await;
        if self.direction == Direction::ToClient {
            let _ = self.conditions.subscribe().wait_for(|conditions| !conditions.hides_close).await;
        }
        to.shutdown().await
    }

    async fn write(&self, to: &mut WriteHalf<'_>, mut bytes: &[u8]) -> io::Result<()> {
        while !bytes.is_empty() {
            let limit = self.conditions.borrow().bytes_per_second;
            let Some(per_second) = limit else { return to.write_all(bytes).await };
            let now = bytes.len().min((per_second / WRITES_PER_SECOND).max(1) as usize);
            let wait = Duration::from_secs(1) * u32::try_from(now).unwrap_or(u32::MAX) / per_second;
            self.elapse(wait, |conditions| conditions.bytes_per_second.is_none()).await;
            self.until_let_through().await;
            to.write_all(&bytes[..now]).await?;
            bytes = &bytes[now..];
        }
        Ok(())
    }

    /// Waits until what was sent at this moment may arrive.
    async fn until_due(&self, sent: Moment) {
        let delay = self.conditions.borrow().delay;
        let gone = Clock::system().now().since(sent);
        self.elapse(delay.saturating_sub(gone), |conditions| conditions.delay.is_zero()).await;
    }

    /// Waits for this long, or until the conditions are better.
    async fn elapse(&self, time: Duration, is_better: impl FnMut(&Conditions) -> bool) {
        if !time.is_zero() {
            let mut seen = self.conditions.subscribe();
            let _ = tokio::time::timeout(time, seen.wait_for(is_better)).await;
        }
    }

    async fn until_let_through(&self) {
        let mut seen = self.conditions.subscribe();
        let _ = seen.wait_for(|conditions| conditions.lets_through(self.direction)).await;
    }

    async fn until_not_held_back(&self) {
        let is_free = |conditions: &Conditions| {
            let is_request = self.direction == Direction::ToServer;
            !(is_request && conditions.stranded.are_held_back && conditions.is_stranded(self.number))
        };
        let _ = self.conditions.subscribe().wait_for(is_free).await;
    }

    fn is_reply_of_stranded(&self) -> bool {
        self.direction == Direction::ToClient && self.conditions.borrow().is_stranded(self.number)
    }

    /// Returns whether a stranded connection delivers nothing after this.
    fn is_last_of_stranded(&self, before: &[u8], sent: &[u8]) -> bool {
        self.direction == Direction::ToServer && self.conditions.borrow().is_last(self.number, before, sent)
    }

    fn is_lost(&self) -> bool {
        self.direction == Direction::ToClient && *self.losing.borrow()
    }

    /// Returns whether the reply to this is to be lost; from then on all replies of the connection are.
    fn loses_reply(&self, before: &[u8], sent: &[u8]) -> bool {
        let Some(lose) = &self.lose else { return false };
        let taken = self.conditions.send_if_modified(|conditions| conditions.take_loss(before, sent));
        if taken {
            lose.send_replace(true);
        }
        taken
    }
}

/// Counts a connection for as long as it exists.
struct Counted<'a> {
    conditions: &'a watch::Sender<Conditions>,
    number: usize,
}

impl<'a> Counted<'a> {
    fn new(conditions: &'a watch::Sender<Conditions>) -> Self {
        let mut number = 0;
        conditions.send_modify(|conditions| {
            conditions.connections += 1;
            conditions.opened += 1;
            number = conditions.opened;
        });
        Self { conditions, number }
    }
}

impl Drop for Counted<'_> {
    fn drop(&mut self) {
        self.conditions.send_modify(|conditions| conditions.connections -= 1);
    }
}
