//! One distributed lock with the same guarantees on the backend you already run.
//!
//! ```
//! # async fn charge(_invoice: u32, _token: fencepost::FencingToken) {}
//! # async fn example() -> fencepost::Result<()> {
//! let client = fencepost::connect("memory:").await?;
//! let lock = client.lock("invoice/42");
//!
//! // Waits in the queue, renews while the work runs, cancels it if the lock is lost, releases at the end.
//! lock.run(async |guard| charge(42, guard.token()).await).await?;
//! # Ok(())
//! # }
//! # futures_executor::block_on(example()).unwrap();
//! ```
//!
//! # What every backend guarantees
//! * At most one holder (or many readers, or *n* permits) at a time, as long as clocks differ in speed by less than 1 %.
//! * Only the holder releases; the lock of a holder that crashed is free after its ttl.
//! * A lease is renewed by a separate thread: an application that blocks its runtime does not lose it.
//! * [`Guard::lost`] resolves when the lock is lost, at the latest when its lease ends.
//! * Waiters get the lock in the order in which they asked; the successor is woken and does not poll.
//! * [`Guard::token`] only ever grows: a resource that checks it is safe even from a holder that was stopped.
//!
//! Work that can fail runs with [`Lock::try_run`], where `?` works inside the closure. Programs without async use [`blocking`]:
//! the same API, with calls that block.
//!
//! # Features
//! | feature | URL | scope |
//! |---|---|---|
//! | `memory` (default) | `memory:`, `memory:NAME` | the tasks and threads of this process |
//! | `sqlite` | `sqlite:`, `sqlite:PATH` | the processes of one host |
//! | `redis` | `redis://HOST`, `redis+sentinel://…`, `redis+cluster://…` | all hosts that reach it |
//! | `etcd` | `etcd://HOST,HOST,HOST`, `etcds://…` | all hosts that reach it |
//! | `zookeeper` | `zk://HOST,HOST,HOST/CHROOT` | all hosts that reach it |
//! | `postgres` | `postgres://USER:PASSWORD@HOST/DATABASE` | all hosts that reach it |
//! | `full` | all of them | |
//!
//! Three more do not depend on the backend. `full` means all backends and leaves them out. Without a subscriber or a recorder,
//! `tracing` and `metrics` do nothing.
//!
//! | feature | adds |
//! |---|---|
//! | `serde` | `Serialize` and `Deserialize` for [`FencingToken`], [`LockName`] and [`StorageId`] |
//! | `tracing` | the spans `lock acquire` and `lock hold`, and warnings of losses and failed renewals |
//! | `metrics` | counters, gauges and histograms, and `Options::metrics_names` |

#![cfg_attr(docsrs, feature(doc_cfg))]
// The included pages say in the first line of a block why it is not run by the check of console blocks.
#![cfg_attr(doctest, allow(rustdoc::invalid_codeblock_attributes))]

pub mod blocking;
mod connect;

pub use connect::{connect, connect_with, preflight, rights, schema};
pub use fencepost_core::{
    BackendInfo, Cell, Change, Client, Error, ErrorKind, FencingToken, Finding, Guard, HolderState, Keep,
    ListPage, Lock, LockName, LockState, Locks, LostReason, Mode, Options, Page, Result, Scope, Severity,
    StorageId, WaiterState, Watch, clock,
};
#[doc(hidden)]
pub use fencepost_core::{did_you_mean, shell_quote};

/// The backend in memory, with scripted faults and a clock that tests can move.
#[cfg(feature = "memory")]
pub mod memory {
    pub use fencepost_memory::{Faults, Memory};
}

#[cfg(all(doctest, feature = "sqlite"))]
#[doc = include_str!("../../../README.md")]
struct Readme;

#[cfg(all(doctest, feature = "sqlite"))]
#[doc = include_str!("../../../docs/guides/first-lock.md")]
struct FirstLock;

#[cfg(all(doctest, feature = "memory"))]
#[doc = include_str!("../../../docs/guides/library.md")]
struct Library;

#[cfg(all(doctest, feature = "memory"))]
#[doc = include_str!("../../../docs/guides/testing-your-code.md")]
struct Testing;

#[cfg(all(doctest, feature = "sqlite", feature = "metrics", feature = "tracing"))]
#[doc = include_str!("../../../docs/guides/observability.md")]
struct Observability;

#[cfg(all(doctest, feature = "memory"))]
#[doc = include_str!("../../../docs/guides/doctor.md")]
struct Doctor;

#[cfg(all(doctest, feature = "metrics"))]
#[doc = include_str!("../../../docs/reference/metrics.md")]
struct Metrics;
