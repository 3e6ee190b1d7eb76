//! Stress: servers restart while processes lock. No update is lost, and no node remains.

use fencepost_testkit::servers::zookeeper::Ensemble;
use fencepost_testkit::{stress, wait};

use crate::ensemble::remaining_nodes;

#[test]
fn no_update_is_lost_while_servers_restart() {
    let ensemble = Ensemble::start();
    let processes = stress::run(&ensemble, &ensemble.url());
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    runtime.block_on(async {
        // Their sessions are alive, so nodes were removed only by the clients themselves.
        let remaining = async || remaining_nodes(&ensemble).await.len();
        wait::until("only held nodes are left", async || remaining().await == stress::PROCESSES).await;
        drop(processes);
        wait::until("no node is left", async || remaining().await == 0).await;
    });
}
