//! Cuts the connections of a client after any number of bytes, in the middle of a message as well.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

use fencepost_core::{Client, ErrorKind};
use futures_util::{StreamExt, stream};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Notify;

use crate::actions::{LONG_TTL, hold};
use crate::{SessionBench, WireBench, wait};

/// A proxy that ends all connections at once when this many bytes were sent in one direction.
struct Cutter {
    port: u16,
    /// How many bytes are still forwarded; they are counted below zero, too.
    left: Arc<AtomicI64>,
}

impl Cutter {
    async fn start(server: u16, is_to_server: bool, bytes: i64) -> Self {
        let listener = TcpListener::bind(("127.0.0.1", 0)).await.expect("there is a port");
        let port = listener.local_addr().expect("it has an address").port();
        let (left, cut) = (Arc::new(AtomicI64::new(bytes)), Arc::new(Notify::new()));
        let counter = left.clone();
        tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                let (counter, cut) = (counter.clone(), cut.clone());
                tokio::spawn(async move {
                    let server = TcpStream::connect(("127.0.0.1", server)).await.expect("the server is up");
                    let (from_client, to_client) = client.into_split();
                    let (from_server, to_server) = server.into_split();
                    tokio::select! {
                        () = pump(from_client, to_server, is_to_server.then_some((&*counter, &*cut))) => {}
                        () = pump(from_server, to_client, (!is_to_server).then_some((&*counter, &*cut))) => {}
                        () = cut.notified() => {}
                    }
                });
            }
        });
        Self { port, left }
    }
}

/// Forwards until one side ends, or what is counted has reached zero.
async fn pump(mut from: OwnedReadHalf, mut to: OwnedWriteHalf, counted: Option<(&AtomicI64, &Notify)>) {
    let mut bytes = vec![0; 16 * 1024];
    while let Ok(read @ 1..) = from.read(&mut bytes).await {
        let amount = i64::try_from(read).expect("a buffer is small");
        let before = counted.map_or(i64::MIN, |(left, _)| left.fetch_sub(amount, Ordering::Relaxed));
        let is_cut = (0..amount).contains(&before);
        let forwarded = if is_cut { usize::try_from(before).expect("it is positive") } else { read };
        if to.write_all(&bytes[..forwarded]).await.is_err() || is_cut {
            if let Some((_, cut)) = counted {
                cut.notify_waiters();
            }
            return;
        }
    }
}

/// Connects, acquires, waits, and releases, with the connections cut after so many bytes. Returns how many there were in all.
async fn cut_after<B: WireBench>(
    (bench, loss): (&B, ErrorKind),
    other: &Client,
    is_to_server: bool,
    bytes: i64,
) -> i64 {
    let cutter = Cutter::start(bench.wire().server(), is_to_server, bytes).await;
    let url = bench.url().replace(&format!(":{}", bench.wire().port()), &format!(":{}", cutter.port));
    let client = loop {
        match Client::connect_with(B::open(url.clone())).await {
            Ok(client) => break client,
            Err(error) => assert!(
                matches!(error.kind(), ErrorKind::Unreachable | ErrorKind::OutcomeUnknown),
                "after {bytes}: {error:?}"
            ),
        }
    };
    let name = format!("cut/{is_to_server}/{bytes}");
    let ttl = Duration::from_secs(6);
    let first = hold(&other.lock(&name).ttl(ttl)).await;
    let waiting = {
        let lock = client.lock(&name).ttl(ttl);
        tokio::spawn(async move { lock.acquire().await })
    };
    wait::until("it waits", async || {
        waiting.is_finished() || other.inspect(&name).await.expect("it is up").waiter_count == 1
    })
    .await;
    let mut newest = first.token();
    first.release().await.expect("it is held");
    // An acquire whose outcome is unknown fails, and leaves nothing.
    if let Ok(guard) = wait::within_timeout("it ends", waiting).await.expect("it is not cancelled") {
        assert!(guard.token() > newest, "after {bytes}");
        let second = other.lock(&name).ttl(ttl).try_acquire().await.expect("it is up");
        assert!(second.is_none(), "two hold the lock, after {bytes}");
        newest = guard.token();
        if let Err(error) = guard.release().await {
            let is_expected = [ErrorKind::OutcomeUnknown, loss].contains(&error.kind());
            assert!(is_expected, "after {bytes}: {error:?}");
        }
    }
    let next = hold(&other.lock(&name).ttl(ttl)).await;
    assert!(next.token() > newest, "after {bytes}");
    next.release().await.expect("it is held");
    client.close().await;
    bytes - cutter.left.load(Ordering::Relaxed)
}

/// Cuts the connections of a client between connecting and releasing, after so many numbers of bytes in each direction. It
/// reconnects, no lock has two holders, and nothing stays behind.
///
/// # Panics
/// If one of these does not hold.
pub async fn cut_everywhere<B: WireBench>(bench: &B, positions: i64) {
    cut_with(bench, positions, ErrorKind::OutcomeUnknown).await;
}

/// The same for locks that end with their sessions: a release that has not arrived finds the lock lost.
///
/// # Panics
/// As [`cut_everywhere`].
pub async fn cut_sessions_everywhere<B: SessionBench>(bench: &B, positions: i64) {
    cut_with(bench, positions, ErrorKind::Lost).await;
}

/// A release fails with an unknown outcome, or with `loss`.
async fn cut_with<B: WireBench>(bench: &B, positions: i64, loss: ErrorKind) {
    let other = bench.direct_client().await;
    for is_to_server in [true, false] {
        let all = cut_after((bench, loss), &other, is_to_server, i64::MAX / 2).await;
        let positions = (0..positions).map(|step| step * all / positions);
        let runs = stream::iter(positions).map(|bytes| cut_after((bench, loss), &other, is_to_server, bytes));
        runs.buffer_unordered(8).collect::<Vec<i64>>().await;
    }
    wait::until("nothing is left", async || {
        hold(&other.lock("cleanup").ttl(LONG_TTL)).await.release().await.expect("it is held");
        bench.peek().await.is_empty()
    })
    .await;
}
