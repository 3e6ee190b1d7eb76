//! etcd on the test bench, and what only a server can get wrong.

mod actions;
mod bench;
mod cluster;
mod connection;
mod crowd;
mod diagnose;
mod errors;
mod flights;
mod layouts;
mod leases;
mod seats;
mod server;
mod setups;
mod storm;

use bench::EtcdBench;

fencepost_testkit::behavior_suite!(etcd, EtcdBench::plain);
fencepost_testkit::wire_suite!(etcd_wire, EtcdBench::plain);
fencepost_testkit::scripted_process!(fencepost_etcd::connect);

#[test]
fn agrees_with_the_model() {
    fencepost_testkit::state_machine::check(20, EtcdBench::plain);
}
