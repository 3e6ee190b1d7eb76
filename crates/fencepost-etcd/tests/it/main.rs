//! The test suites on etcd, and tests of what is specific to it.

mod actions;
mod bench;
mod cluster;
mod configurations;
mod connection;
mod diagnose;
mod errors;
mod flights;
mod layouts;
mod leases;
mod local_waiters;
mod server;
mod stress;
mod suffixes;

use bench::EtcdBench;

fencepost_testkit::behavior_suite!(etcd, EtcdBench::plain);
fencepost_testkit::wire_suite!(etcd_wire, EtcdBench::plain);
fencepost_testkit::scripted_process!(fencepost_etcd::connect);

#[test]
fn agrees_with_the_model() {
    fencepost_testkit::state_machine::check(20, EtcdBench::plain);
}
