//! The vocabulary and the machinery of Fencepost: names, tokens, grants, the contract of a storage, and the client that
//! keeps its promises the same way on all of them. No driver, no printing.
//!
//! Most programs use the `fencepost` crate, which re-exports what is here together with the storages. Write against
//! this crate to add a storage: implement [`backend::Backend`].
//!
//! The state machine ([`machine`]) and the rules ([`lock_table`], [`mod@record`]) are public so that they can be tested and simulated
//! from outside. They change without notice; programs need none of them.

mod alarms;
mod answer;
pub mod backend;
mod client;
pub mod clock;
mod delay_queue;
mod engine;
mod error;
mod finding;
mod flights;
mod grant;
mod guard;
mod handle;
pub mod holders;
mod label;
mod layers;
mod lock;
pub mod lock_table;
pub mod machine;
mod manual_clock;
mod name;
mod nearest;
mod op;
mod options;
pub mod push;
pub mod record;
mod relay;
mod shell;
mod storage_time;
mod token;
mod watch;

pub use backend::{
    Backend, BackendInfo, Cell, HolderState, Keep, ListPage, LockState, Page, Scope, WaiterState,
};
pub use client::Client;
pub use error::{Error, ErrorKind, Result};
pub use finding::{Finding, Severity};
pub use grant::{Attempt, Award, Grant, LostReason, Mode, Rule, Want};
pub use guard::Guard;
pub use lock::Lock;
pub use name::LockName;
#[doc(hidden)]
pub use nearest::nearest;
pub use op::request_timeout;
pub use options::Options;
pub use shell::shell_quote;
pub use token::{FencingToken, Owner, StorageId};
pub use watch::Watch;
pub use watch::changes::Change;
