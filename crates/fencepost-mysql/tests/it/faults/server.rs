//! A server that restarts, is killed, or is paused.

use std::time::Duration;

use fencepost_testkit::WireBench;
use fencepost_testkit::databases::outages;
use fencepost_testkit::servers::mariadb::MariadbServerConfig;

use crate::bench::MariadbBench;

#[tokio::test]
async fn a_server_that_restarts_or_is_killed_keeps_the_locks() {
    let bench = MariadbBench::on(&MariadbServerConfig::durable());
    let clients = [bench.direct_client().await, bench.direct_client().await];
    let ttl = Duration::from_secs(15);
    outages::a_server_that_restarts_or_is_killed_keeps_the_locks(clients, bench.server(), ttl).await;
}
