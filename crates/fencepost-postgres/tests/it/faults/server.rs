//! A server that restarts, is killed, or is paused.

use std::time::Duration;

use fencepost_testkit::databases::outages;
use fencepost_testkit::servers::postgres::{PostgresServer, PostgresServerConfig};

use crate::actions::{bench_on, connect};

#[tokio::test]
async fn a_server_that_restarts_or_is_killed_keeps_the_locks() {
    let server = PostgresServer::start(&PostgresServerConfig::durable());
    let bench = bench_on(&server);
    let clients = [connect(&bench).await, connect(&bench).await];
    let ttl = Duration::from_secs(8);
    outages::a_server_that_restarts_or_is_killed_keeps_the_locks(clients, &server, ttl).await;
}
