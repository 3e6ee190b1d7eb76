//! What every Fencepost storage is tested with: the behaviour suite, the state machine, the history checker.
//!
//! A storage implements [`TestBench`] in its tests and calls [`behavior_suite!`]; it then runs the same behaviours as
//! all others. [`state_machine::check`] compares it with a model, operation by operation.

pub mod behaviors;
pub mod bench;
pub mod dice;
pub mod history;
mod op_kind;
pub mod proxy;
pub mod servers;
pub mod state_machine;
pub mod suite;
pub mod wait;
pub mod wire;

pub use bench::{Leftovers, TestBench};
