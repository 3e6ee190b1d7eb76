//! What every Fencepost storage is tested with: the behaviour suite, the state machine, the history checker.
//!
//! A storage implements [`TestBench`] in its tests and calls [`behavior_suite!`]; it then runs the same behaviours as
//! all others. One behind a network implements [`WireBench`] as well and calls [`wire_suite!`], for what a broken network
//! may not do. [`state_machine::check`] compares it with a model, operation by operation. [`puppet!`] gives its tests
//! processes of their own, and [`storm`] lets its servers come and go while such processes lock.

pub mod actors;
pub mod behaviors;
pub mod bench;
pub mod crew;
pub mod dice;
pub mod history;
pub mod list;
mod op_kind;
pub mod proxy;
pub mod puppet;
pub mod servers;
pub mod state_machine;
pub mod storm;
pub mod suite;
pub mod wait;
pub mod wire;

pub use bench::{Leftovers, TestBench, WireBench};
