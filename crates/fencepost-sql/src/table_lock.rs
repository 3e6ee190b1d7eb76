//! Locks in a table that belongs to another program: `ShedLock`'s, or a home-made one. A row is a lock: its name, its owner, and
//! in most tables the end of its lease.
//!
//! Such a table has no place for a queue, tombstones or tokens. [`TableBackend`] makes of it what can be made: waiters of one
//! client are granted in the order of arrival and poll, an acquire that arrives too late is rejected by the server's clock, and
//! the owner that is stored contains the server's time at the grant, which is the token. A database implements [`LockRows`].

mod backend;
mod cleanup;
mod owner;
mod pace;
mod queue;
mod rows;
mod shape;
mod state;

pub use backend::TableBackend;
pub use owner::{MarkPattern, OwnerFormat};
pub use rows::{AcquireRequest, AcquireResult, HeldRow, LockRows, TableInfo};
pub use shape::{Column, ColumnType, Expiry, Shape, TableLayout};
