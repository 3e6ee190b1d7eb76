//! Tests of the Redis backend: the behaviour suite, and cases that are specific to Redis.

mod actions;
mod bench;
mod cluster;
mod connection;
mod deployments;
mod diagnose;
mod dialect;
mod errors;
mod many;
mod many_waiters;
mod processes;
mod refusals;
mod replicas;
mod sentinel;
mod server;
mod stress;

use bench::RedisBench;

fencepost_testkit::behavior_suite!(redis, RedisBench::plain);
fencepost_testkit::wire_suite!(redis_wire, RedisBench::plain);
fencepost_testkit::scripted_process!(fencepost_redis::connect);

#[test]
fn agrees_with_the_model() {
    fencepost_testkit::state_machine::check(40, RedisBench::plain);
}
