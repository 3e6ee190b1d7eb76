//! The test suites on MariaDB, and tests of what is specific to it.

mod actions;
mod admin;
mod bench;
mod clocks;
mod configurations;
mod errors;
mod faults;
mod named;
mod replication;
mod schema;
mod server;
mod sweeping;
mod transactions;

use bench::MariadbBench;

fencepost_testkit::behavior_suite!(mariadb, MariadbBench::plain);
fencepost_testkit::wire_suite!(mariadb_wire, MariadbBench::plain);
fencepost_testkit::scripted_process!(fencepost_mysql::connect);

#[test]
fn agrees_with_the_model() {
    fencepost_testkit::state_machine::check(20, MariadbBench::plain);
}
