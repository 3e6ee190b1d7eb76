//! Locks that live in a session of a database: advisory locks, named locks. The server frees them when the session ends.
//!
//! Each attempt has a session of its own, in which it tries, waits in the server's queue and holds. Each renewal is a heartbeat on
//! the session, and the session ends with the lease, or is left without locks. A database implements [`LockServer`] and
//! [`LockSession`]; [`SessionBackend`] is the backend.

mod attempt;
mod backend;
mod held;
mod server;
mod state;

pub use backend::SessionBackend;
pub use server::{LockServer, LockSession, Position, ServerInfo, Tried};
