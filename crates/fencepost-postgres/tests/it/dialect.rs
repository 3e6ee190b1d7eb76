//! Locks in tables of other programs: their guarantees, what the other program sees of them, and tables that cannot hold locks.

mod bench;
mod foreign;
mod formats;
mod servers;
mod unsuitable;
mod without_expiry;

use bench::TableBench;

fencepost_testkit::table_suite!(postgres_shedlock, TableBench::shedlock);
fencepost_testkit::table_suite!(postgres_table, TableBench::with_expiry);
