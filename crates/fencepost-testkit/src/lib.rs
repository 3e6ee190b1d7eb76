//! The tests that every Fencepost backend runs: the behaviour suite, the state machine, the history checker.
//!
//! A backend implements [`TestBench`] in its tests and calls [`behavior_suite!`]; it then runs the same behaviours as all
//! others. A backend behind a network also implements [`WireBench`] and calls [`wire_suite!`], which tests it on a faulty
//! network; one whose locks live in sessions of a server implements [`SessionBench`] and calls [`session_suite!`].
//! [`state_machine::check`] compares a backend with a model, operation by operation. [`scripted_process!`] gives its tests child
//! processes, and [`stress`] kills and pauses its servers while such processes take locks. [`databases`] has tests for backends
//! on a database server.

pub mod actions;
pub mod behaviors;
pub mod cutter;
pub mod databases;
pub mod history;
pub mod list;
mod op_kind;
pub mod proxy;
pub mod rng;
pub mod scripted_process;
pub mod servers;
pub mod state_machine;
pub mod stress;
pub mod suite;
pub mod test_bench;
pub mod wait;
pub mod wire;
pub mod workload;

pub use test_bench::{SessionBench, StoredCounts, TestBench, WireBench};
