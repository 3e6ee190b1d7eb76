//! `mode=lease`: locks are rows, and the rules decide in the client over rows that a transaction has locked.

mod backend;
mod blocked;
pub(crate) mod fetch;
pub(crate) mod flight;
mod interests;
pub(crate) mod layout;
mod listing;
mod poller;
mod renew;
mod save;
mod sent;
pub(crate) mod state;
pub(crate) mod storage;
mod sweep;

pub(crate) use backend::open;
