//! Advisory locks: their guarantees, and what ends the sessions that hold them.

mod bench;
mod doctor;
mod ends;
mod foreign;
mod refusals;
mod schema;
#[cfg(target_os = "linux")]
mod vanished;

use bench::AdvisoryBench;

// Without leases of their own: an outage ends the sessions and their locks.
fencepost_testkit::behavior_suite!(postgres_advisory, AdvisoryBench::plain, only [core connection readers]);
fencepost_testkit::session_suite!(postgres_sessions, AdvisoryBench::plain);
