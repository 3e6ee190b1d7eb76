//! The test suites on PostgreSQL, and tests of what is specific to it.

mod actions;
mod admin;
mod advisory;
mod bench;
mod clocks;
mod configurations;
mod dialect;
mod errors;
mod faults;
mod poolers;
mod races;
mod replication;
mod schema;
mod search_path;
mod sweeping;
mod transactions;

use bench::PostgresBench;

fencepost_testkit::behavior_suite!(postgres, PostgresBench::plain);
fencepost_testkit::wire_suite!(postgres_wire, PostgresBench::plain);
fencepost_testkit::scripted_process!(fencepost_postgres::connect);

#[test]
fn agrees_with_the_model() {
    fencepost_testkit::state_machine::check(20, PostgresBench::plain);
}
