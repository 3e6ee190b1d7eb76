//! Redis on the test bench, and what only a server can get wrong.

mod bench;
mod dialect;

use bench::RedisBench;

fencepost_testkit::behavior_suite!(redis, RedisBench::plain);

#[test]
fn agrees_with_the_model() {
    fencepost_testkit::state_machine::check(40, RedisBench::plain);
}
