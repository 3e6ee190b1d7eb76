//! The SQLite storage on the test bench, and what only a file can get wrong.

mod bench;
mod clocks;
mod files;
mod processes;
mod puppet;
mod tokens;

use bench::SqliteBench;

fencepost_testkit::behavior_suite!(sqlite, SqliteBench::new);
