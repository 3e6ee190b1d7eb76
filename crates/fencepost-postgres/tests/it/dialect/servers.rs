//! A server whose clock is set, and one behind `PgBouncer`.

use std::time::Duration;

use fencepost_core::{Client, LostReason};
use fencepost_testkit::servers::postgres::{PgBouncer, PostgresServer, PostgresServerConfig, shared};
use fencepost_testkit::wait;

use super::bench::SHEDLOCK;
use crate::bench::DATABASE;

const TTL: Duration = Duration::from_secs(20);

async fn connect(url: &str, table: &str) -> Client {
    let url = format!("{url}?dialect=shedlock&table={table}");
    fencepost_postgres::connect(&url).await.expect("the server accepts the client")
}

/// Set forward, the clock of the server ends leases, and the next acquire of a client that knew the old time succeeds. Its holder
/// learns of the loss at its next renewal.
#[tokio::test(flavor = "multi_thread")]
async fn leases_end_by_the_clock_of_the_server() {
    let server = PostgresServer::start(&PostgresServerConfig::plain().with_movable_clock());
    server.psql_in(DATABASE, &format!("CREATE TABLE shedlock ({SHEDLOCK})"));
    let url = server.url(DATABASE);
    let (client, other) = (connect(&url, "shedlock").await, connect(&url, "shedlock").await);
    let guard = client.lock("a").ttl(Duration::from_secs(3)).acquire().await.unwrap();
    assert!(other.lock("a").try_acquire().await.unwrap().is_none());
    server.shift_clock(3600);
    let second = other.lock("a").ttl(TTL).try_acquire().await.unwrap().expect("the lease has ended");
    assert!(second.token() > guard.token());
    assert_eq!(wait::within_timeout("it is lost", guard.lost()).await, LostReason::NotHeld);
    second.release().await.unwrap();
    client.close().await;
    other.close().await;
}

/// Clients that share one connection of the server.
#[tokio::test(flavor = "multi_thread")]
async fn locks_work_behind_a_pooler() {
    let bouncer = PgBouncer::start_with(shared(), &["default_pool_size = 1"]);
    let table = format!("pooled_{:016x}", rand::random::<u64>());
    shared().psql_in(DATABASE, &format!("CREATE TABLE {table} ({SHEDLOCK})"));
    let url = bouncer.url(DATABASE);
    let clients = [connect(&url, &table).await, connect(&url, &table).await];
    for round in 0..10 {
        let guard = clients[round % 2].lock("a").ttl(TTL).acquire().await.unwrap();
        assert!(clients[1 - round % 2].lock("a").try_acquire().await.unwrap().is_none());
        let waiter = tokio::spawn({
            let lock = clients[1 - round % 2].lock("a").ttl(TTL);
            async move { lock.acquire().await }
        });
        guard.release().await.unwrap();
        wait::within_timeout("the waiter is granted", waiter)
            .await
            .unwrap()
            .unwrap()
            .release()
            .await
            .unwrap();
    }
    for client in clients {
        client.close().await;
    }
    let left = "SELECT current_setting('lock_timeout'), (SELECT count(*) FROM pg_prepared_statements), \
        (SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND pid = pg_backend_pid())";
    assert_eq!(bouncer.try_psql(DATABASE, left), Ok("0|0|0".into()));
}
