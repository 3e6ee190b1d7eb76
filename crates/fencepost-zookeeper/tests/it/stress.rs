//! Servers that come and go while processes lock: nothing is lost, and no node is left.

use fencepost_testkit::servers::zookeeper::Ensemble;
use fencepost_testkit::{stress, wait};

use crate::ensemble::left_over;

#[test]
fn nothing_is_lost_while_servers_come_and_go() {
    let ensemble = Ensemble::start();
    let processes = stress::run(&ensemble, &ensemble.url());
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    runtime.block_on(async {
        // Their sessions live, so that nothing but they themselves has removed what they had.
        let left = async || left_over(&ensemble).await.len();
        wait::until("only what is held is left", async || left().await == stress::PROCESSES).await;
        drop(processes);
        wait::until("no node is left", async || left().await == 0).await;
    });
}
