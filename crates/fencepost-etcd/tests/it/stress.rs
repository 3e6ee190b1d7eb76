//! Members are stopped and restarted while processes use locks: no lock is lost, and no key is left.

use std::sync::Arc;

use fencepost_testkit::TestBench;
use fencepost_testkit::servers::etcd::EtcdCluster;
use fencepost_testkit::suite::assert_clean;
use fencepost_testkit::{stress, wait};

use crate::bench::{EtcdBench, Server};

#[test]
fn no_lock_is_lost_while_members_restart() {
    let cluster = Arc::new(EtcdCluster::start());
    let bench = EtcdBench::at(&cluster.url(), "", Server::Cluster(cluster.clone()));
    let processes = stress::run(&*cluster, bench.url());
    // While their leases live: an orphan would stay in the queue.
    wait::block_until("the queue is empty", || bench.queue("a").is_empty());
    drop(processes);
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    runtime.block_on(async {
        // The locks that the processes held expire with their leases.
        assert_clean(&bench).await;
        bench.client().await.close().await;
    });
}
