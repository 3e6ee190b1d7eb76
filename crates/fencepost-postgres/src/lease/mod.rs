//! `mode=lease`: locks are rows, and the rules are functions of the database (`schema/`). A flight is one call of one function.

mod backend;
mod encode;
mod flight;
mod listener;
pub(crate) mod listing;
pub(crate) mod pool;
mod push;
mod reply;
pub(crate) mod schema;
pub(crate) mod state;
mod sweep;

pub(crate) use backend::open;
