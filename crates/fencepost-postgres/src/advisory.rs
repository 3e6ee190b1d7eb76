//! Locks that are the server's advisory locks. Each attempt has a session of its own: it waits in the server's queue, and holds
//! the lock until the session ends. The server ends a session that its client does not renew for a ttl.

mod backend;
mod diagnose;
mod keys;
mod listing;
mod schema;
mod session;
mod state;
#[cfg(test)]
mod tests;

pub(crate) use backend::open;
pub(crate) use schema::printed;
