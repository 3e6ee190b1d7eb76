//! One distributed lock with the same promises on the storage you already run.
//!
//! ```
//! # async fn charge(_invoice: u32, _token: fencepost::FencingToken) {}
//! # async fn example() -> fencepost::Result<()> {
//! let client = fencepost::connect("memory:").await?;
//! let lock = client.lock("invoice/42");
//!
//! // Waits in line, renews while the work runs, cancels it if the lock is lost, releases at the end.
//! lock.run(async |guard| charge(42, guard.token()).await).await?;
//! # Ok(())
//! # }
//! # futures_executor::block_on(example()).unwrap();
//! ```
//!
//! # What every storage promises
//! * At most one owner (or many readers, or *n* slots) at a time, if clocks run at the same speed.
//! * Only the owner releases; a crashed owner's lock is free after its ttl.
//! * A lease is renewed by a thread of its own: an application that blocks its runtime does not lose it.
//! * [`Guard::lost`] tells when the lock is gone, at the latest when its lease ends.
//! * First come, first served, and the next in line is woken, not polling.
//! * [`Guard::token`] only ever grows: the resource that checks it is safe even from a holder that was stopped.
//!
//! Programs without async use [`blocking`]: the same words, and every call returns when it is done.
//!
//! # Features
//! | feature | URL | scope |
//! |---|---|---|
//! | `memory` (default) | `memory:`, `memory:NAME` | the tasks and threads of this process |
//! | `sqlite` | `sqlite:`, `sqlite:PATH` | the processes of one host |
//! | `redis` | `redis://HOST`, `redis+sentinel://…`, `redis+cluster://…` | all hosts that reach it |
//! | `etcd` | `etcd://HOST,HOST,HOST`, `etcds://…` | all hosts that reach it |
//! | `zookeeper` | `zk://HOST,HOST,HOST/CHROOT` | all hosts that reach it |
//! | `full` | all of them | |
//!
//! Two more say what the locks do, whatever the storage; `full` is about storages and leaves them out, so that nobody
//! pays for a facade without asking for it. Without a subscriber or a recorder they do nothing.
//!
//! | feature | what it brings |
//! |---|---|
//! | `tracing` | the spans `lock acquire` and `lock hold`, and warnings of losses and failed renewals |
//! | `metrics` | counters, gauges and histograms, and `Options::metrics_names` |

pub mod blocking;
mod connect;

pub use connect::{connect, connect_with, preflight, rights};
#[doc(hidden)]
pub use fencepost_core::shell_quote;
pub use fencepost_core::{
    BackendInfo, Cell, Change, Client, Error, ErrorKind, FencingToken, Finding, Guard, HolderState, Keep,
    ListPage, Lock, LockName, LockState, LostReason, Mode, Options, Page, Result, Scope, Severity, StorageId,
    WaiterState, Watch, clock,
};

/// The storage in memory, with scripted faults and a clock that tests can move.
#[cfg(feature = "memory")]
pub mod memory {
    pub use fencepost_memory::{Faults, Memory};
}

#[cfg(all(doctest, feature = "sqlite"))]
#[doc = include_str!("../../../README.md")]
struct Readme;

#[cfg(all(doctest, feature = "sqlite", feature = "metrics", feature = "tracing"))]
#[doc = include_str!("../../../docs/guides/observability.md")]
struct Observability;

#[cfg(all(doctest, feature = "memory"))]
#[doc = include_str!("../../../docs/guides/doctor.md")]
struct Doctor;

#[cfg(all(doctest, feature = "metrics"))]
#[doc = include_str!("../../../docs/reference/metrics.md")]
struct Metrics;
