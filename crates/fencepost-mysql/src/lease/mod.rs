//! `mode=lease`: locks are rows. The rules decide in the client over rows that a transaction has locked; of flights that need no rules,
//! the server checks it.

mod backend;
pub(crate) mod fetch;
pub(crate) mod flight;
mod interests;
pub(crate) mod layout;
mod listing;
mod plain;
mod poller;
mod recent;
mod save;
mod sent;
pub(crate) mod state;
pub(crate) mod storage;
mod sweep;

#[cfg(test)]
mod tests;

pub(crate) use backend::open;
