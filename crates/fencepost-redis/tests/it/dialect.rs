//! Locks in another library's form: what they promise, and that the other library finds what it expects.

mod bench;
mod formats;
mod rights;
mod strangers;
mod tracking;

use bench::DialectBench;

// One that looks now and then, and one that waits for a signal: exclusive locks of one name without a cell.
fencepost_testkit::behavior_suite!(redis_py, DialectBench::redis_py, only [core exclusive]);
fencepost_testkit::behavior_suite!(python_redis_lock, DialectBench::python_redis_lock, only [core exclusive]);
