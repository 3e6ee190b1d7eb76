//! Clients behind `PgBouncer` in transaction mode: they poll, and use no session state.

use std::sync::OnceLock;

use fencepost_testkit::behavior_suite;
use fencepost_testkit::servers::postgres::{PgBouncer, shared};

use crate::actions::{LONG_TTL, connect, enqueue, granted, hold};
use crate::bench::{DATABASE, PostgresBench};

fn bouncer(connections: u32) -> &'static PgBouncer {
    static TEN: OnceLock<PgBouncer> = OnceLock::new();
    static ONE: OnceLock<PgBouncer> = OnceLock::new();
    let shared_one = if connections == 1 { &ONE } else { &TEN };
    shared_one
        .get_or_init(|| PgBouncer::start_with(shared(), &[&format!("default_pool_size = {connections}")]))
}

fn behind(bouncer: &PgBouncer) -> PostgresBench {
    let direct = shared().url(DATABASE);
    PostgresBench::through_a_wire(&bouncer.url(DATABASE), bouncer.port(), "", &direct).pooled()
}

/// Clients share ten connections of the server.
fn ten_connections() -> PostgresBench {
    behind(bouncer(10))
}

/// Clients share one connection of the server.
fn one_connection() -> PostgresBench {
    behind(bouncer(1))
}

behavior_suite!(postgres_pgbouncer, ten_connections, only [core features]);
behavior_suite!(postgres_pgbouncer_one_connection, one_connection, only[core]);

/// No session of the server keeps a prepared statement, listens, or has an advisory lock.
#[tokio::test]
async fn nothing_is_left_in_the_shared_sessions() {
    let bouncer = PgBouncer::start_with(shared(), &["default_pool_size = 1"]);
    let bench = PostgresBench::at(&bouncer.url(DATABASE), "", &shared().url(DATABASE));
    let (client, other) = (connect(&bench).await, connect(&bench).await);
    let guard = hold(&client.lock("a").ttl(LONG_TTL)).await;
    let waiter = enqueue(&client, other.lock("a").ttl(LONG_TTL), "a", 1).await;
    guard.release().await.unwrap();
    let guard = granted(waiter).await;
    let left = "SELECT (SELECT count(*) FROM pg_prepared_statements), \
        (SELECT count(*) FROM pg_listening_channels()), \
        (SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND pid = pg_backend_pid())";
    assert_eq!(bouncer.try_psql(DATABASE, left), Ok("0|0|0".into()));
    guard.release().await.unwrap();
}

/// Clients of both kinds wait in one queue.
#[tokio::test]
async fn pooled_and_direct_clients_share_a_queue() {
    let bench = PostgresBench::at(&bouncer(10).url(DATABASE), "", &shared().url(DATABASE));
    let (pooled, direct) = (connect(&bench).await, connect(&bench.without_wire()).await);
    let guard = hold(&direct.lock("a").ttl(LONG_TTL)).await;
    let mut newest = guard.token();
    let first = enqueue(&direct, pooled.lock("a").ttl(LONG_TTL), "a", 1).await;
    let second = enqueue(&direct, direct.lock("a").ttl(LONG_TTL), "a", 2).await;
    let third = enqueue(&direct, pooled.lock("a").ttl(LONG_TTL), "a", 3).await;
    guard.release().await.unwrap();
    for waiter in [first, second, third] {
        let guard = granted(waiter).await;
        assert!(guard.token() > newest, "a waiter was overtaken");
        newest = guard.token();
        guard.release().await.unwrap();
    }
}

/// `pool_mode = statement`: each statement may run in another session.
#[tokio::test]
async fn statements_may_run_in_any_session() {
    let bouncer = PgBouncer::start_with(shared(), &["pool_mode = statement", "server_round_robin = 1"]);
    let bench = PostgresBench::at(&bouncer.url(DATABASE), "", &shared().url(DATABASE));
    let (client, other) = (connect(&bench).await, connect(&bench).await);
    let guard = hold(&client.lock("a").ttl(LONG_TTL)).await;
    let waiter = enqueue(&client, other.lock("a").ttl(LONG_TTL), "a", 1).await;
    guard.release().await.unwrap();
    granted(waiter).await.release().await.unwrap();
}
