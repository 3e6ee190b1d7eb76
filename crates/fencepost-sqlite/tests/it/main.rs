//! The SQLite storage on the test bench, and what only a file can get wrong.

mod bench;
mod clocks;
mod costs;
mod diagnose;
mod files;
mod lines;
mod processes;
mod scripted_process;
mod swapped;
mod tokens;

use bench::SqliteBench;

fencepost_testkit::behavior_suite!(sqlite, SqliteBench::new);

#[test]
fn agrees_with_the_model() {
    fencepost_testkit::state_machine::check(40, SqliteBench::new);
}
