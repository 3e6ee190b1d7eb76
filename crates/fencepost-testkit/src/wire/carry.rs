//! One connection of a wire: two pumps, and the ways in which they end.

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
use super::conditions::{Conditions, Road};

const CHUNK: usize = 16 * 1024;
/// How many chunks are on their way at most.
const ON_THE_WAY: usize = 64;
/// How soon a server is looked for again that is not there yet.
const KNOCK: Duration = Duration::from_millis(5);
/// How often in a second some bytes arrive that drip.
const DRIPS: u32 = 20;

/// How a connection ends.
enum End {
    Closed,
    Reset,
}

/// Carries everything between the client and the server, until one of them or the conditions end it.
pub(super) async fn carry(mut client: TcpStream, server: SocketAddr, conditions: watch::Sender<Conditions>) {
    let counted = Counted::new(&conditions);
    let mut seen = conditions.subscribe();
    let resets = seen.borrow().resets;
    let mut to_server = None;
    let end = tokio::select! {
        biased;
        end = broken(seen.clone(), resets) => end,
        end = async {
            // What is not let through does not even knock at the server.
            let _ = seen.wait_for(|conditions| conditions.lets_through(Direction::ToServer)).await;
            match connect(&client, server, &conditions).await {
                Ok(connected) => both_ways(&mut client, to_server.insert(connected), &counted).await,
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
        clock.sleep_until(clock.now() + KNOCK).await?;
    }
}

/// Whether the client has closed its side, maybe with something left to be read.
fn is_gone(client: &TcpStream) -> bool {
    let ready = client.ready(Interest::READABLE).now_or_never();
    ready.is_some_and(|ready| ready.is_ok_and(Ready::is_read_closed))
}

/// Waits until the conditions end the connection.
async fn broken(mut seen: watch::Receiver<Conditions>, resets: usize) -> End {
    let ended = seen.wait_for(|conditions| conditions.road == Road::Cut || conditions.resets != resets).await;
    match ended {
        Ok(conditions) if conditions.resets != resets => End::Reset,
        _ => End::Closed,
    }
}

async fn both_ways(client: &mut TcpStream, server: &mut TcpStream, counted: &Counted<'_>) -> End {
    let &Counted { conditions, number } = counted;
    // Small packets are not held back by us.
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
    /// The connection's number.
    number: usize,
    conditions: &'a watch::Sender<Conditions>,
    /// Says that the answers of this connection are lost from now on.
    lose: Option<watch::Sender<bool>>,
    losing: watch::Receiver<bool>,
}

type Chunk = (Moment, Vec<u8>);

impl Pump<'_> {
    async fn run(&self, from: ReadHalf<'_>, to: WriteHalf<'_>) -> io::Result<()> {
        let (chunks, arriving) = mpsc::channel(ON_THE_WAY);
        tokio::try_join!(self.take_in(from, chunks), self.put_out(arriving, to)).map(|_| ())
    }

    async fn take_in(&self, mut from: ReadHalf<'_>, chunks: mpsc::Sender<Chunk>) -> io::Result<()> {
        let clock = Clock::system();
        loop {
            self.is_let_through().await;
            let mut bytes = vec![0; CHUNK];
            let read = from.read(&mut bytes).await;
            if read.is_err() {
                self.is_let_through().await;
            }
            bytes.truncate(read?);
            if bytes.is_empty() || chunks.send((clock.now(), bytes)).await.is_err() {
                return Ok(());
            }
        }
    }

    async fn put_out(&self, mut arriving: mpsc::Receiver<Chunk>, mut to: WriteHalf<'_>) -> io::Result<()> {
        let mut before = Vec::new();
        while let Some((sent, bytes)) = arriving.recv().await {
            self.is_due(sent).await;
            self.is_let_through().await;
            self.is_not_held_back().await;
            if self.is_lost() || self.is_answer_of_stranded() {
                continue;
            }
            let is_last = self.is_last_of_stranded(&before, &bytes);
            let loses_answer = self.loses_answer(&before, &bytes);
            self.write(&mut to, &bytes).await?;
            if is_last {
                // The end of the connection does not arrive either: the server goes on with the request.
                self.conditions.send_modify(|conditions| conditions.stranded.delivered += 1);
                return std::future::pending().await;
            }
            if loses_answer {
                // Now the server reads all of the request, and then the end.
                return to.shutdown().await;
            }
            before = bytes;
        }
        if self.is_lost() {
            self.conditions.send_modify(|conditions| conditions.replies_lost += 1);
            return Err(io::ErrorKind::ConnectionReset.into());
        }
        self.is_let_through().await;
        if self.direction == Direction::ToClient {
            let _ = self.conditions.subscribe().wait_for(|conditions| !conditions.hides_close).await;
        }
        to.shutdown().await
    }

    async fn write(&self, to: &mut WriteHalf<'_>, mut bytes: &[u8]) -> io::Result<()> {
        while !bytes.is_empty() {
            let drip = self.conditions.borrow().bytes_per_second;
            let Some(per_second) = drip else { return to.write_all(bytes).await };
            let now = bytes.len().min((per_second / DRIPS).max(1) as usize);
            let wait = Duration::from_secs(1) * u32::try_from(now).unwrap_or(u32::MAX) / per_second;
            self.passes(wait, |conditions| conditions.bytes_per_second.is_none()).await;
            self.is_let_through().await;
            to.write_all(&bytes[..now]).await?;
            bytes = &bytes[now..];
        }
        Ok(())
    }

    /// Waits until what was sent then may arrive.
    async fn is_due(&self, sent: Moment) {
        let delay = self.conditions.borrow().delay;
        let gone = Clock::system().now().since(sent);
        self.passes(delay.saturating_sub(gone), |conditions| conditions.delay.is_zero()).await;
    }

    /// Waits for so long, or until the conditions are better.
    async fn passes(&self, time: Duration, is_better: impl FnMut(&Conditions) -> bool) {
        if !time.is_zero() {
            let mut seen = self.conditions.subscribe();
            let _ = tokio::time::timeout(time, seen.wait_for(is_better)).await;
        }
    }

    async fn is_let_through(&self) {
        let mut seen = self.conditions.subscribe();
        let _ = seen.wait_for(|conditions| conditions.lets_through(self.direction)).await;
    }

    async fn is_not_held_back(&self) {
        let is_free = |conditions: &Conditions| {
            let is_request = self.direction == Direction::ToServer;
            !(is_request && conditions.stranded.are_held_back && conditions.is_stranded(self.number))
        };
        let _ = self.conditions.subscribe().wait_for(is_free).await;
    }

    fn is_answer_of_stranded(&self) -> bool {
        self.direction == Direction::ToClient && self.conditions.borrow().is_stranded(self.number)
    }

    /// Whether a stranded connection delivers nothing after this.
    fn is_last_of_stranded(&self, before: &[u8], sent: &[u8]) -> bool {
        self.direction == Direction::ToServer && self.conditions.borrow().is_last(self.number, before, sent)
    }

    fn is_lost(&self) -> bool {
        self.direction == Direction::ToClient && *self.losing.borrow()
    }

    /// Whether the answer to this is to be lost; from then on all answers of the connection are.
    fn loses_answer(&self, before: &[u8], sent: &[u8]) -> bool {
        let Some(lose) = &self.lose else { return false };
        let taken = self.conditions.send_if_modified(|conditions| conditions.take_loss(before, sent));
        if taken {
            lose.send_replace(true);
        }
        taken
    }
}

/// Counts a connection for as long as it is there.
struct Counted<'a> {
    conditions: &'a watch::Sender<Conditions>,
    number: usize,
}

impl<'a> Counted<'a> {
    fn new(conditions: &'a watch::Sender<Conditions>) -> Self {
        let mut number = 0;
        conditions.send_modify(|conditions| {
            conditions.connections += 1;
            conditions.begun += 1;
            number = conditions.begun;
        });
        Self { conditions, number }
    }
}

impl Drop for Counted<'_> {
    fn drop(&mut self) {
        self.conditions.send_modify(|conditions| conditions.connections -= 1);
    }
}
