//! A server that is killed again and again: no two hold a lock together, and tokens only rise.

use std::sync::Arc;

use fencepost_testkit::TestBench;
use fencepost_testkit::servers::redis::{RedisServer, RedisServerConfig};
use fencepost_testkit::suite::assert_clean;
use fencepost_testkit::workload::Workload;

use crate::actions::SHORT;
use crate::bench::RedisBench;

/// A server that writes everything down may be killed as often as one likes.
#[tokio::test]
async fn no_restart_makes_two_holders() {
    let setup = RedisServerConfig::plain().with_config("appendonly yes").with_config("appendfsync always");
    let server = Arc::new(RedisServer::start(&setup));
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
