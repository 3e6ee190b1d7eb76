//! Named locks of the server: their guarantees, and what ends the connections that hold them.

mod bench;
mod doctor;
mod ends;
mod foreign;
mod refusals;
mod schema;

use bench::NamedBench;

// Without leases of their own: an outage ends the connections and their locks.
fencepost_testkit::behavior_suite!(mariadb_named, NamedBench::plain, only [core connection]);
fencepost_testkit::session_suite!(mariadb_sessions, NamedBench::plain);
