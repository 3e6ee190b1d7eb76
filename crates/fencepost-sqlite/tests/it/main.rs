//! The behaviour suite on SQLite, and tests of what is specific to a database file.

mod bench;
mod clocks;
mod costs;
mod diagnose;
mod files;
mod processes;
mod queues;
mod replaced_files;
mod scripted_process;
mod tokens;

use bench::SqliteBench;

fencepost_testkit::behavior_suite!(sqlite, SqliteBench::new);

#[test]
fn agrees_with_the_model() {
    fencepost_testkit::state_machine::check(40, SqliteBench::new);
}
