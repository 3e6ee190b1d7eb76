//! The rows of backends in SQL databases: which columns holders, tickets and cells have, and how their values are converted.
//!
//! Nothing here does I/O or names a driver. A backend implements [`Row`] for the rows that it reads and writes [`Value`]s;
//! statements are its own, because dialects differ. Locks in tables of other programs are in [`table_lock`], and locks
//! that live in sessions of a server in [`session_lock`].

pub mod codec;
mod labels;
mod read;
pub mod session_lock;
pub mod table_lock;
mod value;
mod write;

pub use labels::Labels;
pub use read::{Row, cell, holder, ticket};
pub use value::Value;
pub use write::{RowChanges, cell_values, holder_values, ticket_values};

/// The columns of a holder, in the order of [`holder`] and [`holder_values`].
#[macro_export]
macro_rules! holder_columns {
    () => {
        "name, owner, token, mode, ttl_ns, until_ns, since_ms, client, names, chosen, label, meta"
    };
}

/// The columns of a ticket, in the order of [`ticket`] and [`ticket_values`].
#[macro_export]
macro_rules! ticket_columns {
    () => {
        "name, seq, owner, ttl_ns, until_ns, since_ms, client, rule, wants, label, meta"
    };
}

/// The columns of a cell, in the order of [`cell`] and [`cell_values`].
#[macro_export]
macro_rules! cell_columns {
    () => {
        "name, token, keep, keep_ns, until_ns, bytes"
    };
}
