//! Redis on the test bench, and what only a server can get wrong.

mod actions;
mod bench;
mod cluster;
mod connection;
mod crowd;
mod dialect;
mod errors;
mod many;
mod processes;
mod refusals;
mod replicas;
mod sentinel;
mod server;
mod setups;
mod storm;

use bench::RedisBench;

fencepost_testkit::behavior_suite!(redis, RedisBench::plain);
fencepost_testkit::wire_suite!(redis_wire, RedisBench::plain);
fencepost_testkit::scripted_process!(fencepost_redis::connect);

#[test]
fn agrees_with_the_model() {
    fencepost_testkit::state_machine::check(40, RedisBench::plain);
}
