//! `mode=named`: locks are the server's named locks (`GET_LOCK`). Each attempt has a connection of its own: it waits in the server's
//! queue, and holds the lock until the connection ends. The server ends a connection that its client does not renew for a ttl.

mod backend;
mod diagnose;
mod keys;
mod listing;
mod rights;
mod schema;
mod session;
mod state;
#[cfg(test)]
mod tests;

pub(crate) use backend::open;
pub(crate) use rights::rights_on;
pub(crate) use schema::statements;
