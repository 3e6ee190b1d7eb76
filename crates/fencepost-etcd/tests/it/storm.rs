//! Members that come and go while processes lock: nothing is lost, and no key is left.

use std::sync::Arc;

use fencepost_testkit::TestBench;
use fencepost_testkit::servers::etcd::EtcdCluster;
use fencepost_testkit::suite::assert_clean;
use fencepost_testkit::{stress, wait};

use crate::bench::{EtcdBench, Server};

#[test]
fn nothing_is_lost_while_members_come_and_go() {
    let cluster = Arc::new(EtcdCluster::start());
    let bench = EtcdBench::at(&cluster.url(), "", Server::Cluster(cluster.clone()));
    let processes = stress::run(&*cluster, bench.url());
    // While their leases live: whatever nobody remembers would stay.
    wait::block_until("nobody is left in line", || bench.line("a").is_empty());
    drop(processes);
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    runtime.block_on(async {
        // What the processes held ends with their leases.
        assert_clean(&bench).await;
        bench.client().await.close().await;
    });
}
