//! etcd on the test bench, and what only a server can get wrong.

mod actors;
mod bench;
mod cluster;
mod connection;
mod crowd;
mod errors;
mod examine;
mod flights;
mod layouts;
mod leases;
mod puppet;
mod seats;
mod server;
mod setups;
mod storm;
mod weather;

use bench::EtcdBench;

fencepost_testkit::behavior_suite!(etcd, EtcdBench::plain);

#[test]
fn agrees_with_the_model() {
    fencepost_testkit::state_machine::check(20, EtcdBench::plain);
}
