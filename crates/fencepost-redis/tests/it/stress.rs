//! A server that is killed repeatedly: no two clients hold a lock at once, and tokens only grow.

use std::sync::Arc;

use fencepost_testkit::TestBench;
use fencepost_testkit::servers::redis::{RedisServer, RedisServerConfig};
use fencepost_testkit::suite::assert_clean;
use fencepost_testkit::workload::Workload;

use crate::actions::SHORT;
use crate::bench::RedisBench;

/// A server that persists every write is killed four times.
#[tokio::test]
async fn restarts_lead_to_no_second_holder() {
    let config = RedisServerConfig::plain().with_config("appendonly yes").with_config("appendfsync always");
    let server = Arc::new(RedisServer::start(&config));
    let bench = RedisBench::at(&server.url(), "", [server.url()]);
    let clients = [bench.client().await, bench.client().await];
    let workload = Workload::start(&clients, SHORT / 2);
    for _ in 0..4 {
        workload.wait_for_grants(30).await;
        let server = server.clone();
        tokio::task::spawn_blocking(move || server.restart()).await.unwrap();
    }
    workload.stop_and_check().await;
    for client in clients {
        client.close().await;
    }
    assert_clean(&bench).await;
}
