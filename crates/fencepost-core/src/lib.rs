//! The types and the state machine of Fencepost: names, tokens, grants, the [`Backend`] trait, and the client that keeps the same
//! guarantees on every backend. No driver, no printing.
//!
//! Most programs use the `fencepost` crate, which re-exports what is here together with the backends. Use this crate to write
//! a backend: implement [`backend::Backend`].
//!
//! [`lock_table`] and [`mod@record`] are the rules and data of backends that store rows. With the feature `unstable` the state
//! machine of the client is public too, for simulations; it changes without notice.

pub mod backend;
mod batch_waker;
mod client;
pub mod clock;
mod defaults;
mod delay_queue;
mod duration_text;
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
mod locks;
#[cfg(feature = "unstable")]
pub mod machine;
#[cfg(not(feature = "unstable"))]
#[allow(unreachable_pub, dead_code, reason = "public with the feature `unstable`")]
mod machine;
mod manual_clock;
mod name;
mod nearest;
mod op;
mod options;
pub mod push;
pub mod record;
mod response;
#[cfg(feature = "serde")]
mod serde_impls;
mod shell;
mod storage_time;
mod timers;
mod token;
mod watch;

pub use backend::{
    Backend, BackendInfo, Cell, HolderState, Keep, ListPage, LockState, Page, Scope, WaiterState,
};
pub use client::Client;
pub use duration_text::duration_text;
pub use error::{Error, ErrorKind, Result};
pub use finding::{Finding, Severity};
pub use grant::{Attempt, Award, Grant, LostReason, Mode, Rule, Want};
pub use guard::Guard;
pub use lock::Lock;
pub use locks::Locks;
pub use name::LockName;
#[doc(hidden)]
pub use nearest::{did_you_mean, is_keyword, nearest};
pub use op::request_timeout;
pub use options::Options;
pub use shell::shell_quote;
pub use token::{FencingToken, Owner, StorageId};
pub use watch::Watch;
pub use watch::changes::Change;
