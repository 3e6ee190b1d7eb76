//! A replica is promoted: asynchronous replication loses the last commits.

use std::sync::Arc;
use std::sync::atomic::{AtomicU16, Ordering};
use std::time::Duration;

use fencepost_core::LostReason;
use fencepost_testkit::servers::mariadb::MariadbPair;
use fencepost_testkit::wait;
use tokio::net::{TcpListener, TcpStream};

use crate::actions::{enqueue, granted, hold, until_renewed_since};

/// Longer than a failover takes.
const TTL: Duration = Duration::from_secs(15);

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

/// What the replica has is kept: the holder goes on renewing there. A grant that it has not is granted to another client, with
/// a larger token, although the replica's counter is behind; the first holder is told at its next renewal.
#[tokio::test]
async fn an_asynchronous_replica_loses_the_last_grants() {
    let pair = MariadbPair::start();
    let address = Address::of(pair.primary().port()).await;
    let url = pair.primary().url();
    let url = url.replace(&format!(":{}/", pair.primary().port()), &format!(":{}/", address.port));
    let client = fencepost_mysql::connect(&url).await.unwrap();
    let other = fencepost_mysql::connect(&url).await.unwrap();
    let kept = hold(&client.lock("kept").ttl(TTL)).await;
    let waiter = enqueue(&client, other.lock("kept").ttl(TTL), "kept", 1).await;
    let used = hold(&client.lock("lost").ttl(TTL)).await;
    let old = used.token();
    used.release().await.unwrap();
    pair.wait_until_caught_up();
    pair.wire().cut();
    for _ in 0..20 {
        hold(&client.lock("lost").ttl(TTL)).await.release().await.unwrap();
    }
    let lost = hold(&client.lock("lost").ttl(TTL)).await;
    assert!(lost.token() > old);
    let before = kept.valid_until();
    pair.primary().kill();
    pair.promote();
    address.move_to(pair.replica().port());
    let second = hold(&other.lock("lost").ttl(TTL)).await;
    assert!(second.token() > lost.token(), "{:?} after {:?}", second.token(), lost.token());
    let reason = wait::within_timeout("the loss is told", lost.lost()).await;
    assert_eq!(reason, LostReason::NotHeld);
    until_renewed_since(&kept, before).await;
    assert!(!waiter.is_finished());
    kept.release().await.unwrap();
    granted(waiter).await.release().await.unwrap();
    second.release().await.unwrap();
}
