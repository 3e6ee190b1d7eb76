//! Locks in the key format of another library: their guarantees, and the keys and values that the library expects.

mod bench;
mod foreign;
mod formats;
mod rights;
mod tracking;

use bench::DialectBench;

// One dialect that polls, and one with signals. Such locks are exclusive, of one name, and have no cell.
fencepost_testkit::behavior_suite!(redis_py, DialectBench::redis_py, only [core exclusive]);
fencepost_testkit::behavior_suite!(python_redis_lock, DialectBench::python_redis_lock, only [core exclusive]);
