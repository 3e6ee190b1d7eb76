//! A replica is promoted: asynchronous replication loses the last commits.

use std::sync::Arc;
use std::sync::atomic::{AtomicU16, Ordering};

use fencepost_testkit::databases::outages;
use fencepost_testkit::servers::mariadb::MariadbPair;
use tokio::net::{TcpListener, TcpStream};

/// An address that follows the primary, as a failover manager provides it.
struct Address {
    port: u16,
    server: Arc<AtomicU16>,
}

impl Address {
    async fn of(server: u16) -> Self {
        let listener = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let server = Arc::new(AtomicU16::new(server));
        let present = server.clone();
        tokio::spawn(async move {
            while let Ok((mut client, _)) = listener.accept().await {
                let server = TcpStream::connect(("127.0.0.1", present.load(Ordering::Relaxed))).await;
                tokio::spawn(async move {
                    if let Ok(mut server) = server {
                        let _ = tokio::io::copy_bidirectional(&mut client, &mut server).await;
                    }
                });
            }
        });
        Self { port, server }
    }

    fn move_to(&self, server: u16) {
        self.server.store(server, Ordering::Relaxed);
    }
}

/// Tokens grow, although the replica's counter is behind.
#[tokio::test]
async fn an_asynchronous_replica_loses_the_last_grants() {
    let pair = MariadbPair::start();
    let address = Address::of(pair.primary().port()).await;
    let url = pair.primary().url();
    let url = url.replace(&format!(":{}/", pair.primary().port()), &format!(":{}/", address.port));
    let connect = async || fencepost_mysql::connect(&url).await.unwrap();
    outages::an_asynchronous_replica_loses_the_last_grants(
        [connect().await, connect().await],
        || {
            pair.wait_until_caught_up();
            pair.wire().cut();
        },
        || {
            pair.primary().kill();
            pair.promote();
            address.move_to(pair.replica().port());
        },
    )
    .await;
}
