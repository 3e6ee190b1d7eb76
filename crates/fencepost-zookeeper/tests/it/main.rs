//! Tests of the ZooKeeper backend on real servers.

mod actions;
mod bench;
mod connection;
mod crash;
mod diagnose;
mod ensemble;
mod flights;
mod foreign;
mod format;
mod names;
mod stall;
mod stress;
mod variants;

use bench::ZooKeeperBench;

fencepost_testkit::behavior_suite!(zookeeper, ZooKeeperBench::plain);
fencepost_testkit::wire_suite!(zookeeper_wire, ZooKeeperBench::plain);
fencepost_testkit::scripted_process!(fencepost_zookeeper::connect);

#[test]
fn agrees_with_the_model() {
    fencepost_testkit::state_machine::check(20, ZooKeeperBench::plain);
}
