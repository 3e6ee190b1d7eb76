//! Hosts that are gone without a word: no packet arrives from them any more, not even the end of a connection.

use std::future::pending;
use std::net::Ipv4Addr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use fencepost_core::clock::Clock;
use fencepost_testkit::actions::{LONG_TTL, hold, spawn_waiter, until_queued};
use fencepost_testkit::servers::postgres::shared;
use fencepost_testkit::{TestBench, WireBench};
use socket2::{SockFilter, SockRef};
use tokio::io::copy_bidirectional;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;

use super::AdvisoryBench;

/// The earliest probe of a connection without traffic.
const KEEPALIVE_IDLE: Duration = Duration::from_secs(5);

/// A host between a client and the server.
struct Host {
    port: u16,
    /// Its connections to the server.
    sockets: Arc<Mutex<Vec<std::net::TcpStream>>>,
    is_gone: watch::Sender<bool>,
}

impl Host {
    async fn before(server: u16) -> Self {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let host = Self { port, sockets: Arc::default(), is_gone: watch::Sender::new(false) };
        let (sockets, is_gone) = (host.sockets.clone(), host.is_gone.subscribe());
        tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                if *is_gone.borrow() {
                    return;
                }
                let server =
                    TcpStream::connect((Ipv4Addr::LOCALHOST, server)).await.unwrap().into_std().unwrap();
                sockets.lock().unwrap().push(server.try_clone().unwrap());
                tokio::spawn(forward(client, TcpStream::from_std(server).unwrap(), is_gone.clone()));
            }
        });
        host
    }

    /// Ignores all packets of the server from now on, and sends none.
    fn vanish(&self) {
        self.is_gone.send_replace(true);
        // Returns the length of a packet to keep: 0.
        let ignore = [SockFilter::new(0x06, 0, 0, 0)];
        for socket in self.sockets.lock().unwrap().iter() {
            SockRef::from(socket).attach_filter(&ignore).unwrap();
        }
    }
}

async fn forward(mut client: TcpStream, mut server: TcpStream, mut is_gone: watch::Receiver<bool>) {
    tokio::select! {
        _ = is_gone.wait_for(|is_gone| *is_gone) => {}
        _ = copy_bidirectional(&mut client, &mut server) => return,
    }
    // Keeps both connections open.
    pending::<()>().await;
}

/// A session that waits sends and receives nothing: the server probes it, and ends it.
#[tokio::test(flavor = "multi_thread")]
async fn a_waiter_on_a_vanished_host_leaves_the_queue() {
    let bench = AdvisoryBench::on(shared(), "");
    let host = Host::before(shared().port()).await;
    let url = bench.url().replace(&format!(":{}/", bench.wire().port()), &format!(":{}/", host.port));
    assert_ne!(url, bench.url());
    let (client, vanished) = (bench.client().await, fencepost_postgres::connect(&url).await.unwrap());
    let guard = hold(&client.lock("a").ttl(LONG_TTL)).await;
    let _waiter = spawn_waiter(vanished.lock("a").ttl(LONG_TTL));
    until_queued(&client, "a", 1).await;
    host.vanish();
    let clock = Clock::system();
    let began = clock.now();
    until_queued(&client, "a", 0).await;
    let took = clock.now().since(began);
    assert!(took > KEEPALIVE_IDLE, "the connection was closed, not probed: {took:?}");
    guard.release().await.unwrap();
    hold(&client.lock("a").ttl(LONG_TTL)).await.release().await.unwrap();
}
